#pragma once

#include "11_exchange.hpp"

namespace ladder {

/// The communicator's memory: anywhere, in any order, on some ranks only, and beside memory that is not.
template <class World>
void allocate(World& world) {
  using space = space_of_world<World>;
  if constexpr (!trireme::has_allocate<World, float, space>) {
    skipped(world, "allocate");
  } else {
    int const p = world.size();
    int const me = world.rank();
    expect(world.template allocate<float>(shape{0}).size() == 0, "allocate gives no elements if none are asked for");
    std::vector<tensor<std::byte, space>> blocks;  // so that addresses differ between ranks
    for (int k = 0; k < 40; ++k) {
      blocks.push_back(world.template allocate<std::byte>(shape{1 + 997 * ((k + me) % 13)}));
      if (k % 3 == me % 3) blocks.erase(blocks.begin());
    }
    for (int round = 0; round < 6; ++round) {
      for (std::int64_t const count : {std::int64_t{100}, longest<float>}) {
        how const way{(me + round) % 2 == 0, round % 3 == 0};
        message<float, World> mine(world, count, way, values<float>(me));
        auto const at = where<float>(world, "all_reduce on memory of several kinds", count, way);
        world.all_reduce(mine.view());
        expect_reduced<reduction::sum, float>(world, mine.read(), 0, count, at);
        mine.fill(values<float>(me));
        world.broadcast(mine.view(), round % p);
        expect_same(mine.read(), 0, values<float>(round % p), count, at);
        if constexpr (trireme::has_exchange<World, space>) exchange_ring<float>(world, count, way);
        if constexpr (trireme::has_gather<World, float, space>) {
          auto const each = count / p;
          message<float, World> all(world, me == 0 ? each * p : 0, way);
          world.gather(tensor_view<float const, space>(mine.view().flat(0, each)), all.view(), 0);
          for (int rank = 0; me == 0 && rank < p; ++rank)
            expect_same(all.read(), each * rank, values<float>(round % p), each, at);
        }
      }
    }
    auto part = world.split(me % 2, me);  // the whole's memory serves its parts
    auto kept = part.template allocate<float>(shape{1000});
    memory<space>::put(kept.view(), values<float>(me));
    world.all_reduce(kept.view(), reduction::max{});
    expect_reduced<reduction::max, float>(world, memory<space>::get(kept.view()), 0, 1000, "a part's memory");
  }
}

}  // namespace ladder
