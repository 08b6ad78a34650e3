#pragma once

#include "support.hpp"

namespace ladder {

template <class T, class World, class Op>
void reduce_scatter_as(World& world, std::int64_t each, Op op) {
  auto mine = values<T>(world.rank(), each * world.size());
  auto const before = world.traffic().bytes_sent;
  world.reduce_scatter(tensor_view{mine}, op);
  auto const first = each * world.rank();
  for (std::int64_t k = 0; k < each; k = next_checked(k, each)) {
    auto const i = first + k;
    expect(same_bits(mine[static_cast<std::size_t>(i)], reduced<T>(world.size(), i, op)),
           where<T>(world, "reduce_scatter", each), ", element ", i);
  }
  expect(world.traffic().bytes_sent - before == static_cast<std::uint64_t>(each * (world.size() - 1)) * sizeof(T),
         where<T>(world, "reduce_scatter", each), ": bytes");
}

template <class World>
void reduce_scatter(World& world) {
  for_types_and_sizes([&]<class T>(T, std::int64_t count) {
    auto const each = count < 5000 ? count : count / world.size();
    reduce_scatter_as<T>(world, each, trireme::reduction::sum{});
    reduce_scatter_as<T>(world, each, trireme::reduction::max{});
    reduce_scatter_as<T>(world, each, trireme::reduction::min{});
  });
}

}  // namespace ladder
