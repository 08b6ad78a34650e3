// test-sanitize: thread
#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "exchange_training.hpp"

using namespace trireme;
using exchange_training::outcome;
using exchange_training::plan;
using exchange_training::train_on;

namespace {

template <class Strategy>
void equals_serial(outcome const& serial, Strategy const& strategy) {
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(to_string(strategy) << " on " << ranks << " ranks");
    auto const all = train_on(ranks, strategy, toy::steady);
    for (auto const& each : all) {
      CHECK(toy::distance(serial.weights, each.weights) < 1e-5);
      CHECK(toy::distance(serial.norms, each.norms) < 1e-5);
      CHECK(toy::distance(serial.losses, each.losses) < 1e-5);
      CHECK(each.weights == all[0].weights);
      CHECK(each.norms == all[0].norms);
      CHECK(each.hash == all[0].hash);
    }
  }
}

// Bits: of weights after some steps of adamw with clipping and dropout, where the last batches of an epoch have fewer
// samples than micro-batches.
optim::adamw const clipped{.learning_rate = 1e-2, .clip = 0.1};
plan const in_a_tree{.steps = 5, .batches = {.batch = 20, .micro_batches = 8, .seed = 7, .prefetch = 0}};

template <class Precision = precision::fp32, class Strategy>
void equals(outcome const& expected, Strategy const& strategy) {
  for (int const ranks : {1, 2, 4, 8}) {
    INFO(to_string(strategy) << " on " << ranks << " ranks");
    auto const all = train_on<Precision>(ranks, strategy, clipped, in_a_tree);
    CHECK(all.back().weights == expected.weights);
    CHECK(all.back().norms == expected.norms);
  }
}

}  // namespace

TEST_CASE("every stage of zero equals serial training over 20 steps on 1 to 4 ranks", "[parallel][exchange]") {
  watchdog const guard("every stage");
  auto const serial = train_on(1, parallel::data{}, toy::steady).front();
  REQUIRE(serial.losses.size() == 20);
  REQUIRE(serial.losses.back() < serial.losses.front());
  equals_serial(serial, parallel::data{.bucket_bytes = 8192});
  equals_serial(serial, parallel::zero<1>{.bucket_bytes = 8192});
  equals_serial(serial, parallel::zero<2>{.bucket_bytes = 8192});
  equals_serial(serial, parallel::zero<3>{.bucket_bytes = 8192});
  equals_serial(serial, parallel::zero<3>{});
}

TEST_CASE("reproducible sums give the same bits on 1, 2, 4 and 8 ranks at every stage", "[parallel][exchange]") {
  watchdog const guard("reproducible");
  auto const expected = train_on(1, parallel::data{.reproducible = true}, clipped, in_a_tree).front();
  REQUIRE(expected.norms.front() > clipped.clip);
  equals(expected, parallel::data{.bucket_bytes = 8192, .reproducible = true});
  equals(expected, parallel::zero<1>{.reproducible = true});
  equals(expected, parallel::zero<2>{.bucket_bytes = 8192, .reproducible = true});
  equals(expected, parallel::zero<3>{.bucket_bytes = 8192, .reproducible = true});
  auto const usual = train_on(1, parallel::data{}, clipped, in_a_tree).front();
  CHECK(usual.weights != expected.weights);  // another order of sums: the test can tell
}

TEST_CASE("reproducible sums give the same bits in bfloat16 too", "[parallel][exchange]") {
  watchdog const guard("reproducible bfloat16");
  auto const expected = train_on<precision::bf16>(1, parallel::data{.reproducible = true}, clipped, in_a_tree).front();
  equals<precision::bf16>(expected, parallel::zero<1>{.reproducible = true});
  equals<precision::bf16>(expected, parallel::zero<3>{.reproducible = true});
}

namespace {

/// Bytes of the buffers that units borrow, by the layout alone: those of two neighbours at a time; with `around`, the
/// last and the first are neighbours too. `borrowed` are the elements of what a unit borrows.
std::int64_t pooled(std::vector<std::vector<std::int64_t>> const& borrowed, bool around) {
  auto const size_class = [](std::int64_t n) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n) - 1));
  };
  std::map<int, std::pair<std::int64_t, std::int64_t>> most;  // class -> (largest, number)
  for (std::size_t u = 0; u < borrowed.size(); ++u) {
    auto both = borrowed[u];
    auto const next = u + 1 < borrowed.size() ? u + 1 : 0;
    if (next != 0 || around) both.insert(both.end(), borrowed[next].begin(), borrowed[next].end());
    std::map<int, std::int64_t> number;
    for (auto const n : both) {
      auto& [largest, count] = most[size_class(n)];
      largest = std::max(largest, n);
      count = std::max(count, ++number[size_class(n)]);
    }
  }
  std::int64_t sum = 0;
  for (auto const& [which, found] : most) sum += found.first * found.second;
  return sum * 4;
}

}  // namespace

TEST_CASE("the memory of every stage is what the layout says, and falls with the number of ranks",
          "[parallel][exchange]") {
  watchdog const guard("memory");
  plan what{.steps = 2};
  what.model.layers = 6;
  staged_engine<environment<precision::fp32>> const engine(what.model);
  std::vector<parameter_info> infos;
  for (auto const* use : engine.uses()) infos.push_back(use->info);
  for (int const ranks : {1, 2, 4}) {
    INFO(ranks << " ranks");
    parallel::layout const units(infos, 2048, ranks, engine.unit_ends());
    std::int64_t n = 0;
    for (auto const& bucket : units.buckets()) n += bucket.elements;
    auto const table = units.buckets()[static_cast<std::size_t>(units.bucket_of_use(0))].elements;  // used twice
    std::vector<std::vector<std::int64_t>> borrowed;
    for (auto const& unit : units.units()) {
      auto& sizes = borrowed.emplace_back();
      for (int const b : unit.buckets) sizes.push_back(units.buckets()[static_cast<std::size_t>(b)].elements);
    }
    auto const gradients = pooled(borrowed, true);
    auto const values = pooled(borrowed, false);
    auto const p = static_cast<std::int64_t>(ranks);
    std::int64_t const bytes = 2048 * 4;
    auto const second = train_on(ranks, parallel::zero<2>{.bucket_bytes = bytes}, toy::steady, what).front().memory;
    auto const third = train_on(ranks, parallel::zero<3>{.bucket_bytes = bytes}, toy::steady, what).front().memory;
    CHECK(second == exchange_memory{.parameters = 4 * n, .gradients = 4 * (n + table) / p, .buffers = gradients});
    CHECK(third ==
          exchange_memory{.parameters = 4 * n / p, .gradients = 4 * (n + table) / p, .buffers = gradients + values});
    auto const half = train_on<precision::bf16>(ranks, parallel::zero<3>{.bucket_bytes = bytes}, toy::steady, what);
    CHECK(half.front().memory == exchange_memory{.parameters = 2 * n / p,
                                                 .masters = 4 * n / p,
                                                 .gradients = 4 * (n + table) / p,
                                                 .buffers = gradients + values / 2});

    parallel::layout const whole(infos, 2048, ranks);
    n = 0;
    for (auto const& bucket : whole.buckets()) n += bucket.elements;
    exchange_memory const all{.parameters = 4 * n, .gradients = 4 * (n + table)};
    CHECK(train_on(ranks, parallel::data{.bucket_bytes = bytes}, toy::steady, what).front().memory == all);
    CHECK(train_on(ranks, parallel::zero<1>{.bucket_bytes = bytes}, toy::steady, what).front().memory == all);
  }
}
