#include "trireme/train/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

void add(metric::confusion& seen, std::vector<float> const& outputs, std::int64_t width,
         std::vector<std::int32_t> const& targets, shape const& extents) {
  tensor_view<float const> const rows(outputs.data(), {static_cast<std::int64_t>(outputs.size()) / width, width});
  seen.add(rows, erase_type(tensor_view<std::int32_t const>(targets.data(), extents)));
}

/// 37 points of three classes: batches and ranks get unequal numbers of them.
auto points() {
  std::vector<float> x;
  std::vector<std::int32_t> y;
  for (std::int32_t i = 0; i < 37; ++i) {
    x.push_back(static_cast<float>(i % 7) / 7.0F);
    x.push_back(static_cast<float>(i % 5) / 5.0F);
    y.push_back(i % 11 == 0 ? -1 : i % 3);
  }
  return data::in_memory(x, y, {2});
}

nn::mlp_with<nn::loss::cross_entropy> const model{.inputs = 2, .hidden = {8, 8}, .outputs = 3};

/// The outputs of a trained model, counted by these ranks.
template <class World, class... Policies>
std::vector<std::int64_t> counted(World& world, Policies const&... policies) {
  auto const data = points();
  auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.5}, world, policies...);
  trainer.fit(data, {.steps = 5, .batch = 8});
  auto const hash = trainer.state_hash();
  auto [seen, again] = trainer.evaluate(data, 4, metric::confusion(3), metric::confusion(3));
  if (trainer.state_hash() != hash) throw error("evaluate() has changed the state");
  auto const all = seen.counts();
  if (!std::equal(all.begin(), all.end(), again.counts().begin())) throw error("two metrics have other counts");
  return {all.begin(), all.end()};
}

}  // namespace

TEST_CASE("a confusion matrix counts samples by class and predicted class", "[train]") {
  metric::confusion seen(3);
  // Assigned: 0, 0 (the first of equals), 2, 1; the last sample is ignored.
  add(seen, {3, 1, 2, 1, 1, 0, 0, 1, 2, -3, -1, -2, 9, 0, 0}, 3, {0, 1, 2, 2, -1}, {5});
  CHECK(seen.count(0, 0) == 1);
  CHECK(seen.count(1, 0) == 1);
  CHECK(seen.count(2, 2) == 1);
  CHECK(seen.count(2, 1) == 1);
  CHECK(seen.accuracy() == 0.5);
  CHECK(seen.precision(0) == 0.5);
  CHECK(seen.recall(0) == 1);
  CHECK(seen.f1(0) == Approx(2.0 / 3));
  CHECK(seen.f1(1) == 0);
  CHECK(seen.f1(2) == Approx(2.0 / 3));
  CHECK(seen.macro_f1() == Approx(4.0 / 9));
  CHECK(metric::confusion(4).accuracy() == 0);
  CHECK(metric::perplexity(0) == 1);
}

TEST_CASE("one output decides between two classes, and a sequence counts by its last target", "[train]") {
  metric::confusion seen(2);
  add(seen, {0.5F, -0.5F}, 1, {9, 0, 1, 9, 9, 1}, {2, 3});
  CHECK(seen.count(1, 1) == 1);
  CHECK(seen.count(1, 0) == 1);
  std::vector<float> const outputs{1, -1}, targets{1, 0};
  seen.add(tensor_view<float const>(outputs.data(), {2, 1}), erase_type(tensor_view<float const>(targets.data(), {2})));
  CHECK(seen.count(1, 1) == 2);
  CHECK(seen.count(0, 0) == 1);
}

TEST_CASE("a metric refuses unsupported outputs in one sentence", "[train]") {
  CHECK_THROWS_WITH(metric::confusion(1), "trireme::metric::confusion: 1 class; give at least two");
  metric::confusion seen(3);
  CHECK_THROWS_WITH(add(seen, {1, 2}, 2, {0}, {1}), "trireme::metric: the model has 2 outputs for 3 classes");
  CHECK_THROWS_WITH(add(seen, {1, 2, 3}, 3, {3}, {1}), "trireme::metric: target 3 of 3 classes");
  CHECK_THROWS_WITH(add(seen, {1, 2, 3}, 3, {}, {0}),
                    "trireme::metric: the dataset has no targets to compare outputs with");
}

TEST_CASE("every strategy counts each sample once", "[train]") {
  watchdog const guard("metrics of a dataset");
  comm::self_world alone;
  auto const serial = counted(alone);
  std::int64_t all = 0;
  for (auto const each : serial) all += each;
  CHECK(all == 33);
  auto const expect_serial = [&](auto& world, auto const&... policies) {
    if (counted(world, policies...) != serial) throw error(text("rank ", world.rank(), " has other counts"));
  };
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    expect_serial(world);
    expect_serial(world, parallel::zero<3>{});
    expect_serial(world, parallel::mesh{parallel::pipeline<>{.stages = 3}});
  });
  launch(comm::threads{.ranks = 4}, [&](auto& world) {
    expect_serial(world, parallel::mesh{parallel::data{}, parallel::tensor{.ways = 2}});
  });
}

TEST_CASE("an output that is NaN has no class, which is an error on every rank", "[train]") {
  auto const nan = std::nanf("");
  auto const infinity = std::numeric_limits<float>::infinity();
  metric::confusion seen(3);
  CHECK_THROWS_WITH(add(seen, {1, 2, 3, 1, nan, 2}, 3, {0, 1}, {2}),
                    "trireme::metric: output 1 of sample 1 of 2 is NaN, so the model gives no class; check its "
                    "parameters and the inputs");
  add(seen, {1, infinity, 2, nan, nan, nan}, 3, {1, -1}, {2});
  CHECK(seen.count(1, 1) == 1);
  metric::confusion two(2);
  CHECK_THROWS_AS(add(two, {nan}, 1, {1}, {1}), numeric_error);
  add(two, {infinity, -infinity}, 1, {1, 0}, {2});
  CHECK(two.accuracy() == 1);

  watchdog const guard("NaN on one rank");
  launch(comm::threads{.ranks = 3}, [](auto& world) {
    auto x = std::vector<float>(2 * 12, 0.5F);
    x[2 * 5] = std::nanf("");  // in the second batch of four, which one rank has
    data::in_memory const data(x, std::vector<std::int32_t>(12, 1), {2});
    auto trainer = make_trainer(model, optim::sgd{}, world, parallel::zero<3>{});
    std::string said;
    try {
      static_cast<void>(trainer.evaluate(data, 4, metric::confusion(3)));
    } catch (error const& problem) {
      said = problem.what();
    }
    if (said.find("is NaN, so the model gives no class") == said.npos) throw error("said \"" + said + "\"");
    trainer.fit(points(), {.steps = 1, .batch = 8});  // and all ranks continue together
  });
}
