// test-sanitize: none
#include <stdexcept>
#include <vector>

#include "../catch.hpp"
#include "../support/counted_allocations.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/comm.hpp"

TEST_CASE("collectives allocate nothing after as many calls have been in flight at once", "[comm][threads]") {
  watchdog dog("allocations");
  using namespace trireme;
  long counted = -1;
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    std::vector<std::vector<float>> values(100, std::vector<float>(3000, 1.0F));
    std::vector<comm::threads_world::request> requests(values.size());
    auto const round = [&] {
      for (std::size_t i = 0; i < values.size(); ++i) requests[i] = world.all_reduce_async(tensor_view{values[i]});
      for (auto& each : requests) each.wait();
      for (auto& each : values) world.reduce_scatter(tensor_view{each}, reduction::max{});
      world.all_gather(tensor_view{values[0]});
      world.broadcast(tensor_view{values[0]}, 1);
      world.barrier();
    };
    round();
    round();
    long const before = allocations.load();
    world.barrier();
    for (int i = 0; i < 5; ++i) round();
    if (world.rank() == 0) counted = allocations.load() - before;
    world.barrier();
  });
  CHECK(counted == 0);
}
