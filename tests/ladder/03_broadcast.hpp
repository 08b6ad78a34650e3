#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void broadcast(World& world) {
  for_types([&]<class T>(T) {
    if constexpr (!trireme::has_broadcast<World, T, space_of_world<World>>) {
      skipped(world, "broadcast");
    } else {
      for_counts<T>(1, [&](std::int64_t count, how way) {
        for (int root = 0; root < world.size(); ++root) {
          message<T, World> mine(world, count, way, values<T>(world.rank()));
          auto const sent = bytes_of(world, [&] {
            call(
                way, [&] { world.broadcast(mine.view(), root); },
                [&] { return world.broadcast_async(mine.view(), root); });
          });
          auto const at = text(where<T>(world, "broadcast", count, way), ", root ", root);
          expect_same(mine.read(), 0, values<T>(root), count, at);
          expect_bytes(sent, (world.rank() + 1) % world.size() == root ? 0 : count, sizeof(T), at);
        }
      });
    }
  });
}

}  // namespace ladder
