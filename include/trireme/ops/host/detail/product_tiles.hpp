#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/ops/host/detail/product_own.hpp"
#include "trireme/ops/host/detail/product_packing.hpp"
#include "trireme/ops/host/detail/tiles.hpp"

namespace trireme::ops::detail {

/// sums[j] += the sum of column j of x (rows, ld), j < columns.
inline void add_matrix_columns(float* sums, bfloat16 const* x, std::int64_t ld, std::int64_t rows, int columns) {
  float total[2 * tile_extent] = {};
  for (std::int64_t row = 0; row < rows; ++row, x += ld) {
    for (int j = 0; j < columns; ++j) total[j] += static_cast<float>(x[j]);
  }
  for (int j = 0; j < columns; ++j) sums[j] += total[j];
}

/// panel_of in plain C++.
inline void panel_plainly(panel_job const& job) {
  pack_across(job.to, job.from, job.ld, job.rows, 2 * tile_extent, static_cast<int>(job.columns));
  std::fill(job.to + divide_up(job.rows, 2) * 2 * tile_extent, job.to + job.steps * 2 * tile_extent, 0U);
  if (job.sums != nullptr) add_matrix_columns(job.sums, job.from, job.ld, job.rows, static_cast<int>(job.columns));
}

/// c (r, s) += u (m, r)^T v (m, s), like own_multiply_transposed, with tiles.
///
/// Tiles multiply so fast that updating c costs as much as the sums, so the sums are long. A block of u, transposed so
/// that its columns are rows of tiles, stays in L2 and is multiplied with one panel of v at a time.
inline void tiles_multiply_transposed(product_kernels const& kernels, float* c, bfloat16 const* u, bfloat16 const* v,
                                      std::int64_t m, std::int64_t r, std::int64_t s, float* u_sums, float* v_sums) {
  thread_local growing_buffer left_buffer;
  thread_local growing_buffer right_buffer;
  alignas(64) float tiles[2][2 * tile_extent * 2 * tile_extent];
  kernel_calls const calls(kernels);

  int const width = kernels.columns;
  auto const all_steps = steps_of<std::uint32_t>(kernels, m);
  auto const step_blocks = divide_up(all_steps, 1024);
  auto const steps_at_once = divide_up(divide_up(all_steps, step_blocks), kernels.depth) * kernels.depth;
  // Not a multiple of 4096 bytes, at which all rows of a tile would share a set of the L1 cache.
  auto const left_row = 2 * steps_at_once + 32;
  auto const most_groups = std::max<std::int64_t>(1, cache_bytes() / (left_row * 2 * kernels.rows));
  auto const all_groups = divide_up(r, kernels.rows);
  auto const groups = divide_up(all_groups, divide_up(all_groups, most_groups));
  auto* const left = left_buffer.take<bfloat16>(groups * kernels.rows * left_row);
  auto* const right = right_buffer.take<std::uint32_t>(steps_at_once * width);
  store_rule<float> rule;
  rule.y = c;
  rule.ld = s;
  rule.accumulate = true;

  for (std::int64_t step = 0; step < all_steps; step += steps_at_once) {
    auto const steps = std::min(steps_at_once, all_steps - step);
    auto const first = 2 * step;
    auto const count = std::min(m - first, 2 * steps);
    for (std::int64_t top = 0; top < r; top += groups * kernels.rows) {
      auto const bottom = std::min(r, top + groups * kernels.rows);
      constexpr std::int64_t few = 32;
      for (std::int64_t at = 0; at < 2 * steps; at += few) {  // memory is read along rows
        for (std::int64_t row = top; row < bottom; row += kernels.rows) {
          kernels.turn({.to = left + (row - top) * left_row + at,
                        .to_row = left_row,
                        .from = u + (first + std::min(at, count - 1)) * r + row,
                        .from_row = r,
                        .rows = std::clamp<std::int64_t>(count - at, 0, few),
                        .padded_rows = few,
                        .columns = std::min<std::int64_t>(kernels.rows, r - row),
                        .padded_columns = kernels.rows});
        }
      }
      for (std::int64_t row = top; row < bottom && u_sums != nullptr; row += kernels.rows) {
        int const columns = static_cast<int>(std::min<std::int64_t>(kernels.rows, r - row));
        add_matrix_columns(u_sums + row, u + first * r + row, r, count, columns);
      }
      for (std::int64_t j = 0; j < s; j += width) {
        int const columns = static_cast<int>(std::min<std::int64_t>(width, s - j));
        float* const sums = v_sums != nullptr && top == 0 ? v_sums + j : nullptr;
        kernels.panel_of({right, v + first * s + j, s, count, columns, steps, sums});
        store_job<float> waiting{};  // stored while the next sums are formed
        int turns = 0;
        for (std::int64_t row = top; row < bottom; row += kernels.rows) {
          int const rows = static_cast<int>(std::min<std::int64_t>(kernels.rows, bottom - row));
          float* const tile = tiles[turns++ % 2];
          tile_job job{};
          job.a = reinterpret_cast<char const*>(left + (row - top) * left_row);
          job.a_row = left_row * static_cast<std::ptrdiff_t>(sizeof(bfloat16));
          job.b = reinterpret_cast<char const*>(right);
          job.steps = steps;
          job.c = tile;
          job.c_row = width;
          job.ahead[0] = job.ahead[1] = reinterpret_cast<char const*>(c + row * s + j);
          job.ahead_row[0] = s * static_cast<std::ptrdiff_t>(sizeof(float));
          rows <= kernels.small_rows ? kernels.small_tile(job) : kernels.tile(job);
          if (waiting.rule != nullptr) kernels.store_float(waiting);
          waiting = {&rule, tile, width, row, j, rows, columns};
        }
        kernels.store_float(waiting);
      }
    }
  }
}

}  // namespace trireme::ops::detail
