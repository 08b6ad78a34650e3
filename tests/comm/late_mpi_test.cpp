// test-ranks: 3
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/late.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;
using namespace std::chrono_literals;

TEST_CASE("ranks that wait report a late rank of MPI, in shared memory and by messages", "[comm]") {
  watchdog const guard("a late rank of MPI");
  for (bool const shared_memory : {true, false}) {
    INFO((shared_memory ? "in shared memory" : "by messages"));
    std::mutex mutex;
    std::vector<comm::late_call> told;
    comm::on_late([&](comm::late_call const& call) {
      std::lock_guard const lock(mutex);
      told.push_back(call);
    });
    auto const rank = launch(comm::mpi{.deadline = 2s, .shared_memory = shared_memory}, [](auto& world) {
      std::vector<float> values(1024);
      world.barrier();
      if (world.rank() == 1) std::this_thread::sleep_for(1400ms);
      world.all_reduce(tensor_view{values}, reduction::sum{});
      world.barrier();
      return world.rank();
    });
    comm::on_late({});
    std::size_t const waits = rank == 1 ? 0 : 1;
    REQUIRE(told.size() == waits);
    if (rank == 1) continue;
    CHECK(told[0].rank == rank);
    CHECK(told[0].what.starts_with("all_reduce(F32, 1024 elements, sum) number "));
    CHECK(told[0].bytes == 4096);
    CHECK(told[0].missing == "rank 1");
  }
}
