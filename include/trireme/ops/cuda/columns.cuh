#pragma once

#include "trireme/ops/cuda/formulas.cuh"

// The second stage of sums over rows: kernels of the first stage write partial sums as rows of a matrix.

namespace trireme::ops::detail::device {

inline constexpr int column_threads = 512;

/// The sum of the elements at from, from + step, ..., of which there are `count`, in their order.
template <class Real>
__device__ __forceinline__ Real sum_in_order(Real const* from, std::int64_t step, std::int64_t count) {
  constexpr int together = 8;  // are read at once
  Real total = 0;
  std::int64_t i = 0;
  for (; i + together <= count; i += together) {
    Real next[together];
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < together; ++k) next[k] = from[(i + k) * step];
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < together; ++k) total = sum(total, next[k]);
  }
  for (; i < count; ++i) total = sum(total, from[i * step]);
  return total;
}

/// Adds the sum over rows of column c of `partial` to first[c], or to second[c - split] from column `split` on. The
/// rows are summed in equal parts, one for each warp, in their order; then the parts in theirs.
template <class T, class Real>
__global__ void __launch_bounds__(column_threads) add_column_parts(T* first, T* second, std::int64_t split,
                                                                  Real const* partial, std::int64_t rows,
                                                                  std::int64_t columns) {
  constexpr int warps = column_threads / warp_width;
  auto& parts = block_shared<Real[warps][warp_width], 2>();
  auto const lane = static_cast<int>(threadIdx.x) % warp_width;
  auto const warp = static_cast<int>(threadIdx.x) / warp_width;
  auto const column = static_cast<std::int64_t>(blockIdx.x) * warp_width + lane;
  auto const begin = rows * warp / warps;
  auto const end = rows * (warp + 1) / warps;
  if (column < columns) parts[warp][lane] = sum_in_order(partial + begin * columns + column, columns, end - begin);
  sync_block();
  if (warp != 0 || column >= columns) return;
  Real total = 0;
  TRIREME_DEVICE_UNROLL
  for (int w = 0; w < warps; ++w) total = sum(total, parts[w][lane]);
  T* const to = column < split ? first + column : second + (column - split);
  *to = narrow<T>(sum(static_cast<Real>(wide(*to)), total));
}

template <class T, class Real>
[[nodiscard]] int launch_column_sums(char const* name, T* first, T* second, std::int64_t split, Real const* partial,
                                     std::int64_t rows, std::int64_t columns, void* stream) {
  return run(name, &add_column_parts<T, Real>, (columns + warp_width - 1) / warp_width, column_threads, stream, first,
             second, split, partial, rows, columns);
}

}  // namespace trireme::ops::detail::device
