#pragma once

#include "support.hpp"

namespace ladder {

/// Throws unless the parts, one a rank and one after the other, have the values of each rank.
template <class T, class Got>
void expect_parts(Got const& got, std::vector<std::int64_t> const& parts, std::string const& at) {
  std::int64_t first = 0;
  for (int rank = 0; rank < static_cast<int>(parts.size()); ++rank) {
    auto const count = parts[static_cast<std::size_t>(rank)];
    expect_same(got, first, values<T>(rank) + first, count, at);
    first += count;
  }
}

template <class World>
void all_gather(World& world) {
  int const p = world.size();
  for_types([&]<class T>(T) {
    for_counts<T>(p, [&](std::int64_t each, how way) {
      if constexpr (!trireme::has_all_gather<World, T, space_of_world<World>>) {
        skipped(world, "all_gather");
      } else {
        message<T, World> mine(world, each * p, way, values<T>(world.rank()));
        auto const sent = bytes_of(world, [&] {
          call(
              way, [&] { world.all_gather(mine.view()); }, [&] { return world.all_gather_async(mine.view()); });
        });
        auto const at = where<T>(world, "all_gather", each, way);
        expect_parts<T>(mine.read(), std::vector<std::int64_t>(static_cast<std::size_t>(p), each), at);
        expect_bytes(sent, each * (p - 1), sizeof(T), at);
      }
      if constexpr (!trireme::has_ragged_all_gather<World, T, space_of_world<World>>) {
        skipped(world, "ragged all_gather");
      } else {
        auto const counts = ragged(p, each, way.async ? 1 : 0);
        std::span<std::int64_t const> const parts(counts);
        message<T, World> mine(world, sum_of(counts), way, values<T>(world.rank()));
        auto const sent = bytes_of(world, [&] {
          call(
              way, [&] { world.all_gather(mine.view(), parts); },
              [&] { return world.all_gather_async(mine.view(), parts); });
        });
        auto const at = where<T>(world, "ragged all_gather", each, way);
        expect_parts<T>(mine.read(), counts, at);
        expect_bytes(sent, counts[static_cast<std::size_t>(world.rank())] * (p - 1), sizeof(T), at);
      }
    });
  });
}

}  // namespace ladder
