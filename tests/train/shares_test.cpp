#include "trireme/data/shares.hpp"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/data/function.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/tensor.hpp"

using namespace trireme;

namespace {

// 26 samples: the last batch of an epoch is short.
constexpr std::int64_t how_many_samples = 26;

fit_options options(data::shares shares = {}, std::int64_t stop_after = -1) {
  return {.steps = 8, .batch = 12, .stop_after = stop_after, .shares = std::move(shares)};
}

nn::mlp const small{.inputs = 1, .hidden = {8}, .outputs = 1};
optim::sgd const steady{.learning_rate = 0.1};

auto wave() {
  return data::function([](float x) { return std::sin(x); }, {.samples = how_many_samples});
}

/// y = slope * x + shift, slowly.
struct line {
  int microseconds = 0;                                // for each sample
  std::vector<float> values{0.5F, 0}, gradient{0, 0};  // slope, shift

  void visit_parameters(auto&& visit) { visit("line", tensor_view{values}, tensor_view{gradient}); }
  float forward(trireme::samples const& batch) {
    auto const x = batch.inputs.as<float>();
    auto const y = batch.targets.as<float>();
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds * x.size()));
    auto const each = 1 / static_cast<float>(x.size());
    float loss = 0;
    gradient = {0, 0};
    for (std::int64_t i = 0; i < x.size(); ++i) {
      auto const error = values[0] * x[i] + values[1] - y[i];
      loss += error * error * each;
      gradient[0] += 2 * error * x[i] * each;
      gradient[1] += 2 * error * each;
    }
    return loss;
  }
  void backward(auto&& ready) const { ready("line"); }
};

struct result {
  std::vector<double> losses;
  std::vector<float> values;
  std::uint64_t hash = 0;
};

/// Trains on some threads.
template <class Parallel>
result trained(int ranks, fit_options const& how, Parallel const& parallel) {
  result out;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(small, steady, world, parallel);
    trainer.initialise(3);
    result own;
    trainer.on_step([&](step_report const& done) { own.losses.push_back(done.loss); });
    trainer.fit(wave(), how);
    trainer.for_each_parameter([&](std::string const&, shape const&, std::span<float const> values) {
      own.values.insert(own.values.end(), values.begin(), values.end());
    });
    own.hash = trainer.state_hash();
    if (world.rank() == 0) out = own;
  });
  return out;
}

void check_near(result const& one, result const& other) {
  REQUIRE(one.losses.size() == other.losses.size());
  for (std::size_t i = 0; i < one.losses.size(); ++i) CHECK(std::abs(one.losses[i] - other.losses[i]) < 1e-6);
  REQUIRE(one.values.size() == other.values.size());
  for (std::size_t i = 0; i < one.values.size(); ++i)
    CHECK(static_cast<double>(std::abs(one.values[i] - other.values[i])) < 1e-6);
}

}  // namespace

TEST_CASE("unequal shares on 2 and 3 ranks train like serial training", "[train][shares]") {
  watchdog dog("unequal shares");
  auto const alone = trained(1, options(), parallel::data{});
  auto const two = options({.weights = {2, 1}});
  auto three = options({.weights = {3, 1, 2}});
  check_near(trained(2, two, parallel::data{}), alone);
  check_near(trained(3, three, parallel::data{}), alone);
  check_near(trained(2, two, parallel::zero<1>{}), alone);
  check_near(trained(3, three, parallel::zero<2>{}), alone);
  three.micro_batches = 6;
  check_near(trained(3, three, parallel::zero<2>{}), alone);
  check_near(trained(3, three, parallel::data{}), alone);
  CHECK(trained(2, options({.weights = {5, 5}}), parallel::data{}).hash ==
        trained(2, options(), parallel::data{}).hash);
  check_near(trained(2, options({.weights = {1, 100}}), parallel::zero<2>{}), alone);  // no sample for the first
  check_near(trained(2, options({.measure_every = 2}), parallel::data{}), alone);
}

TEST_CASE("a batch is divided in proportion to the weights", "[train][shares]") {
  std::vector<std::int64_t> const weights{3, 1, 2};
  auto const part = [&](std::int64_t count, int rank) { return data::weighted_split(count, weights, rank); };
  CHECK(part(12, 0) == interval{0, 6});
  CHECK(part(12, 1) == interval{6, 2});
  CHECK(part(12, 2) == interval{8, 4});
  for (std::int64_t count = 0; count < 40; ++count) {
    CHECK(part(count, 0).end() == part(count, 1).first);
    CHECK(part(count, 1).end() == part(count, 2).first);
    CHECK(part(count, 2).end() == count);
  }
  std::vector<std::int64_t> const equal{7, 7, 7};
  for (int rank = 0; rank < 3; ++rank) CHECK(data::weighted_split(31, equal, rank) == data::even_split(31, 3, rank));

  auto const measured = [](std::vector<std::int64_t> const& counts, std::vector<std::int64_t> const& times) {
    return data::weights_for_equal_times(counts, times, 96);
  };
  CHECK(data::weighted_split(96, measured({48, 48}, {100, 200}), 0) == interval{0, 64});
  CHECK(data::weighted_split(96, measured({64, 32}, {100, 100}), 0) == interval{0, 64});
  CHECK(measured({0, 0}, {0, 0}) == std::vector<std::int64_t>{1, 1});
  CHECK(data::weighted_split(96, measured({48, 48}, {1, 1000000}), 1).count >= 1);
  CHECK(data::weighted_split(90, measured({30, 0, 30}, {100, 0, 100}), 1) == interval{30, 30});

  CHECK(to_string(data::shares{}) == "trireme::data::shares{}");
  CHECK(to_string(data::shares{.weights = {2, 1}, .measure_every = 5}) ==
        "trireme::data::shares{.weights = {2, 1}, .measure_every = 5}");
}

TEST_CASE("the loaders of unequal ranks read the samples of an equal one in the same order", "[train][shares]") {
  auto data = wave();
  data::loader whole(data, data::loader_options{.batch = 12, .seed = 5});
  std::vector<std::unique_ptr<data::loader<decltype(data)>>> parts;
  for (int rank = 0; rank < 3; ++rank) {
    data::loader_options const how{.batch = 12, .micro_batches = 6, .seed = 5, .weights = {3, 1, 2}};
    parts.push_back(std::make_unique<data::loader<decltype(data)>>(data, how, rank, 3));
  }
  auto const ids_of = [](data::batch const& batch, std::vector<std::int64_t>& to) {
    for (auto const& each : batch.micro_batches) to.insert(to.end(), each.ids.begin(), each.ids.end());
  };
  for (int step = 0; step < 7; ++step) {
    std::vector<std::int64_t> expected, seen;
    ids_of(whole.next(), expected);
    for (auto const& part : parts) ids_of(part->next(), seen);
    CHECK(seen == expected);
    CHECK(parts.front()->position() == whole.position());
  }
}

TEST_CASE("a run with unequal shares is resumed bit for bit, and on other ranks", "[train][shares]") {
  watchdog dog("resumed shares");
  scratch folder;
  data::shares const given{.weights = {2, 1}};
  auto const straight = trained(2, options(given), parallel::zero<1>{});
  auto const resumed = [&](int ranks, data::shares const& shares) {
    result out;
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(small, steady, world, parallel::zero<1>{});
      trainer.load(folder.path());
      trainer.fit(wave(), options(shares));
      auto const hash = trainer.state_hash();
      if (world.rank() == 0) out.hash = hash;
      trainer.for_each_parameter([&](std::string const&, shape const&, std::span<float const> values) {
        if (world.rank() == 0) out.values.insert(out.values.end(), values.begin(), values.end());
      });
    });
    return out;
  };
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(small, steady, world, parallel::zero<1>{});
    trainer.initialise(3);
    trainer.fit(wave(), options(given, 4));
    trainer.save(folder.path());
  });
  CHECK(resumed(2, given).hash == straight.hash);
  auto on_three = resumed(3, {.weights = {3, 1, 2}});
  on_three.losses = straight.losses;
  check_near(on_three, straight);
  on_three = resumed(3, {});
  on_three.losses = straight.losses;
  check_near(on_three, straight);
}

TEST_CASE("measured shares follow the ranks' speed, and a resumed run continues with them", "[train][shares]") {
  watchdog dog("measured shares");
  scratch folder;
  std::vector<std::int64_t> measured;
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer =
        make_trainer(line{.microseconds = world.rank() == 0 ? 300 : 1500}, steady, world, parallel::zero<2>{});
    trainer.fit(wave(), options({.measure_every = 2}, 4));
    trainer.save(folder.path());
    if (world.rank() == 0) measured = trainer.shares();
  });
  REQUIRE(measured.size() == 2);
  CHECK(measured[0] > 2 * measured[1]);
  auto const resumed = [&](int ranks, data::shares const& shares) {
    std::pair<std::uint64_t, std::vector<std::int64_t>> out;
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(line{}, steady, world, parallel::zero<2>{});
      trainer.load(folder.path());
      if (world.rank() == 0) CHECK(trainer.shares() == measured);
      trainer.fit(wave(), options(shares));
      auto const hash = trainer.state_hash();
      if (world.rank() == 0) out = {hash, trainer.shares()};
    });
    return out;
  };
  auto const continued = resumed(2, {.measure_every = 100});
  CHECK(continued.second == measured);
  CHECK(continued == resumed(2, {.weights = measured}));
  CHECK(resumed(3, {.measure_every = 100}).second == std::vector<std::int64_t>{1, 1, 1});
}

TEST_CASE("shares that do not fit are refused in one sentence", "[train][shares]") {
  watchdog dog("refused shares");
  auto const refused = [&](int ranks, auto const& parallel, data::shares const& shares,
                           std::int64_t micro_batches = 0) {
    std::string out = "accepted";
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(small, steady, world, parallel);
      std::string own = "accepted";
      try {
        auto how = options(shares);
        how.micro_batches = micro_batches;
        trainer.fit(wave(), how);
      } catch (config_error const& problem) {
        own = problem.what();
      }
      if (world.rank() == 0) out = own;
    });
    return out;
  };
  CHECK(refused(2, parallel::data{}, {.weights = {2, 0}}) ==
        "trireme::data::shares: .weights[1] is 0; it must be from 1 to 2147483648");
  CHECK(refused(2, parallel::data{}, {.weights = {-2, 1}}) ==
        "trireme::data::shares: .weights[0] is -2; it must be from 1 to 2147483648");
  CHECK(refused(2, parallel::data{}, {.weights = {2, 1, 1}}) ==
        "trireme::data::shares: 3 weights for 2 ranks that get samples; give one for each");
  CHECK(refused(2, parallel::data{}, {.weights = {2, 1}, .measure_every = -1}) ==
        "trireme::data::shares: .measure_every is -1; it must be at least 0");
  CHECK(refused(2, parallel::data{}, {.weights = {2, 1}}, 3) ==
        "trireme::data::loader: .micro_batches = 3 with shares for 2 ranks; it must be a multiple of them, since each "
        "rank divides its share into the same number");
  CHECK(refused(2, parallel::data{.reproducible = true}, {.weights = {2, 1}}) ==
        "trireme::trainer: fit(): .shares with .reproducible: sums that do not depend on the ranks need micro-batches "
        "of equal shares; leave one of them out");
  std::string const elsewhere =
      "trireme::trainer: fit(): .shares give ranks unequal numbers of samples, which only parallel::data, zero<1> and "
      "zero<2> without other axes support; use one of these, or leave .shares out [shares-need-replicas]";
  CHECK(refused(2, parallel::zero<3>{}, {.weights = {2, 1}}) == elsewhere);
  CHECK(refused(2, parallel::diloco{}, {.measure_every = 2}) == elsewhere);
  CHECK(refused(2, parallel::mesh{parallel::data{}, parallel::tensor{.ways = 2}}, {.weights = {2}}) == elsewhere);
}
