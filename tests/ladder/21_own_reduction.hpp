#pragma once

#include <numeric>

#include "support.hpp"

namespace ladder {

/// 2 x 2 matrices of numbers that wrap, whose product depends on the order, and more bytes so that lines do not fit.
struct matrix {
  std::uint32_t a = 1, b = 0, c = 0, d = 1;
  std::uint8_t rest[3] = {};
  friend bool operator==(matrix const&, matrix const&) = default;
};
struct product : reduction::own {
  matrix operator()(matrix const& x, matrix const& y) const {
    return {x.a * y.a + x.b * y.c, x.a * y.b + x.b * y.d, x.c * y.a + x.d * y.c, x.c * y.b + x.d * y.d};
  }
};
inline matrix matrix_of(int rank, std::int64_t i) {
  auto const x = static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(rank) * 40503U;
  return {x | 1U, x >> 3, x >> 7, (x >> 5) | 1U};
}

/// A reduction of the caller's own, of a type that is not an element type, in rank order: from one to some hundred KB.
template <class World>
void own_reduction(World& world) {
  int const p = world.size();
  int const me = world.rank();
  if constexpr (!trireme::has_all_reduce<World, matrix, product, space_of_world<World>> ||
                !std::is_same_v<space_of_world<World>, trireme::host>) {
    skipped(world, "reduction of one's own");
  } else {
    for (std::int64_t const each : {0, 1, 7, 250, 4001}) {
      auto const all = static_cast<std::size_t>(each * p);
      std::vector<matrix> wanted(all), given(all);
      for (std::size_t i = 0; i < all; ++i) {
        auto const at = static_cast<std::int64_t>(i);
        given[i] = matrix_of(me, at);
        wanted[i] = matrix_of(0, at);
        for (int rank = 1; rank < p; ++rank) wanted[i] = product{}(wanted[i], matrix_of(rank, at));
      }
      auto const is_right = [&](std::vector<matrix> const& got, std::int64_t first, std::int64_t count,
                                char const* what) {
        for (std::int64_t i = first; i < first + count; ++i)
          expect(got[static_cast<std::size_t>(i)] == wanted[static_cast<std::size_t>(i)], what, " of ", all,
                 " matrices on ", World::name, ", rank ", me, " of ", p, ": element ", i, " is wrong");
      };
      auto mine = given;
      world.all_reduce(mine, product{});
      is_right(mine, 0, each * p, "all_reduce");
      mine = given;
      auto pending = world.reduce_scatter_async(mine, product{});
      pending.wait();
      is_right(mine, each * me, each, "reduce_scatter");
      mine = given;
      world.reduce(mine, p - 1, product{});
      if (me == p - 1) is_right(mine, 0, each * p, "reduce");
    }
  }
}

}  // namespace ladder
