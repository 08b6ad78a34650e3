// test-sanitize: none
#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/comm.hpp"

namespace {
std::atomic<long> allocations{0};
}

// Not inlined, or GCC takes malloc and delete for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1);
  if (void* block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }

TEST_CASE("collectives allocate nothing once as many have been in flight", "[comm][threads]") {
  watchdog dog("allocations");
  using namespace trireme;
  long counted = -1;
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    std::vector<std::vector<float>> values(100, std::vector<float>(3000, 1.0F));
    std::vector<comm::threads_request> requests(values.size());
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
