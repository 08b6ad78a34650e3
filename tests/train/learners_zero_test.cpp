// test-sanitize: none
// As learners_test.cpp, with parallel::zero<2>, zero<3> within a learner.
#include "learners.hpp"

#include "../watchdog.hpp"

using namespace learners;

TEST_CASE("learners that shard gradients or parameters train as learners of one rank each", "[train][learners]") {
  watchdog const guard("learners that shard");
  auto const alone = fourteen_steps.on(2, toy::steady, nesterov).front();
  check(parallel::zero<2>{}, alone, nesterov,
        {{.ways = 2}, {.context = 2}, {.ways = 2, .tensor = 3}, {.ways = 2, .context = 2}});
  check(parallel::zero<3>{}, alone, nesterov, {{.ways = 2}, {.ways = 4}, {.ways = 2, .tensor = 3}});
}
