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
