#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void scatter(World& world) {
  int const p = world.size();
  for_types([&]<class T>(T) {
    if constexpr (!trireme::has_scatter<World, T, space_of_world<World>>) {
      skipped(world, "scatter");
    } else {
      int root = 0;
      for_counts<T>(p, [&](std::int64_t each, how way) {
        root = (root + 1) % p;
        bool const here = world.rank() == root;
        message<T, World> from(world, here ? each * p : 0, way, values<T>(root));
        message<T, World> to(world, each, way);
        auto const sent = bytes_of(world, [&] {
          call(
              way, [&] { world.scatter(from.input(), to.view(), root); },
              [&] { return world.scatter_async(from.input(), to.view(), root); });
        });
        auto const at = text(where<T>(world, "scatter", each, way), ", root ", root);
        expect_same(to.read(), 0, values<T>(root) + each * world.rank(), each, at);
        expect_same(from.read(), 0, values<T>(root), here ? each * p : 0, at);
        expect_bytes(sent, here ? each * (p - 1) : 0, sizeof(T), at);
      });
    }
  });
}

}  // namespace ladder
