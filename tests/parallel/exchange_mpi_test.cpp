// test-ranks: 1 2 3
#include <string>
#include <vector>

#include "../catch.hpp"
#include "exchange_cases.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;

TEST_CASE("an exchange averages, publishes, votes and compares over MPI", "[parallel][exchange][mpi]") {
  launch(comm::mpi{}, [](auto& world) {
    auto const found = exchange_cases::all(world);
    CHECK(found == std::vector<std::string>(found.size()));
  });
}
