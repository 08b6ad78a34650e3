// test-ranks: 1 2 3
// test-timeout: 120
#include "trireme/comm/mpi.hpp"

#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"

using namespace std::chrono_literals;
using namespace trireme;

static_assert(communicator<comm::mpi_world>);
static_assert(has_all_reduce<comm::mpi_world, bfloat16> && has_reduce_scatter<comm::mpi_world, double>);
static_assert(has_all_gather<comm::mpi_world, std::uint8_t> && has_all_to_all<comm::mpi_world, float>);
static_assert(has_broadcast<comm::mpi_world, std::uint64_t>);
static_assert(has_all_reduce<comm::mpi_world, float, reduction::sum, phantom>);
static_assert(!has_peers<comm::mpi_world, float>);

TEST_CASE("a description of MPI is printed as its source", "[comm][mpi]") {
  CHECK(to_string(comm::mpi{.deadline = 1500ms}) == "comm::mpi{.deadline = 1500ms}");
}

TEST_CASE("collectives in phantom memory synchronise and touch nothing", "[comm][mpi][phantom]") {
  watchdog dog("phantom");
  launch(comm::mpi{}, [](auto& world) {
    auto const n = 3000 * world.size();
    tensor<float, phantom> values(shape{n});
    tensor<float, phantom> more(shape{n});
    world.all_reduce(values.view());
    world.reduce_scatter(values.view());
    world.all_gather(more.view());
    world.all_to_all(values.view(), more.view());
    world.broadcast_async(values.view(), 0).wait();
  });
}

TEST_CASE("launch returns what the body of this process returns, again and again", "[comm][mpi]") {
  watchdog dog("launch");
  for (int i = 0; i < 3; ++i) {
    int rank = -1;
    auto const got = launch(comm::mpi{}, [&](auto& world) {
      rank = world.rank();
      return world.rank();
    });
    CHECK(got == rank);
  }
}

TEST_CASE("requests outlive the world that they came from", "[comm][mpi]") {
  watchdog dog("requests");
  launch(comm::mpi{}, [](auto& world) {
    std::vector<float> values(100000, 1.0F);
    auto pending = world.split(0, 0).all_reduce_async(tensor_view{values});
    pending.wait();
    if (values.back() != static_cast<float>(world.size())) throw std::runtime_error("another sum");
  });
}
