#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void reduce(World& world) {
  for_numbers([&]<class T>(T) {
    for_reductions<T>([&]<class Op>(Op op) {
      if constexpr (!trireme::has_reduce<World, T, Op, space_of_world<World>>) {
        skipped(world, "reduce");
      } else {
        int root = 0;
        for_counts<T>(1, [&](std::int64_t count, how way) {
          root = (root + 1) % world.size();
          message<T, World> mine(world, count, way, values<T>(world.rank()));
          auto const sent = bytes_of(world, [&] {
            call(
                way, [&] { world.reduce(mine.view(), root, op); },
                [&] { return world.reduce_async(mine.view(), root, op); });
          });
          auto const at = text(where<T>(world, "reduce", count, way), ", root ", root);
          if (world.rank() == root)
            expect_reduced<Op, T>(world, mine.read(), 0, count, at);
          else
            expect_same(mine.read(), 0, values<T>(world.rank()), count, at);
          expect_bytes(sent, world.rank() == root ? 0 : count, sizeof(T), at);
        });
      }
    });
  });
}

}  // namespace ladder
