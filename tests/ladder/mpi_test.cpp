// test-ranks: 1 2 3 4
// test-timeout: 300
// test-mpich: 2 3
#include "trireme/comm/mpi.hpp"
#include "../catch.hpp"
#include "../watchdog.hpp"
#include "ladder.hpp"

using namespace std::chrono_literals;
namespace comm = trireme::comm;

namespace {
void climb(char const* how, comm::mpi const& description) {
  watchdog dog(how, 280s);
  ladder::for_each_rung([&](char const* name, auto rung) {
    dog.now(name);
    INFO(how << ": " << name);
    CHECK_NOTHROW(trireme::launch(description, rung));
  });
}
}  // namespace

TEST_CASE("every rung holds on the processes of mpirun in shared memory", "[ladder][mpi]") {
  climb("in shared memory", {.deadline = 60s});
}

TEST_CASE("every rung holds on MPI's messages", "[ladder][mpi]") {
  climb("by messages", {.deadline = 60s, .shared_memory = false});
}

TEST_CASE("a borrowed communicator is left as it was", "[mpi]") {
  watchdog dog("borrow", 60s);
  trireme::launch(comm::mpi{}, [](auto&) {});  // initialises MPI
  for (bool const shared_memory : {true, false}) {
    auto world = comm::mpi::borrow(MPI_COMM_SELF, 60s, shared_memory);
    CHECK(world.size() == 1);
    auto wide = comm::mpi::borrow(MPI_COMM_WORLD, 60s, shared_memory);
    CHECK_NOTHROW(ladder::all_gather(wide));
  }
  int size = 0;
  CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS);
  CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
}
