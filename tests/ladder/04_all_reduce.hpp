#pragma once

#include "support.hpp"

namespace ladder {

template <class T, class World, class Op>
void all_reduce_as(World& world, std::int64_t count, Op op) {
  auto mine = values<T>(world.rank(), count);
  auto const before = world.traffic().bytes_sent;
  world.all_reduce(tensor_view{mine}, op);
  for (std::int64_t i = 0; i < count; i = next_checked(i, count))
    expect(same_bits(mine[static_cast<std::size_t>(i)], reduced<T>(world.size(), i, op)),
           where<T>(world, "all_reduce", count), ", element ", i);
  // Summed over ranks, the bytes are exactly those of the optimal algorithm.
  std::vector<std::uint64_t> sent{world.traffic().bytes_sent - before};
  world.all_reduce(tensor_view{sent});
  expect(sent[0] == static_cast<std::uint64_t>(2 * count * (world.size() - 1)) * sizeof(T),
         where<T>(world, "all_reduce", count), ": all ranks together counted ", sent[0], " bytes");
}

template <class World>
void all_reduce(World& world) {
  for_types_and_sizes([&]<class T>(T, std::int64_t count) {
    all_reduce_as<T>(world, count, trireme::reduction::sum{});
    all_reduce_as<T>(world, count, trireme::reduction::max{});
    all_reduce_as<T>(world, count, trireme::reduction::min{});
  });
}

}  // namespace ladder
