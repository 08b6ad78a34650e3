#include <cstdint>

#include "../support/training.hpp"
#include "../watchdog.hpp"

using namespace trireme;

namespace {

/// The state after some steps of a whole trainer, with dropout and clipping; the last batch of an epoch has fewer
/// samples than micro-batches.
template <class Parallel>
std::uint64_t state(int ranks, Parallel const& parallel) {
  static auto const training = toy::of_gpt({.steps = 5, .batch = 20, .micro_batches = 8});
  return training.on(ranks, optim::adamw{.learning_rate = 1e-2, .clip = 0.1}, parallel).front().hash;
}

}  // namespace

TEST_CASE("a reproducible trainer has the same state on 1, 2, 4 and 8 ranks under data and zero", "[train]") {
  watchdog const guard("reproducible trainers");
  auto const expected = state(1, parallel::data{.reproducible = true});
  CHECK(state(1, parallel::data{}) != expected);
  for (int const ranks : {1, 2, 4, 8}) {
    INFO(ranks << " ranks");
    CHECK(state(ranks, parallel::data{.reproducible = true}) == expected);
    CHECK(state(ranks, parallel::zero<1>{.reproducible = true}) == expected);
    CHECK(state(ranks, parallel::zero<2>{.reproducible = true}) == expected);
    CHECK(state(ranks, parallel::zero<3>{.reproducible = true}) == expected);
  }
}
