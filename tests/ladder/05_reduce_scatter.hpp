#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void reduce_scatter(World& world) {
  for_numbers([&]<class T>(T) {
    for_reductions<T>([&]<class Op>(Op op) {
      if constexpr (!trireme::has_reduce_scatter<World, T, Op, space_of_world<World>>) {
        skipped(world, "reduce_scatter");
      } else {
        for_counts<T>(world.size(), [&](std::int64_t each, how way) {
          message<T, World> mine(world, each * world.size(), way, values<T>(world.rank()));
          auto const sent = bytes_of(world, [&] {
            call(
                way, [&] { world.reduce_scatter(mine.view(), op); },
                [&] { return world.reduce_scatter_async(mine.view(), op); });
          });
          auto const at = where<T>(world, "reduce_scatter", each, way);
          expect_reduced<Op, T>(world, mine.read(), each * world.rank(), each, at);
          expect_bytes(sent, each * (world.size() - 1), sizeof(T), at);
        });
      }
    });
  });
}

}  // namespace ladder
