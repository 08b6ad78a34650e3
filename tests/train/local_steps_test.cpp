// test-sanitize: none
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

// Strategies that exchange less often than every step, or apply exchanged values later. policies_test.cpp tests that
// they resume bit for bit and match their plans.

using namespace trireme;

namespace {

nn::mlp const model{.hidden = {24, 16}};
auto const sine = data::function([](float x) { return std::sin(x); }, {.samples = 96});
optim::sgd const plain_steps{.learning_rate = 0.05, .momentum = 0, .clip = 1};
optim::adamw const adaptive{.learning_rate = 1e-2, .clip = 0.5};
fit_options until(std::int64_t step) { return {.steps = 24, .batch = 16, .stop_after = step}; }

struct outcome {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  std::uint64_t hash = 0;
};

template <class Optimizer, class Parallel>
outcome train(int ranks, Optimizer const& optimizer, Parallel const& parallel, std::int64_t steps) {
  outcome out;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(model, optimizer, world, parallel);
    trainer.initialise(3);
    outcome mine;
    trainer.on_step([&](step_report const& done) {
      mine.losses.push_back(done.loss);
      mine.norms.push_back(done.norm);
    });
    trainer.fit(sine, until(steps));
    for (auto const& entry : trainer.exchange().plan().entries()) {
      for (auto const value : trainer.exchange().parameter_values(entry).span()) mine.weights.push_back(value);
    }
    mine.hash = trainer.state_hash();
    if (world.rank() == 0) out = std::move(mine);
  });
  return out;
}

double furthest(std::vector<float> const& a, std::vector<float> const& b) {
  REQUIRE(a.size() == b.size());
  REQUIRE(!a.empty());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i] - b[i])));
  return most;
}

}  // namespace

TEST_CASE("diloco with a period of one and inner SGD takes the steps of data", "[train][diloco]") {
  watchdog const guard("diloco every step");
  optim::sgd const unclipped{.learning_rate = 0.05, .momentum = 0};  // each rank has its own norm
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    auto const same = train(ranks, unclipped, parallel::data{}, 20);
    auto const local =
        train(ranks, unclipped, parallel::diloco{.period = 1, .outer_learning_rate = 1, .outer_momentum = 0}, 20);
    CHECK(furthest(same.weights, local.weights) < 2e-6);
    for (std::size_t i = 0; i < 20; ++i) CHECK(local.losses[i] == Approx(same.losses[i]).epsilon(1e-5));
  }
}

TEST_CASE("diloco sends in every period what data sends in a step", "[train][diloco]") {
  watchdog const guard("bytes of diloco");
  auto const sent = [](auto const& parallel) {
    std::uint64_t bytes = 0;
    launch(comm::threads{.ranks = 2}, [&](auto& world) {
      auto trainer = make_trainer(model, adaptive, world, parallel);
      bytes = plan(trainer, sine, {.samples = 16}).bytes_sent();
    });
    return bytes;
  };
  auto const vote = sent(parallel::zero<1>{});  // between threads nothing else is sent
  CHECK(sent(parallel::diloco{.period = 10}) < 10 * vote + 3 * sent(parallel::data{}));
}

TEST_CASE("ranks of diloco differ between outer steps and meet in them", "[train][diloco]") {
  watchdog const guard("diloco meets");
  launch(comm::threads{.ranks = 3}, [](auto& world) {
    auto trainer = make_trainer(model, adaptive, world, parallel::diloco{.period = 4});
    std::vector<bool> equal;
    trainer.on_step([&](step_report const&) {
      std::vector<std::uint64_t> hashes(3);
      hashes[static_cast<std::size_t>(world.rank())] = trainer.exchange().hash_of_parameters();
      world.all_gather(tensor_view<std::uint64_t>(hashes));
      equal.push_back(hashes[0] == hashes[1] && hashes[1] == hashes[2]);
    });
    trainer.fit(sine, {.steps = 9, .batch = 18});
    if (world.rank() == 0)
      CHECK(equal == std::vector<bool>{false, false, false, true, false, false, false, true, false});
  });
  auto const far = train(4, adaptive, parallel::diloco{.period = 8}, 24);
  CHECK(far.losses.back() < 0.5 * far.losses.front());
}

TEST_CASE("a parameter server without staleness is zero<1> bit for bit", "[train][parameter_server]") {
  watchdog const guard("synchronous server");
  for (int const ranks : {1, 2, 3, 4}) {
    CHECK(train(ranks, adaptive, parallel::parameter_server{}, 20).hash ==
          train(ranks, adaptive, parallel::zero<1>{}, 20).hash);
  }
}

TEST_CASE("a stale server applies what was pushed so many steps ago", "[train][parameter_server]") {
  watchdog const guard("stale server");
  for (int const stale : {1, 3}) {
    auto const out = train(2, plain_steps, parallel::parameter_server{.staleness = stale}, 20);
    auto const synchronous = train(2, plain_steps, parallel::parameter_server{}, 20);
    for (int i = 0; i <= stale; ++i) {  // nothing is applied earlier
      auto const at = static_cast<std::size_t>(i);
      if (i == 0) CHECK(out.losses[at] == synchronous.losses[at]);
    }
    CHECK(out.losses[1] != synchronous.losses[1]);
    // The same numbers on any number of ranks, since sums and votes are the same.
    CHECK(furthest(out.weights, train(1, plain_steps, parallel::parameter_server{.staleness = stale}, 20).weights) <
          1e-6);
  }
  auto const out = train(2, adaptive, parallel::parameter_server{.staleness = 2}, 24);
  CHECK(out.losses.back() < 0.5 * out.losses.front());
}

TEST_CASE("impossible numbers of a strategy are refused", "[train]") {
  CHECK(contains(sentence_of([&] { train(1, adaptive, parallel::diloco{.period = 0}, 1); }),
                 "diloco: .period = 0; set the number of steps between outer steps"));
  CHECK(contains(sentence_of([&] { train(1, adaptive, parallel::parameter_server{.staleness = -1}, 1); }),
                 ".staleness = -1; set a number of steps from 0"));
}
