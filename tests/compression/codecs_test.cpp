// The codecs that quantise, take signs or choose elements; in trainings: codecs_training_test.cpp.
#include <cstddef>
#include <vector>

#include "../catch.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using compression::code_rounding;
using compression::error_feedback;
using compression::quantise;
using compression::random_k;
using compression::top_k;
using compression::top_k_sampled;

namespace {

using env = environment<precision::fp32>;
static_assert(gatherable_compressor<quantise<8>, env> && gatherable_compressor<compression::sign, env>);
static_assert(summable_compressor<random_k, env> && summable_compressor<error_feedback<random_k>, env>);
static_assert(gatherable_compressor<top_k_sampled, env>);
static_assert(gatherable_compressor<error_feedback<quantise<4>>, environment<precision::bf16, phantom>>);
static_assert(summable_compressor<random_k, environment<precision::bf16, phantom>>);
static_assert(has_payload_elements<compressor_state<error_feedback<random_k>, env>>);
static_assert(has_at_gradient<compressor_state<error_feedback<quantise<8>>, env>>);
static_assert(!has_at_gradient<compressor_state<top_k, env>>);

}  // namespace

TEST_CASE("a seed, the rank and the step decide what a codec draws", "[compression]") {
  std::vector<float> gradient(1000, 0.3F);
  gradient[0] = 1;
  quantise<4>::instance<env> state({}, 1000);
  auto const sent = [&](quantise<4>::instance<env>& from, encoded_gradient const& which) {
    std::vector<std::byte> payload(static_cast<std::size_t>(from.payload_bytes(1000)));
    from.at_gradient(which);
    from.encode(tensor_view{gradient}, tensor_view{payload}, 0);
    return payload;
  };
  auto const first = sent(state, {.step = 3, .bucket = 1, .micro_batch = 0, .rank = 1});
  CHECK(sent(state, {.step = 4, .bucket = 1, .rank = 1}) != first);
  CHECK(sent(state, {.step = 3, .bucket = 2, .rank = 1}) != first);
  CHECK(sent(state, {.step = 3, .bucket = 1, .micro_batch = 1, .rank = 1}) != first);
  CHECK(sent(state, {.step = 3, .bucket = 1, .rank = 0}) != first);
  CHECK(sent(state, {.step = 3, .bucket = 1, .rank = 1}) == first);
  quantise<4>::instance<env> other({.seed = 1}, 1000);
  CHECK(sent(other, {.step = 3, .bucket = 1, .rank = 1}) != first);
}

TEST_CASE("payloads have the bytes that the documentation says", "[compression]") {
  CHECK(quantise<8>::instance<env>({}, 0).payload_bytes(4096) == 4096 + 16 * 4);
  CHECK(quantise<4>::instance<env>({}, 0).payload_bytes(4096) == 2048 + 16 * 4);
  CHECK(quantise<2>::instance<env>({}, 0).payload_bytes(4096) == 1024 + 16 * 4);
  CHECK(compression::sign::instance<env>({}, 0).payload_bytes(4096) == 512 + 8 * 4);
  CHECK(quantise<8>::instance<env>({}, 0).payload_bytes(1) == 64 + 8);
  CHECK(quantise<8>::instance<env>({}, 0).payload_bytes(0) == 0);
  CHECK(random_k::instance<env>({}, 0).payload_elements(1000) == 10);
}

TEST_CASE("invalid descriptions of codecs, and combinations that diverge, are refused", "[compression]") {
  CHECK_THROWS_WITH(
      (quantise<8>{.block = 100}.validate()),
      "trireme::compression::quantise: .block is 100; it must be a multiple of 64, so that the codes of a "
      "block fill whole groups of 64 bytes");
  CHECK_THROWS_AS(compression::sign{.block = 0}.validate(), config_error);
  CHECK_THROWS_AS(random_k{.ratio = 0}.validate(), config_error);
  CHECK_THROWS_AS(top_k_sampled{.samples = 0}.validate(), config_error);
  CHECK_THROWS_AS(error_feedback<quantise<2>>{}.validate(), config_error);
  CHECK_NOTHROW(error_feedback<quantise<2>>{.inner = {.rounding = code_rounding::nearest}}.validate());
  CHECK_THROWS_AS(error_feedback<random_k>{.inner = {.unbiased = true}}.validate(), config_error);
  CHECK_THROWS_WITH(error_feedback<top_k>{.decay = 1.5F}.validate(),
                    "trireme::compression::error_feedback: .decay is 1.5; it must be in [0, 1]");
}

TEST_CASE("a decay multiplies the residual that is added", "[compression]") {
  error_feedback<top_k>::instance<env> state({.inner = {.ratio = 0.25F}, .decay = 0.5F}, {4, {}});
  auto const told = [&](std::vector<float> slice) {
    std::vector<std::byte> payload(static_cast<std::size_t>(state.payload_bytes(4)));
    state.encode(tensor_view{slice}, tensor_view{payload}, 0);
    state.commit();
    std::vector<float> out(4);
    state.decode(tensor_view{payload}, tensor_view{out}, false);
    return out;
  };
  CHECK(told({8, 4, 0, 0}) == std::vector<float>{8, 0, 0, 0});
  CHECK(told({0, 0, 0, 0}) == std::vector<float>{0, 2, 0, 0});
  CHECK(told({0, 0, 0, 1}) == std::vector<float>{0, 0, 0, 1});
}

TEST_CASE("a gap between tensors has no residual, because checkpoints contain none", "[compression]") {
  parameter_info const info{.name = "w", .extents = {500}};
  using state = error_feedback<compression::sign>::instance<env>;
  state whole(error_feedback<compression::sign>{}, {512, {{&info, 0}}});
  state resumed(error_feedback<compression::sign>{}, {512, {{&info, 0}}});
  auto const told = [](state& from) {
    std::vector<float> slice(512);
    for (std::size_t i = 0; i < 500; ++i) slice[i] = static_cast<float>(i) - 200;
    std::vector<std::byte> payload(static_cast<std::size_t>(from.payload_bytes(512)));
    from.encode(tensor_view{slice}, tensor_view{payload}, 0);
    from.commit();
    return payload;
  };
  static_cast<void>(told(whole));
  std::vector<float> saved;
  whole.visit_state(state_scope::kept, [&](auto const&, auto const&, auto residual) {
    for (std::int64_t i = 0; i < residual.size(); ++i) saved.push_back(residual[i]);
  });
  resumed.visit_state(state_scope::kept, [&](auto const&, auto const&, auto residual) {
    for (std::int64_t i = 0; i < residual.size(); ++i) residual[i] = saved[static_cast<std::size_t>(i)];
  });
  CHECK(told(resumed) == told(whole));
  CHECK(told(resumed) == told(whole));
}

TEST_CASE("codecs are printed as their source", "[compression]") {
  CHECK(to_string(quantise<4>{}) ==
        "compression::quantise<4>{.block = 256, .rounding = compression::code_rounding::stochastic, .seed = 0}");
  CHECK(to_string(compression::sign{}) == "compression::sign{.block = 512}");
  CHECK(to_string(random_k{}) == "compression::random_k{.ratio = 0.01f, .unbiased = false, .seed = 0}");
  CHECK(to_string(top_k_sampled{}) == "compression::top_k_sampled{.ratio = 0.01f, .samples = 16384}");
  CHECK(to_string(error_feedback<compression::sign>{.decay = 0.5F}) ==
        "compression::error_feedback<compression::sign>{.inner = compression::sign{.block = 512}, .decay = 0.5f}");
}
