// test-ranks: 2
#include <vector>

#include "../catch.hpp"
#include "../support/counted_allocations.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/mpi.hpp"

TEST_CASE("collectives between processes allocate nothing once as many have been in flight", "[comm][mpi]") {
  watchdog dog("allocations");
  using namespace trireme;
  for (bool const shared_memory : {true, false}) {
    INFO((shared_memory ? "in shared memory" : "by messages"));
    long const counted = launch(comm::mpi{.shared_memory = shared_memory}, [](auto& world) {
      std::vector<std::vector<float>> values(40, std::vector<float>(30000, 1.0F));
      std::vector<comm::collective_request> requests(values.size());
      std::vector<float> more(30000);
      std::vector<std::int64_t> const counts(static_cast<std::size_t>(world.size()), 30000 / world.size());
      transfer<> const swap[] = {send_to(1 - world.rank(), tensor_view{values[1]}),
                                 receive_from(1 - world.rank(), tensor_view{more})};
      auto const round = [&] {
        for (std::size_t i = 0; i < values.size(); ++i) requests[i] = world.all_reduce_async(tensor_view{values[i]});
        for (auto& each : requests) each.wait();
        for (auto& each : values) world.reduce_scatter(tensor_view{each}, reduction::max{});
        world.all_gather(tensor_view{values[0]});
        world.all_gather(tensor_view{values[0]}, counts);
        world.all_to_all(tensor_view<float const>(values[0]), counts, tensor_view{more}, counts);
        world.broadcast(tensor_view{values[0]}, 1);
        world.reduce(tensor_view{values[0]}, 0);
        world.all_reduce(tensor_view{more.data(), shape{10}});
        world.exchange(std::span<transfer<> const>(swap));
        world.barrier();
      };
      for (int i = 0; i < 5; ++i) round();
      long const before = allocations.load();
      for (int i = 0; i < 5; ++i) round();
      long const after = allocations.load();
      world.barrier();
      return after - before;
    });
    CHECK(counted == 0);
  }
}
