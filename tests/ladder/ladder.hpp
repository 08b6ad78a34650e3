#pragma once

#include "01_rank_size.hpp"
#include "02_barrier.hpp"
#include "03_broadcast.hpp"
#include "04_all_reduce.hpp"
#include "05_reduce_scatter.hpp"
#include "06_reduce.hpp"
#include "07_all_gather.hpp"
#include "08_gather.hpp"
#include "09_scatter.hpp"
#include "10_all_to_all.hpp"
#include "11_exchange.hpp"
#include "12_async_overlap.hpp"
#include "13_split.hpp"
#include "14_duplicate.hpp"
#include "15_grid.hpp"
#include "16_allocate.hpp"
#include "17_traffic.hpp"
#include "18_large.hpp"
#include "19_errors.hpp"
#include "20_nan_and_zero.hpp"
#include "21_own_reduction.hpp"

namespace ladder {

/// Calls `climb(name, rung)` for each rung, lowest first.
template <class Climb>
void for_each_rung(Climb climb) {
  climb("01_rank_size", [](auto& world) { rank_size(world); });
  climb("02_barrier", [](auto& world) { barrier(world); });
  climb("03_broadcast", [](auto& world) { broadcast(world); });
  climb("04_all_reduce", [](auto& world) { all_reduce(world); });
  climb("05_reduce_scatter", [](auto& world) { reduce_scatter(world); });
  climb("06_reduce", [](auto& world) { reduce(world); });
  climb("07_all_gather", [](auto& world) { all_gather(world); });
  climb("08_gather", [](auto& world) { gather(world); });
  climb("09_scatter", [](auto& world) { scatter(world); });
  climb("10_all_to_all", [](auto& world) { all_to_all(world); });
  climb("11_exchange", [](auto& world) { exchange(world); });
  climb("12_async_overlap", [](auto& world) {
    async_overlap(world);
    async_kinds(world);
  });
  climb("13_split", [](auto& world) { split(world); });
  climb("14_duplicate", [](auto& world) { duplicate(world); });
  climb("15_grid", [](auto& world) { grid(world); });
  climb("16_allocate", [](auto& world) { allocate(world); });
  climb("17_traffic", [](auto& world) { traffic(world); });
  climb("18_large", [](auto& world) { large(world); });
  climb("19_errors", [](auto& world) { errors(world); });
  climb("20_nan_and_zero", [](auto& world) { nan_and_zero(world); });
  climb("21_own_reduction", [](auto& world) { own_reduction(world); });
}

}  // namespace ladder
