#pragma once

#include "07_all_gather.hpp"

namespace ladder {

/// Every rank sends slice rank() of its pattern, so that the whole is the result of all_gather.
template <class World>
void gather(World& world) {
  int const p = world.size();
  for_types([&]<class T>(T) {
    if constexpr (!trireme::has_gather<World, T, space_of_world<World>>) {
      skipped(world, "gather");
    } else {
      int root = 0;
      for_counts<T>(p, [&](std::int64_t each, how way) {
        root = (root + 1) % p;
        bool const here = world.rank() == root;
        auto const* const own = values<T>(world.rank()) + each * world.rank();
        message<T, World> from(world, each, way, own);
        message<T, World> to(world, here ? each * p : 0, way);
        auto const sent = bytes_of(world, [&] {
          call(
              way, [&] { world.gather(from.input(), to.view(), root); },
              [&] { return world.gather_async(from.input(), to.view(), root); });
        });
        auto const at = text(where<T>(world, "gather", each, way), ", root ", root);
        expect_same(from.read(), 0, own, each, at);
        auto const whole = to.read();
        if (here) expect_parts<T>(whole, std::vector<std::int64_t>(static_cast<std::size_t>(p), each), at);
        expect_bytes(sent, here ? 0 : each, sizeof(T), at);
      });
    }
  });
}

}  // namespace ladder
