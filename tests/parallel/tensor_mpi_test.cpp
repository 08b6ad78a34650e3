// test-ranks: 2 3
#include "../catch.hpp"
#include "tensor_cases.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;
using namespace tensor_cases;

TEST_CASE("layers shared by ranks of MPI train as on one rank", "[parallel][tensor][mpi]") {
  watchdog const guard("tensor parallelism over MPI");
  auto const exact = train_alone<precision::fp64>(odder, adaptive);
  auto const single = train_alone<precision::fp32>(odder, steady);
  launch(comm::mpi{}, [&](auto& world) {
    for (bool const cuts_rows : {false, true}) {
      outcome in_double;
      train<precision::fp64>(world, odder, adaptive, cuts_rows, in_double);
      CHECK(in_double.different == 0);
      CHECK(distance(in_double.answer, exact.answer) < 1e-10);
      CHECK(distance(in_double.losses, exact.losses) < 1e-10);
      CHECK(distance(in_double.norms, exact.norms) < 1e-10);
      CHECK(distance(in_double.weights, exact.weights) < 1e-10);
      outcome in_float;
      train<precision::fp32>(world, odder, steady, cuts_rows, in_float);
      CHECK(in_float.different == 0);
      CHECK(distance(in_float.losses, single.losses) < 1e-5);
      CHECK(distance(in_float.norms, single.norms) < 1e-5);
      CHECK(distance(in_float.weights, single.weights) < 1e-5);
    }
  });
}
