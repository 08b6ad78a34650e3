#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void rank_size(World& world) {
  expect(world.size() >= 1, "size is ", world.size());
  expect(world.rank() >= 0 && world.rank() < world.size(), "rank is ", world.rank());
  // Ranks are numbered without gap: each adds its own bit.
  auto const bit = std::uint64_t{1} << world.rank();
  message<std::uint64_t, World> bits(world, 1, {}, &bit);
  world.all_reduce(bits.view());
  expect(bits.read()[0] == (std::uint64_t{1} << world.size()) - 1, "ranks are not 0 to size - 1");
}

}  // namespace ladder
