#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void all_to_all(World& world) {
  for_types_and_sizes([&]<class T>(T, std::int64_t count) {
    auto const each = count < 5000 ? count : count / world.size();
    auto const from = values<T>(world.rank(), each * world.size());
    auto to = values<T>(99, each * world.size());
    auto const before = world.traffic().bytes_sent;
    world.all_to_all(tensor_view<T const>(from), tensor_view{to});
    for (std::int64_t i = 0; i < each * world.size(); i = next_checked(i, each * world.size())) {
      auto const sender = static_cast<int>(i / each);
      expect(same_bits(to[static_cast<std::size_t>(i)], value<T>(sender, i % each + each * world.rank())),
             where<T>(world, "all_to_all", each), ", element ", i);
      expect(same_bits(from[static_cast<std::size_t>(i)], value<T>(world.rank(), i)),
             where<T>(world, "all_to_all", each), ": the source changed at ", i);
    }
    expect(world.traffic().bytes_sent - before == static_cast<std::uint64_t>(each * (world.size() - 1)) * sizeof(T),
           where<T>(world, "all_to_all", each), ": bytes");
  });
}

}  // namespace ladder
