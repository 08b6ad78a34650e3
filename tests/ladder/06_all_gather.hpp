#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void all_gather(World& world) {
  for_types_and_sizes([&]<class T>(T, std::int64_t count) {
    auto const each = count < 5000 ? count : count / world.size();
    auto mine = values<T>(world.rank(), each * world.size());
    auto const before = world.traffic().bytes_sent;
    world.all_gather(tensor_view{mine});
    for (std::int64_t i = 0; i < each * world.size(); i = next_checked(i, each * world.size()))
      expect(same_bits(mine[static_cast<std::size_t>(i)], value<T>(static_cast<int>(i / each), i)),
             where<T>(world, "all_gather", each), ", element ", i);
    expect(world.traffic().bytes_sent - before == static_cast<std::uint64_t>(each * (world.size() - 1)) * sizeof(T),
           where<T>(world, "all_gather", each), ": bytes");
  });
}

}  // namespace ladder
