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
      if constexpr (!trireme::has_ragged_reduce_scatter<World, T, Op, space_of_world<World>>) {
        skipped(world, "ragged reduce_scatter");
      } else {
        for_counts<T>(world.size(), [&](std::int64_t each, how way) {
          auto const counts = ragged(world.size(), each, way.async ? 1 : 0);
          std::span<std::int64_t const> const slices(counts);
          auto const own = counts[static_cast<std::size_t>(world.rank())];
          message<T, World> mine(world, sum_of(counts), way, values<T>(world.rank()));
          auto const sent = bytes_of(world, [&] {
            call(
                way, [&] { world.reduce_scatter(mine.view(), slices, op); },
                [&] { return world.reduce_scatter_async(mine.view(), slices, op); });
          });
          auto const at = where<T>(world, "ragged reduce_scatter", each, way);
          expect_reduced<Op, T>(world, mine.read(), sum_of(slices.first(static_cast<std::size_t>(world.rank()))), own,
                                at);
          expect_bytes(sent, sum_of(counts) - own, sizeof(T), at);
        });
      }
    });
  });
}

}  // namespace ladder
