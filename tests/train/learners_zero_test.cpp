// test-sanitize: none
// As learners_test.cpp, with parallel::zero<2> and zero<3> within a learner.
#include "learners.hpp"

using namespace learners;

TEST_CASE("learners that shard gradients or parameters train as learners of one rank each", "[train][learners]") {
  watchdog guard("learners that shard");
  auto const alone = ten_steps.on(2, toy::steady, nesterov).front();
  check(guard, parallel::zero<2>{}, alone, nesterov,
        {{.ways = 2}, {.context = 2}, {.ways = 2, .tensor = 3}, {.ways = 2, .context = 2}});
  check(guard, parallel::zero<3>{}, alone, nesterov, {{.ways = 2}, {.ways = 2, .tensor = 3}});
}
