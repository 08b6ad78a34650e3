// test-sanitize: none
// Whatever axes a learner of parallel::diloco has within, training is that of learners of one rank each.
// learners_zero_test.cpp has zero<2> and zero<3>, learners_serial_test.cpp a serial reference, learners_state_test.cpp
// checkpoints, plans and compressors.
#include "learners.hpp"

using namespace learners;

TEST_CASE("learners of several ranks train as learners of one rank each", "[train][learners]") {
  watchdog guard("learners");
  parallel::data const inner;
  auto const alone = ten_steps.on(2, toy::steady, mesh_of(inner, {}, nesterov)).front();
  check(guard, inner, alone, nesterov,
        {{.ways = 2},
         {.stages = 2},
         {.context = 2},
         {.tensor = 3},
         {.ways = 2, .stages = 2},
         {.stages = 2, .context = 2},
         {.ways = 2, .tensor = 3}});
  auto streamed = nesterov;
  streamed.period = 4, streamed.fragments = 2, streamed.delay = 3;
  auto const in_parts = ten_steps.on(2, toy::steady, mesh_of(inner, {}, streamed)).front();
  check(guard, inner, in_parts, streamed, {{.ways = 2}, {.tensor = 3}});
  // (Each stage of a pipeline divides its own tensors into fragments.) One learner is the training that there would be
  // without an outer step.
  auto once = nesterov;
  once.ways = 1, once.outer_learning_rate = 1, once.outer_momentum = 0;
  auto const one = ten_steps.on(2, toy::steady, mesh_of(inner, {.ways = 2}, once)).front();
  CHECK(toy::distance(one.losses, ten_steps.alone(toy::steady, parallel::mesh{parallel::data{}}).losses) < 1e-5);
}
