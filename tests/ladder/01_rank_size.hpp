#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void rank_size(World& world) {
  expect(world.size() >= 1, "size is ", world.size());
  expect(world.rank() >= 0 && world.rank() < world.size(), "rank is ", world.rank());
  // Ranks are numbered without gap: each adds its own bit.
  std::vector<std::uint64_t> bits{std::uint64_t{1} << world.rank()};
  world.all_reduce(tensor_view{bits});
  expect(bits[0] == (std::uint64_t{1} << world.size()) - 1, "ranks are not 0 to size - 1");
}

}  // namespace ladder
