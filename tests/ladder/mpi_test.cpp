// test-ranks: 1 2 3 4
// test-timeout: 300
#include "trireme/comm/mpi.hpp"
#include "../catch.hpp"
#include "../watchdog.hpp"
#include "ladder.hpp"

using namespace std::chrono_literals;
namespace comm = trireme::comm;

TEST_CASE("every rung holds on the processes of mpirun", "[ladder][mpi]") {
  watchdog dog("the ladder on mpi", 200s);
  ladder::for_each_rung([&](char const* name, auto rung) {
    dog.now(name);
    INFO(name);
    CHECK_NOTHROW(trireme::launch(comm::mpi{.deadline = 60s}, rung));
  });
}

TEST_CASE("a borrowed communicator is left as it was", "[mpi]") {
  watchdog dog("borrow", 60s);
  trireme::launch(comm::mpi{}, [](auto&) {});  // initialises MPI
  {
    auto world = comm::mpi::borrow(MPI_COMM_SELF);
    CHECK(world.size() == 1);
    auto wide = comm::mpi::borrow(MPI_COMM_WORLD);
    CHECK_NOTHROW(ladder::all_gather(wide));
  }
  int size = 0;
  CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS);
  CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
}
