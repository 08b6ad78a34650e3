#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void broadcast(World& world) {
  for_types_and_sizes([&]<class T>(T, std::int64_t count) {
    for (int root = 0; root < world.size(); ++root) {
      auto mine = values<T>(world.rank(), count);
      auto const before = world.traffic().bytes_sent;
      world.broadcast(tensor_view{mine}, root);
      for (std::int64_t i = 0; i < count; i = next_checked(i, count))
        expect(same_bits(mine[static_cast<std::size_t>(i)], value<T>(root, i)), where<T>(world, "broadcast", count),
               ", root ", root, ", element ", i);
      auto const sent = world.traffic().bytes_sent - before;
      auto const wanted = world.rank() == root ? static_cast<std::uint64_t>(count * (world.size() - 1)) * sizeof(T) : 0;
      expect(sent == wanted, where<T>(world, "broadcast", count), ": counted ", sent, " bytes");
    }
  });
}

}  // namespace ladder
