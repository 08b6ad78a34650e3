// test-ranks: 2 3
#include "tensor_cases.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;
using namespace tensor_cases;

TEST_CASE("layers shared by ranks of MPI train as on one rank", "[parallel][tensor][mpi]") {
  watchdog const guard("tensor parallelism over MPI");
  auto const training = twenty_steps(odder);
  comm::self_world self;
  auto const exact = training.alone(precision::fp64{}, decaying, layers_shared(false));
  auto const single = training.alone(toy::steady, layers_shared(false));
  auto const expected = answer(self, odder, precision::fp64{}, decaying, layers_shared(false));
  launch(comm::mpi{}, [&](auto& world) {
    for (bool const cuts_rows : {false, true}) {
      auto const how = layers_shared(cuts_rows);
      check(training.train(world, precision::fp64{}, decaying, how), exact, {1e-10, 1e-10, 1e-10});
      CHECK(toy::distance(answer(world, odder, precision::fp64{}, decaying, how), expected) < 1e-10);
      check(training.train(world, toy::steady, how), single, {1e-5, 1e-5, 1e-5});
    }
  });
}
