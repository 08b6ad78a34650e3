// test-ranks: 2
// test-mpich: 2
// test-timeout: 120
#include <string>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "labels_cases.hpp"
#include "trireme/comm/mpi.hpp"

using namespace std::chrono_literals;
using namespace trireme;

TEST_CASE("exchanges and trainers in another order on one rank are an error over MPI", "[parallel][labels][mpi]") {
  watchdog const guard("labels", 100s);
  launch(comm::mpi{}, [](auto&) {
    for (bool const shared : {true, false}) {
      for (auto const& each : labels_cases::all) {
        INFO((shared ? "in shared memory" : "by messages"));
        auto world = comm::mpi::borrow(MPI_COMM_WORLD, 20s, shared);
        CHECK(labels_cases::wrong(world, each) == "");
      }
    }
  });
}
