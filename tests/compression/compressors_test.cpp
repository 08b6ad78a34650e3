#include "trireme/compression/compression.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/threads.hpp"
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

using compression::by_name;
using compression::by_size;
using compression::power_sgd;
using compression::quantise;

/// A bucket of two matrices and two vectors, with gaps.
struct mixed_bucket {
  std::vector<parameter_info> infos{{"a.weight", {8, 16}}, {"a.bias", {8}}, {"b.weight", {16, 8}}, {"b.bias", {16}}};
  std::vector<std::int64_t> offsets{0, 128, 144, 272};
  bucket_form form{300, {}};
  mixed_bucket() {
    for (std::size_t i = 0; i < infos.size(); ++i) form.tensors.push_back({&infos[i], offsets[i]});
  }
  [[nodiscard]] bool holds(std::size_t tensor, std::int64_t i) const {
    return i >= offsets[tensor] && i < offsets[tensor] + infos[tensor].extents.size();
  }
  [[nodiscard]] std::vector<float> gradient(int rank, int step) const {
    std::vector<float> all(300);
    for (std::size_t t = 0; t < infos.size(); ++t) {
      for (auto i = offsets[t]; i < offsets[t] + infos[t].extents.size(); ++i)
        all[static_cast<std::size_t>(i)] = static_cast<float>((7 * i + 13 * rank + 5 * step) % 31 - 15) / 8;
    }
    return all;
  }
  [[nodiscard]] std::vector<float> sum(int step) const {
    auto all = gradient(0, step);
    auto const other = gradient(1, step);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += other[i];
    return all;
  }
};

/// What a collective compressor makes of three steps on two ranks, the same on both.
template <class Compressor>
std::vector<std::vector<float>> three_steps(mixed_bucket const& bucket, Compressor const& compressor) {
  std::vector<std::vector<float>> out[2];
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    auto const rank = world.rank();
    typename Compressor::template instance<env, world_type> state(compressor, bucket.form, world);
    for (int step = 0; step < 3; ++step) {
      auto gradient = bucket.gradient(rank, step);
      if constexpr (has_at_gradient<decltype(state)>) state.at_gradient({.step = step, .rank = rank});
      state.begin(tensor_view{gradient}, 1);
      while (!state.turn()) {
      }
      state.commit();
      out[rank].push_back(gradient);
    }
  });
  CHECK(out[0] == out[1]);
  return out[0];
}

}  // namespace

TEST_CASE("by_size sends small tensors with one compressor and large ones with another", "[compression]") {
  mixed_bucket const bucket;
  using policy = by_size<none, error_feedback<top_k>>;
  auto const found = three_steps(bucket, policy{.large = {.inner = {.ratio = 0.25F}}, .bytes = 512});
  for (std::size_t step = 0; step < found.size(); ++step) {
    auto const sum = bucket.sum(static_cast<int>(step));
    int left_out = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      auto const at = static_cast<std::int64_t>(i);
      if (bucket.holds(0, at) || bucket.holds(2, at)) {
        left_out += std::equal_to<>{}(found[step][i], 0.0F) && !std::equal_to<>{}(sum[i], 0.0F);
      } else {
        CHECK(found[step][i] == sum[i]);
      }
    }
    CHECK(left_out > 64);  // of 256
  }
}

TEST_CASE("by_size that gives all tensors to one compressor equals that compressor bit for bit", "[compression]") {
  mixed_bucket const bucket;
  auto const alone = three_steps(bucket, power_sgd{.rank = 1});
  CHECK(three_steps(bucket, by_size<none, power_sgd>{.large = {.rank = 1}, .bytes = 0}) == alone);
  CHECK(three_steps(bucket, by_size<power_sgd, none>{.small = {.rank = 1}, .bytes = 1 << 20}) == alone);
  // Tensors that it would send as they are may be sent by another one.
  CHECK(three_steps(bucket, by_size<none, power_sgd>{.large = {.rank = 1}, .bytes = 512}) == alone);
}

TEST_CASE("by_name uses the first entry that matches, and otherwise the rest", "[compression]") {
  mixed_bucket const bucket;
  using policy = by_name<none, top_k, power_sgd, compression::one_of<quantise<8>, none>>;
  auto const found = three_steps(bucket, policy{.list = {{.names = "b.bias a.weight", .codec = none{}},
                                                         {.names = "*.bias", .codec = top_k{.ratio = 0.01F}},
                                                         {.names = "b.*", .codec = power_sgd{.rank = 1}}},
                                                .rest = top_k{}});
  auto const sum = bucket.sum(0);
  int exact[4] = {}, zero[4] = {};
  for (std::size_t t = 0; t < 4; ++t) {
    for (auto i = bucket.offsets[t]; i < bucket.offsets[t] + bucket.infos[t].extents.size(); ++i) {
      auto const at = static_cast<std::size_t>(i);
      exact[t] += std::equal_to<>{}(found[0][at], sum[at]);
      zero[t] += std::equal_to<>{}(found[0][at], 0.0F);
    }
  }
  CHECK((exact[0] == 128 && exact[3] == 16));
  CHECK(zero[1] >= 6);  // each rank has sent one of 8
  CHECK((exact[2] < 64 && zero[2] < 64));
}

TEST_CASE("parts of a bucket keep the state of their compressors, by tensor", "[compression]") {
  mixed_bucket const bucket;
  launch(comm::threads{.ranks = 1}, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    using sparse = error_feedback<top_k>;
    using policy = by_size<sparse, power_sgd>;
    typename policy::template instance<env, world_type> state(policy{.large = {.rank = 1}, .bytes = 512}, bucket.form,
                                                              world);
    auto gradient = bucket.gradient(0, 0);
    state.begin(tensor_view{gradient}, 1);
    CHECK(state.takes_rounds());
    while (!state.turn()) {
    }
    state.commit();
    std::vector<std::string> names;
    state.visit_state(state_scope::owned, [&](std::string const& name, state_location const& place, auto view) {
      names.push_back(name);
      CHECK(view.size() == place.info.extents.size());
    });
    CHECK(names == std::vector<std::string>{"residual/a.bias", "residual/b.bias", "residual/a.weight",
                                            "power_sgd_q/a.weight", "residual/b.weight", "power_sgd_q/b.weight"});
  });
}

TEST_CASE("by_size and by_name are compared, validated, and printed as their source", "[compression]") {
  CHECK(to_string(by_size<none, top_k>{}) ==
        "compression::by_size<compression::none, compression::top_k>{.small = compression::none{}, .large = "
        "compression::top_k{.ratio = 0.01f}, .bytes = 65536}");
  using policy = by_name<none, top_k>;
  policy const chosen{.list = {{.names = "*.bias", .codec = top_k{.ratio = 0.5F}}}};
  CHECK(to_string(chosen) ==
        "compression::by_name<compression::none, compression::top_k>{.list = {{.names = \"*.bias\", .codec = "
        "compression::top_k{.ratio = 0.5f}}}, .rest = compression::none{}}");
  CHECK(chosen != policy{});
  CHECK_THROWS_WITH((by_size<none, top_k>{.bytes = -1}.validate()),
                    "trireme::compression::by_size: .bytes is -1; it must be at least 0");
  CHECK_THROWS_WITH((policy{.list = {{.names = "*", .codec = top_k{.ratio = 2}}}}.validate()),
                    "trireme::compression::top_k: ratio 2 is not in (0, 1]");
}

TEST_CASE("dgc applies momentum before it chooses, and forgets it where it has sent", "[compression]") {
  parameter_info const info{.name = "w", .extents = {2}};
  compression::dgc::instance<env> state({.ratio = 0.5F, .momentum = 0.5}, {2, {{&info, 0}}});
  auto const step = [&](double scale, bool taken) {
    auto const factor = static_cast<float>(scale);
    std::vector<float> gradient{4 * factor, 2.5F * factor}, sum(2);
    std::vector<std::byte> payload(static_cast<std::size_t>(state.payload_bytes(2)));
    state.at_scale(scale);
    state.encode(tensor_view{gradient}, tensor_view{payload}, 0);
    state.decode(tensor_view{payload}, tensor_view{sum}, false);
    if (taken) state.commit();
    return std::vector<float>{sum[0] / factor, sum[1] / factor};
  };
  CHECK(step(1, true) == std::vector<float>{4, 0});       // u = v = {4, 2.5} before sending, then {0, 2.5}
  CHECK(step(2, false) == std::vector<float>{0, 6.25F});  // u = {4, 3.75}, v = {4, 6.25}; the step is skipped
  CHECK(step(64, true) == std::vector<float>{0, 6.25F});  // the same, whatever the factor
  CHECK(step(1, true) == std::vector<float>{10, 0});      // u = {6, 2.5}, v = {10, 2.5}
  std::vector<float> kept;
  state.visit_state(state_scope::owned, [&](std::string const& name, state_location const& place, auto view) {
    CHECK((place.of_rank && (name == "residual/w" || name == "dgc_velocity/w")));
    for (std::int64_t i = 0; i < view.size(); ++i) kept.push_back(view[i]);
  });
  CHECK(kept == std::vector<float>{0, 2.5F, 0, 2.5F});
}

TEST_CASE("dgc limits the norm of each tensor's gradient, before momentum", "[compression]") {
  parameter_info const first{.name = "a", .extents = {2}}, second{.name = "b", .extents = {2}};
  bucket_form const form{5, {{&first, 0}, {&second, 3}}};  // with a gap of one element
  compression::dgc::instance<env> state({.ratio = 1, .momentum = 0.5, .clip = 2}, form);
  state.at_gradient({.rank = 3, .ranks = 4});  // each may add a norm of 1
  auto const sent = [&](std::vector<float> gradient, std::int64_t from, double scale) {
    for (auto& each : gradient) each *= static_cast<float>(scale);
    std::vector<float> sum(gradient.size());
    std::vector<std::byte> payload(static_cast<std::size_t>(state.payload_bytes(std::ssize(gradient))));
    state.at_scale(scale);
    state.encode(tensor_view{gradient}, tensor_view{payload}, from);
    state.decode(tensor_view{payload}, tensor_view{sum}, false);
    for (auto& each : sum) each /= static_cast<float>(scale);
    return sum;
  };
  auto const near = [](std::vector<float> const& a, std::vector<float> const& b) {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) { return std::abs(x - y) <= 1e-6F; });
  };
  for (double const scale : {1.0, 256.0}) {
    CHECK(near(sent({3, 4, 0, 0.3F, 0.4F}, 0, scale), {0.6F, 0.8F, 0, 0.3F, 0.4F}));
    CHECK(near(sent({4, 0, 0}, 1, scale), {1, 0, 0}));  // the second half of a, the gap, the first half of b
    CHECK(near(sent({0, 0.5F, 7}, 2, scale), {0, 0.0712470F, 0.9974587F}));
  }
  auto const nothing = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(sent({nothing, 1, 0, 0, 0}, 0, 1)[0]));  // left as it is: the step is skipped
}

TEST_CASE("dgc sends more in its first steps", "[compression]") {
  compression::dgc const description{.ratio = 0.01F, .warmup = 40};
  std::vector<float> ratios;
  for (std::int64_t const step : {0, 9, 10, 19, 20, 29, 30, 39, 40, 1000}) ratios.push_back(description.ratio_at(step));
  CHECK(ratios == std::vector<float>{0.25F, 0.25F, 0.0625F, 0.0625F, 0.015625F, 0.015625F, 0.01F, 0.01F, 0.01F, 0.01F});
  CHECK(compression::dgc{.ratio = 0.001F, .warmup = 3}.ratio_at(2) == 0.015625F);
  CHECK(compression::dgc{.ratio = 0.5F, .warmup = 3}.ratio_at(0) == 0.5F);
  CHECK(compression::dgc{}.ratio_at(0) == 0.01F);
  compression::dgc::instance<env> state(description, {1000, {}});
  CHECK(state.payload_bytes(1000) == 2000);  // memory is made for these
  state.at_gradient({.step = 25});
  CHECK(state.payload_bytes(1000) == 128);  // 16 elements
  state.at_gradient({.step = 40});
  CHECK(state.payload_bytes(1000) == 80);
}

TEST_CASE("dgc is validated, and printed as its source", "[compression]") {
  using compression::dgc;
  CHECK(to_string(dgc{.clip = 1.5, .warmup = 400}) ==
        "compression::dgc{.ratio = 0.01f, .momentum = 0.9, .clip = 1.5, .warmup = 400}");
  CHECK_THROWS_WITH(dgc{.clip = -1}.validate(),
                    "trireme::compression::dgc: .clip is -1; it must be at least 0, and finite");
  CHECK_THROWS_WITH(dgc{.warmup = -1}.validate(), "trireme::compression::dgc: .warmup is -1; it must be at least 0");
  CHECK(to_string(dgc{}) == "compression::dgc{.ratio = 0.01f, .momentum = 0.9}");
  CHECK_THROWS_WITH(dgc{.momentum = 1}.validate(), "trireme::compression::dgc: .momentum is 1; it must be in [0, 1)");
  CHECK_THROWS_WITH(error_feedback<dgc>{}.validate(),
                    "trireme::compression::dgc keeps what it has not sent itself; use it without error_feedback");
}

TEST_CASE("dgc of everything sends the gradient", "[compression]") {
  compression::dgc::instance<env> state({.ratio = 1}, {4, {}});
  for (float const part : {1.0F, 2.0F, -0.3F}) {
    std::vector<float> const gradient{part, -2 * part, 0.1F * part, 0};
    std::vector<float> slice = gradient, sum(4);
    std::vector<std::byte> payload(static_cast<std::size_t>(state.payload_bytes(4)));
    state.encode(tensor_view{slice}, tensor_view{payload}, 0);
    state.decode(tensor_view{payload}, tensor_view{sum}, false);
    state.commit();
    CHECK(sum == gradient);
  }
}

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
