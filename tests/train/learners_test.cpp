// test-sanitize: none
// Whatever axes a learner of parallel::diloco has within, training is that of learners of one rank each.
// learners_zero_test.cpp has zero<2> and zero<3>, learners_serial_test.cpp a serial reference, learners_state_test.cpp
// checkpoints, plans and compressors.
#include "learners.hpp"

#include "../watchdog.hpp"

using namespace learners;

TEST_CASE("learners of several ranks train as learners of one rank each", "[train][learners]") {
  watchdog const guard("learners");
  parallel::data const inner;
  auto const alone = fourteen_steps.on(2, toy::steady, mesh_of(inner, {}, nesterov)).front();
  check(inner, alone, nesterov,
        {{.ways = 2},
         {.ways = 4},
         {.stages = 2},
         {.context = 2},
         {.tensor = 3},
         {.ways = 2, .stages = 2},
         {.stages = 2, .context = 2},
         {.ways = 2, .tensor = 3}});
  auto streamed = nesterov;
  streamed.period = 6, streamed.fragments = 3, streamed.delay = 4;
  auto const in_parts = fourteen_steps.on(2, toy::steady, mesh_of(inner, {}, streamed)).front();
  check(inner, in_parts, streamed, {{.ways = 2}, {.stages = 2}, {.ways = 2, .tensor = 3}});
  // One learner is the training that there would be without an outer step.
  auto once = nesterov;
  once.ways = 1, once.outer_learning_rate = 1, once.outer_momentum = 0;
  auto const one = fourteen_steps.on(2, toy::steady, mesh_of(inner, {.ways = 2}, once)).front();
  CHECK(toy::distance(one.losses, fourteen_steps.alone(toy::steady, parallel::mesh{parallel::data{}}).losses) < 1e-5);
}
