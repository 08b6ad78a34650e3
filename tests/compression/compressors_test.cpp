#include "trireme/compression/compression.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

#include "../catch.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using compression::cast;
using compression::error_feedback;
using compression::none;
using compression::top_k;

namespace {

using env = environment<precision::fp32>;

/// The decoded payload of one gradient.
std::vector<float> told(top_k::instance<env>& state, std::vector<float> gradient) {
  std::vector<std::byte> payload(static_cast<std::size_t>(state.payload_bytes(static_cast<long>(gradient.size()))));
  state.encode(tensor_view{gradient}, tensor_view{payload}, 0);
  std::vector<float> out(gradient.size(), 99);
  state.decode(tensor_view{payload}, tensor_view{out}, false);
  return out;
}

}  // namespace

TEST_CASE("none and cast decode to the encoded values, rounded to the type on the wire", "[compression]") {
  std::vector<float> const gradient{1.0F, -2.5F, 1.001F, 0.0F};
  auto const through = [&](auto state, auto element) {
    auto from = gradient;
    std::vector<decltype(element)> payload(4);
    std::vector<float> out(4);
    state.encode(tensor_view{from}, tensor_view{payload}, 0);
    state.decode(tensor_view{payload}, tensor_view{out});
    return out;
  };
  CHECK(through(none::instance<env>({}, 4), 0.0F) == gradient);
  CHECK(through(cast<bf16>::instance<env>({}, 4), bfloat16{}) == std::vector<float>{1.0F, -2.5F, 1.0F, 0.0F});
}

TEST_CASE("top_k sends the largest elements by magnitude, and at least one", "[compression]") {
  top_k::instance<env> half(top_k{.ratio = 0.5F}, 5);
  CHECK(told(half, {1, -5, 2, 0, -3}) == std::vector<float>{0, -5, 2, 0, -3});
  top_k::instance<env> least(top_k{.ratio = 1e-6F}, 5);
  CHECK(told(least, {1, -5, 2, 0, -3}) == std::vector<float>{0, -5, 0, 0, 0});
  top_k::instance<env> all(top_k{.ratio = 1}, 5);
  CHECK(told(all, {1, -5, 2, 0, -3}) == std::vector<float>{1, -5, 2, 0, -3});
}

TEST_CASE("top_k payloads are added in the order in which they are decoded", "[compression]") {
  top_k::instance<env> state(top_k{.ratio = 0.5F}, 4);
  std::vector<float> one{1, 4, 0, 3};
  std::vector<float> two{7, 1, 8, 0};
  std::vector<std::byte> first(static_cast<std::size_t>(state.payload_bytes(4)));
  auto second = first;
  state.encode(tensor_view{one}, tensor_view{first}, 0);
  state.encode(tensor_view{two}, tensor_view{second}, 0);
  std::vector<float> sum(4, -1);
  state.decode(tensor_view{first}, tensor_view{sum}, false);
  state.decode(tensor_view{second}, tensor_view{sum}, true);
  CHECK(sum == std::vector<float>{7, 4, 8, 3});
  for (std::int64_t n = 1; n < 40; ++n) CHECK(state.payload_bytes(n) % 8 == 0);
}

TEST_CASE("top_k refuses a ratio outside (0, 1]", "[compression]") {
  using state = top_k::instance<env>;
  CHECK_THROWS_WITH(state(top_k{.ratio = 0}, 4), "trireme::compression::top_k: ratio 0 is not in (0, 1]");
  CHECK_THROWS_AS(state(top_k{.ratio = 1.5F}, 4), config_error);
  CHECK_THROWS_AS(state(top_k{.ratio = NAN}, 4), config_error);
}

TEST_CASE("with error feedback sent values and residuals add up to all gradients so far", "[compression]") {
  parameter_info const info{.name = "w", .extents = {8}};
  error_feedback<top_k>::instance<env> state(error_feedback<top_k>{.inner = {.ratio = 0.25F}}, {8, {{&info, 0}}});
  std::vector<float> const gradient{8, 1, -4, 2, 0.5F, -0.25F, 3, 1};
  std::vector<float> sum(8, 0);
  for (int step = 1; step <= 40; ++step) {
    for (std::int64_t first = 0; first < 8; first += 4) {  // slice by slice, as transports do
      std::vector<float> slice(gradient.begin() + first, gradient.begin() + first + 4);
      std::vector<std::byte> payload(static_cast<std::size_t>(state.payload_bytes(4)));
      state.encode(tensor_view{slice}, tensor_view{payload}, first);
      state.decode(tensor_view{payload}, tensor_view<float>(sum).flat(first, 4), true);
    }
    state.commit();
    state.visit_state(state_scope::owned, [&](std::string const& name, state_location const& place, auto residual) {
      CHECK((name == "residual/w" && &place.info == &info && place.first == 0 && place.of_rank));
      for (std::int64_t i = 0; i < 8; ++i) {
        CHECK(sum[static_cast<std::size_t>(i)] + residual[i] ==
              static_cast<float>(step) * gradient[static_cast<std::size_t>(i)]);
      }
    });
  }
  for (std::size_t i = 0; i < 8; ++i) CHECK(sum[i] != 0);  // in time everything is sent
}

TEST_CASE("error feedback of a cast keeps the rounding error", "[compression]") {
  error_feedback<cast<bf16>>::instance<env> state({}, {1, {}});
  float sum = 0;
  for (int step = 0; step < 1000; ++step) {
    std::vector<float> slice{1.001F};
    std::vector<bfloat16> payload(1);
    state.encode(tensor_view{slice}, tensor_view{payload}, 0);
    std::vector<float> out(1);
    state.decode(tensor_view{payload}, tensor_view{out});
    state.commit();
    sum += out[0];
  }
  CHECK(sum == Approx(1001).epsilon(1e-4));
}

TEST_CASE("the residual of error feedback does not carry the factor of the loss", "[compression]") {
  float told_so_far = 0;
  error_feedback<cast<bf16>>::instance<env> state({}, {1, {}});
  for (float const scale : {1.0F, 1024.0F, 1024.0F, 0.5F, 1.0F}) {
    state.at_scale(scale);
    std::vector<float> slice{1.001F * scale};
    std::vector<bfloat16> payload(1);
    state.encode(tensor_view{slice}, tensor_view{payload}, 0);
    std::vector<float> out(1);
    state.decode(tensor_view{payload}, tensor_view{out});
    state.commit();
    told_so_far += out[0] / scale;
  }
  std::vector<float> slice{0};
  std::vector<bfloat16> payload(1);
  state.encode(tensor_view{slice}, tensor_view{payload}, 0);  // piece is the residual now
  CHECK(told_so_far + slice[0] == Approx(5 * 1.001F).epsilon(1e-6));
}

TEST_CASE("compressors are compared, and printed as their source", "[compression]") {
  CHECK(to_string(none{}) == "compression::none{}");
  CHECK(to_string(cast<bf16>{}) == "compression::cast<bf16>{}");
  CHECK(to_string(top_k{.ratio = 0.25F}) == "compression::top_k{.ratio = 0.25f}");
  CHECK(to_string(error_feedback<top_k>{}) ==
        "compression::error_feedback<compression::top_k>{.inner = compression::top_k{.ratio = 0.01f}}");
  CHECK(top_k{.ratio = 0.5F} != top_k{});
}
