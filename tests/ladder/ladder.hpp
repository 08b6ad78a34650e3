#pragma once

#include "01_rank_size.hpp"
#include "02_barrier.hpp"
#include "03_broadcast.hpp"
#include "04_all_reduce.hpp"
#include "05_reduce_scatter.hpp"
#include "06_all_gather.hpp"
#include "07_all_to_all.hpp"
#include "08_async_overlap.hpp"
#include "09_split.hpp"
#include "10_errors.hpp"

namespace ladder {

/// Calls `climb(name, rung)` for each rung, lowest first.
template <class Climb>
void for_each_rung(Climb climb) {
  climb("01_rank_size", [](auto& world) { rank_size(world); });
  climb("02_barrier", [](auto& world) { barrier(world); });
  climb("03_broadcast", [](auto& world) { broadcast(world); });
  climb("04_all_reduce", [](auto& world) { all_reduce(world); });
  climb("05_reduce_scatter", [](auto& world) { reduce_scatter(world); });
  climb("06_all_gather", [](auto& world) { all_gather(world); });
  climb("07_all_to_all", [](auto& world) { all_to_all(world); });
  climb("08_async_overlap", [](auto& world) { async_overlap(world); });
  climb("09_split", [](auto& world) { split(world); });
  climb("10_errors", [](auto& world) { errors(world); });
}

}  // namespace ladder
