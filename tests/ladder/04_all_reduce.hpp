#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void all_reduce(World& world) {
  for_numbers([&]<class T>(T) {
    for_reductions<T>([&]<class Op>(Op op) {
      if constexpr (!trireme::has_all_reduce<World, T, Op, space_of_world<World>>) {
        skipped(world, "all_reduce");
      } else {
        for_counts<T>(1, [&](std::int64_t count, how way) {
          message<T, World> mine(world, count, way, values<T>(world.rank()));
          auto const sent = bytes_of(world, [&] {
            call(
                way, [&] { world.all_reduce(mine.view(), op); },
                [&] { return world.all_reduce_async(mine.view(), op); });
          });
          auto const at = where<T>(world, "all_reduce", count, way);
          expect_reduced<Op, T>(world, mine.read(), 0, count, at);
          auto const own = trireme::comm::slice_of(count, sizeof(T), world.rank(), world.size()).count;
          expect_bytes(sent, count - own + own * (world.size() - 1), sizeof(T), at);
        });
      }
    });
  });
}

}  // namespace ladder
