// test-sanitize: none
#include "../support/toy_training.hpp"
#include "trireme/compression/compression.hpp"

using namespace trireme;
using compression::error_feedback;
using compression::top_k;

TEST_CASE("top_k of everything equals no compression bit for bit", "[compression]") {
  for (int const ranks : {1, 3}) {
    auto const plain = toy::train_on(ranks, toy::steady);
    CHECK(toy::train_on(ranks, toy::steady, top_k{.ratio = 1}).hash == plain.hash);
    CHECK(toy::train_on(ranks, toy::steady, parallel::zero<1>{}, top_k{.ratio = 1}).hash == plain.hash);
  }
}

TEST_CASE("compressed gradients give data and zero<1> the same weights, and still learn", "[compression]") {
  for (int const ranks : {1, 2, 3}) {
    INFO("ranks " << ranks);
    auto const same_and_learning = [&](auto const& compressor) {
      auto const data = toy::train_on(ranks, toy::adaptive, compressor);
      CHECK(toy::train_on(ranks, toy::adaptive, parallel::zero<1>{}, compressor).weights == data.weights);
      CHECK(data.losses.back() < data.losses.front());
    };
    same_and_learning(compression::cast<bf16>{});
    same_and_learning(error_feedback<top_k>{.inner = {.ratio = 0.1F}});
    same_and_learning(error_feedback<compression::cast<bf16>>{});
  }
}

TEST_CASE("gradients rounded to bfloat16 stay near those that are not", "[compression]") {
  auto const plain = toy::train_on(2, toy::steady);
  CHECK(toy::distance(plain.losses, toy::train_on(2, toy::steady, compression::cast<bf16>{}).losses) < 1e-2);
}
