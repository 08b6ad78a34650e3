// test-sanitize: none
// Learners of several ranks are serial trainings that meet every few steps.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../support/policy_cases.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

nn::mlp const model{.hidden = {24, 16}};
optim::sgd const inner{.learning_rate = 0.05, .momentum = 0.9};
constexpr std::int64_t batch = 16, steps = 13;

/// Samples of a step for one of some equal parts of its batch.
struct part_of_batch {
  std::vector<float> x, y;
  part_of_batch(std::int64_t step, int part, int parts) {
    for (auto i = part * batch / parts; i < (part + 1) * batch / parts; ++i) {
      x.push_back(static_cast<float>(std::fmod(0.37 * static_cast<double>(step * batch + i), 6.0) - 3));
      y.push_back(std::sin(x.back()));
    }
  }
  [[nodiscard]] samples all() const {
    auto const n = static_cast<std::int64_t>(x.size());
    return make_samples(tensor_view<float const>(x.data(), {n, 1}), tensor_view<float const>(y.data(), {n, 1}));
  }
};

using weights = std::map<std::string, std::vector<float>>;

template <class Trainer>
weights weights_of(Trainer& trainer) {
  weights all;
  trainer.for_each_parameter([&](std::string const& name, shape const&, std::span<float const> values) {
    all[name].assign(values.begin(), values.end());
  });
  return all;
}

template <class Inner>
weights trained(int ranks, parallel::diloco const& outer, Inner const& within) {
  weights out;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(model, inner, world, parallel::mesh{outer, within});
    trainer.initialise(3);
    for (std::int64_t s = 0; s < steps; ++s) trainer.step(part_of_batch(s, world.rank(), ranks).all());
    auto mine = weights_of(trainer);
    if (world.rank() == 0) out = mine;
  });
  return out;
}

/// Two trainers of one process take their halves of each batch; every few steps the mean of what they have changed is
/// the gradient of a Nesterov step. @returns the first one's weights.
weights simulated(parallel::diloco const& outer) {
  comm::self_world one, two;
  auto first = make_trainer(model, inner, one), second = make_trainer(model, inner, two);
  first.initialise(3);
  second.initialise(3);
  auto values = weights_of(first), velocity = values;
  for (auto& each : velocity) each.second.assign(each.second.size(), 0.0F);
  for (std::int64_t s = 0; s < steps; ++s) {
    first.step(part_of_batch(s, 0, 2).all());
    second.step(part_of_batch(s, 1, 2).all());
    if ((s + 1) % outer.period != 0) continue;
    auto const a = weights_of(first), b = weights_of(second);
    auto const momentum = static_cast<float>(outer.outer_momentum);
    for (auto& [name, w] : values) {
      for (std::size_t i = 0; i < w.size(); ++i) {
        auto const mean = ((w[i] - a.at(name)[i]) + (w[i] - b.at(name)[i])) / 2;
        auto& v = velocity.at(name)[i];
        v = momentum * v + mean;
        w[i] -= static_cast<float>(outer.outer_learning_rate) * (mean + momentum * v);
      }
    }
    for (auto* const each : {&first, &second}) {
      each->change_parameters([&](std::string const& name, shape const&, std::span<float> to) {
        std::copy(values.at(name).begin(), values.at(name).end(), to.begin());
      });
    }
  }
  return weights_of(first);
}

double furthest(weights const& a, weights const& b) {
  double most = a.size() == b.size() && !a.empty() ? 0 : 1;
  for (auto const& [name, values] : a) {
    for (std::size_t i = 0; i < values.size(); ++i)
      most = std::max(most, static_cast<double>(std::abs(values[i] - b.at(name)[i])));
  }
  return most;
}

}  // namespace

TEST_CASE("learners are serial trainings that meet every few steps", "[train][learners]") {
  watchdog const guard("serial learners");
  parallel::diloco const nesterov{.period = 4, .bucket_bytes = 2048, .ways = 2};
  parallel::diloco const averaged{
      .period = 3, .outer_learning_rate = 1, .outer_momentum = 0, .bucket_bytes = 2048, .ways = 2};
  for (auto const& outer : {nesterov, averaged}) {
    INFO(describe(outer));
    auto const expected = simulated(outer);
    for (int const ranks : {2, 4, 8}) {
      CHECK(furthest(trained(ranks, outer, parallel::data{.bucket_bytes = 2048}), expected) < 1e-6);
      CHECK(furthest(trained(ranks, outer, parallel::zero<1>{.bucket_bytes = 2048}), expected) < 1e-6);
    }
  }
}

TEST_CASE("reproducible learners have the same bits for any number of ranks", "[train][learners]") {
  watchdog const guard("reproducible learners");
  parallel::diloco const outer{.period = 4, .bucket_bytes = 2048, .ways = 2};
  auto const hash = [&](int ranks, auto within) {
    within.reproducible = true;
    std::uint64_t out = 0;
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(model, inner, world, parallel::mesh{outer, within});
      trainer.fit(policy_cases::on_mlp.data, {.steps = 10, .batch = 16, .micro_batches = 16});
      auto const mine = trainer.state_hash();
      if (world.rank() == 0) out = mine;
    });
    return out;
  };
  auto const expected = hash(2, parallel::data{});
  for (int const ranks : {4, 8, 16}) CHECK(hash(ranks, parallel::data{}) == expected);
  for (int const ranks : {2, 4, 8}) CHECK(hash(ranks, parallel::zero<1>{}) == expected);
}

TEST_CASE("learners with master weights resume bit for bit and equal their plan", "[train][learners]") {
  watchdog const guard("learners in bfloat16");
  parallel::mesh const mesh{parallel::diloco{.period = 5, .bucket_bytes = 2048, .ways = 2}, parallel::data{}};
  CHECK(policy_cases::on_mlp.holds_by_threads(4, 0.95, inner, mesh, precision::bf16{}) == "");
}
