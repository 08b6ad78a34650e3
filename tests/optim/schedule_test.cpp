#include "trireme/optim/schedule.hpp"

#include "../catch.hpp"

using namespace trireme;
using optim::rate_at;

TEST_CASE("an empty schedule gives the optimizer's own rate", "[optim]") {
  CHECK(rate_at({}, 0.5, 0) == 0.5);
  CHECK(rate_at({}, 0.5, 1000000) == 0.5);
}

TEST_CASE("a constant schedule warms up in equal steps and stays", "[optim]") {
  optim::schedule const plan = optim::constant{.peak = 1, .warmup = 4};
  CHECK(rate_at(plan, 9, 0) == 0.25);
  CHECK(rate_at(plan, 9, 3) == 1);
  CHECK(rate_at(plan, 9, 4) == 1);
  CHECK(rate_at(plan, 9, 400) == 1);
}

TEST_CASE("linear and cosine schedules go from peak to floor, and stay there", "[optim]") {
  optim::schedule const straight = optim::linear{.peak = 1, .warmup = 10, .total = 110, .floor = 0.2};
  optim::schedule const curved = optim::cosine{.peak = 1, .warmup = 10, .total = 110, .floor = 0.2};
  for (auto const& plan : {straight, curved}) {
    CHECK(rate_at(plan, 0, 0) == Approx(0.1));
    CHECK(rate_at(plan, 0, 9) == 1);
    CHECK(rate_at(plan, 0, 10) == 1);
    CHECK(rate_at(plan, 0, 60) == Approx(0.6));
    CHECK(rate_at(plan, 0, 110) == Approx(0.2));
    CHECK(rate_at(plan, 0, 1000) == Approx(0.2));
  }
  CHECK(rate_at(straight, 0, 35) == Approx(0.8));
  CHECK(rate_at(curved, 0, 35) == Approx(0.2 + 0.8 * 0.8535533906));
  for (std::int64_t step = 11; step < 110; ++step) CHECK(rate_at(curved, 0, step) < rate_at(curved, 0, step - 1));
}

TEST_CASE("a schedule without room for its descent is at its floor after the warm-up", "[optim]") {
  CHECK(rate_at(optim::cosine{.peak = 1, .warmup = 5, .total = 5, .floor = 0.1}, 0, 5) == Approx(0.1));
  CHECK(rate_at(optim::linear{.peak = 1, .warmup = 0, .total = 0, .floor = 0.1}, 0, 0) == Approx(0.1));
}

TEST_CASE("schedules are printed as their source", "[optim]") {
  CHECK(to_string(optim::schedule{}) == "{}");
  CHECK(to_string(optim::schedule(optim::constant{.peak = 0.5, .warmup = 2})) ==
        "optim::constant{.peak = 0.5, .warmup = 2}");
  CHECK(to_string(optim::schedule(optim::cosine{.peak = 0.5, .warmup = 2, .total = 10, .floor = 0})) ==
        "optim::cosine{.peak = 0.5, .warmup = 2, .total = 10, .floor = 0}");
}
