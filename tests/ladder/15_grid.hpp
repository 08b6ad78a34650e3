#pragma once

#include "support.hpp"

namespace ladder {

/// Rows and columns of a grid: what hybrid strategies do. A sum along rows, then along columns, is that of all.
template <class World>
void grid(World& world) {
  int const p = world.size();
  int const me = world.rank();
  int rows = 1;
  for (int n = 2; n * n <= p; ++n)
    if (p % n == 0) rows = n;
  int const columns = p / rows;
  auto row = world.split(me / columns, me);
  auto column = world.split(me % columns, me);
  expect(row.size() == columns && row.rank() == me % columns, "a row is not what was asked for");
  expect(column.size() == rows && column.rank() == me / columns, "a column is not what was asked for");
  for (std::int64_t const each : {1, 250}) {
    auto const count = each * columns;
    message<std::int64_t, World> mine(world, count, {}, values<std::int64_t>(me));
    row.reduce_scatter(mine.view());
    auto const own = mine.view().flat(each * row.rank(), each);
    column.all_reduce(own);
    row.all_gather(mine.view());
    expect_reduced<reduction::sum, std::int64_t>(world, mine.read(), 0, count, "a sum along rows and columns");
  }
  // All rows and columns at once.
  message<float, World> in_row(world, 700, {}, values<float>(me));
  message<float, World> in_column(world, 700, {}, values<float>(me));
  auto a = row.broadcast_async(in_row.view(), columns - 1);
  auto b = column.broadcast_async(in_column.view(), rows - 1);
  world.barrier();
  b.wait();
  a.wait();
  expect_same(in_row.read(), 0, values<float>(me / columns * columns + columns - 1), 700, "a broadcast in rows");
  expect_same(in_column.read(), 0, values<float>((rows - 1) * columns + me % columns), 700, "a broadcast in columns");
}

}  // namespace ladder
