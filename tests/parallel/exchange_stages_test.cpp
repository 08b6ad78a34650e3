// test-sanitize: thread
#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "../support/training.hpp"
#include "../watchdog.hpp"

using namespace trireme;

namespace {

auto const twenty_steps = toy::of_gpt({.steps = 20, .batch = 10, .micro_batches = 6});

template <class Strategy>
void equals_serial(toy::outcome const& serial, Strategy const& strategy) {
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(to_string(strategy) << " on " << ranks << " ranks");
    auto const all = twenty_steps.on(ranks, toy::steady, strategy);
    for (auto const& each : all) {
      toy::check_near(each, serial, 1e-5, 1e-5);
      toy::check_equal(each, all[0]);
    }
  }
}

// Bits: of weights after some steps of adamw with clipping and dropout, where the last batches of an epoch have fewer
// samples than micro-batches.
optim::adamw const clipped{.learning_rate = 1e-2, .clip = 0.1};
auto const in_a_tree = toy::of_gpt({.steps = 5, .batch = 20, .micro_batches = 8});

template <class Strategy, class Precision = precision::fp32>
void equals(toy::outcome const& expected, Strategy const& strategy, Precision const& precision = {}) {
  for (int const ranks : {1, 2, 4, 8}) {
    INFO(to_string(strategy) << " on " << ranks << " ranks");
    auto const found = in_a_tree.on(ranks, clipped, strategy, precision).back();
    CHECK((found.state == expected.state));
    CHECK(found.norms == expected.norms);
    CHECK(found.hash == expected.hash);
  }
}

}  // namespace

TEST_CASE("every stage of zero equals serial training over 20 steps on 1 to 4 ranks", "[parallel][exchange]") {
  watchdog const guard("every stage");
  auto const serial = twenty_steps.on(1, toy::steady, parallel::data{}).front();
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
  auto const expected = in_a_tree.on(1, clipped, parallel::data{.reproducible = true}).front();
  REQUIRE(expected.norms.front() > clipped.clip);
  equals(expected, parallel::data{.bucket_bytes = 8192, .reproducible = true});
  equals(expected, parallel::zero<1>{.reproducible = true});
  equals(expected, parallel::zero<2>{.bucket_bytes = 8192, .reproducible = true});
  equals(expected, parallel::zero<3>{.bucket_bytes = 8192, .reproducible = true});
  auto const usual = in_a_tree.on(1, clipped, parallel::data{}).front();
  CHECK((usual.state != expected.state));  // another order of sums: the test can tell
}

TEST_CASE("reproducible sums give the same bits in bfloat16 too", "[parallel][exchange]") {
  watchdog const guard("reproducible bfloat16");
  auto const expected = in_a_tree.on(1, clipped, parallel::data{.reproducible = true}, precision::bf16{}).front();
  equals(expected, parallel::zero<1>{.reproducible = true}, precision::bf16{});
  equals(expected, parallel::zero<3>{.reproducible = true}, precision::bf16{});
}

namespace {

/// Bytes of the buffers that units borrow, from the layout alone: those of two neighbouring units at a time; with
/// `around`, the last and the first are neighbours too. `borrowed` is the number of elements that a unit borrows.
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

TEST_CASE("the memory of every stage follows the layout, and falls with the number of ranks", "[parallel][exchange]") {
  watchdog const guard("memory");
  auto const what = toy::of_gpt({.steps = 2, .batch = 10, .micro_batches = 6}, toy::with_layers(6));
  auto const memory = [&](int ranks, auto const&... policies) {
    return what.on(ranks, toy::steady, policies...).front().memory;
  };
  staged_engine<environment<precision::fp32>> const engine(what.model);
  std::vector<parameter_info> infos;
  for (auto const* use : engine.uses()) infos.push_back(use->info);
  for (int const ranks : {1, 2, 4}) {
    INFO(ranks << " ranks");
    parallel::bucket_plan const units(infos, 2048, ranks, engine.unit_ends());
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
    CHECK(memory(ranks, parallel::zero<2>{.bucket_bytes = bytes}) ==
          exchange_memory{.parameters = 4 * n, .gradients = 4 * (n + table) / p, .buffers = gradients});
    CHECK(memory(ranks, parallel::zero<3>{.bucket_bytes = bytes}) ==
          exchange_memory{.parameters = 4 * n / p, .gradients = 4 * (n + table) / p, .buffers = gradients + values});
    CHECK(memory(ranks, parallel::zero<3>{.bucket_bytes = bytes}, precision::bf16{}) ==
          exchange_memory{.parameters = 2 * n / p,
                          .masters = 4 * n / p,
                          .gradients = 4 * (n + table) / p,
                          .buffers = gradients + values / 2});

    parallel::bucket_plan const whole(infos, 2048, ranks);
    n = 0;
    for (auto const& bucket : whole.buckets()) n += bucket.elements;
    exchange_memory const all{.parameters = 4 * n, .gradients = 4 * (n + table)};
    CHECK(memory(ranks, parallel::data{.bucket_bytes = bytes}) == all);
    CHECK(memory(ranks, parallel::zero<1>{.bucket_bytes = bytes}) == all);
  }
}
