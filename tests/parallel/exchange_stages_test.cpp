// test-sanitize: thread
#include <cstdint>
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
optim::adamw const clipped{.rate = 1e-2, .clip = 0.1};
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
  auto const expected =
      train_on<precision::bf16>(1, parallel::data{.reproducible = true}, clipped, in_a_tree).front();
  equals<precision::bf16>(expected, parallel::zero<1>{.reproducible = true});
  equals<precision::bf16>(expected, parallel::zero<3>{.reproducible = true});
}
