// test-sanitize: none
#include "../support/training.hpp"
#include "trireme/compression/compression.hpp"

using namespace trireme;
using compression::error_feedback;
using compression::top_k;

TEST_CASE("top_k of everything equals no compression bit for bit", "[compression]") {
  for (int const ranks : {1, 3}) {
    auto const hash = [&](auto const&... policies) {
      return toy::twelve_steps.on(ranks, toy::steady, policies...).back().hash;
    };
    auto const plain = hash();
    CHECK(hash(top_k{.ratio = 1}) == plain);
    CHECK(hash(parallel::zero<1>{}, top_k{.ratio = 1}) == plain);
  }
}

TEST_CASE("compressed gradients give data and zero<1> the same weights, and still learn", "[compression]") {
  for (int const ranks : {1, 2, 3}) {
    INFO("ranks " << ranks);
    auto const same_and_learning = [&](auto const& compressor) {
      auto const data = toy::twelve_steps.on(ranks, toy::adaptive, compressor).back();
      auto const zero = toy::twelve_steps.on(ranks, toy::adaptive, parallel::zero<1>{}, compressor).back();
      CHECK(zero.weights == data.weights);
      CHECK(data.losses.back() < data.losses.front());
    };
    same_and_learning(compression::cast<bf16>{});
    same_and_learning(error_feedback<top_k>{.inner = {.ratio = 0.1F}});
    same_and_learning(error_feedback<compression::cast<bf16>>{});
  }
}

TEST_CASE("gradients rounded to bfloat16 stay close to unrounded ones", "[compression]") {
  auto const plain = toy::twelve_steps.on(2, toy::steady).back();
  auto const rounded = toy::twelve_steps.on(2, toy::steady, compression::cast<bf16>{}).back();
  CHECK(toy::distance(plain.losses, rounded.losses) < 1e-2);
}
