#pragma once

#include "trireme/ops/cuda/formulas.cuh"

// The kernels around matrix products: what a product's own epilogue does not do, and sums of columns.

namespace trireme::ops::detail::device {

/// The tensors of cuda_kernels::product_finish; S is the type of the sums.
template <class T, class S>
struct finish_tensors {
  T* to;
  S const* sums;
  T const* bias;
  T* kept;
  T const* residual;
  T const* slope_at;
  std::int64_t row, sums_row;
  activation act;
  bool accumulate;
};

/// A task is Width neighbouring elements of a row.
template <int Width, class T, class S>
__global__ void __launch_bounds__(block_threads)
    finish_product(finish_tensors<T, S> const all, std::int64_t rows, std::int64_t packs_of_row) {
  using real = real_for<T>;
  auto const step = all_tasks();
  auto const rows_of_step = step / packs_of_row;  // divisions take longer than the rest of a task, so there are few
  auto const packs_of_step = step - rows_of_step * packs_of_row;
  auto row = first_task() / packs_of_row;
  auto place = first_task() - row * packs_of_row;
  for (; row < rows; row += rows_of_step, place += packs_of_step) {
    if (place >= packs_of_row) {
      place -= packs_of_row;
      if (++row >= rows) break;
    }
    auto const column = place * Width;
    auto const at = row * all.row + column;
    auto const sums = load<Width>(all.sums + row * all.sums_row + column);
    pack<real, Width> z;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) z.values[k] = wide(sums.values[k]);
    auto const add = [&](T const* from) {
      auto const more = load<Width>(from);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) z.values[k] = sum(z.values[k], static_cast<real>(wide(more.values[k])));
    };
    auto const put = [&](T* to) {
      pack<T, Width> out;
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(z.values[k]);
      store(to, out);
    };
    if (all.bias != nullptr) add(all.bias + column);
    if (all.kept != nullptr) put(all.kept + at);
    if (all.slope_at != nullptr) {
      auto const sloped = [&](auto const& y, auto const& x) { return y * activation_slope(x, all.act); };
      z = with_lanes<real, Width>(sloped, z, load<Width>(all.slope_at + at));
    } else if (all.act != activation::none) {
      z = with_lanes<real, Width>([&](auto const& x) { return activated(x, all.act); }, z);
    }
    if (all.residual != nullptr) add(all.residual + at);
    if (all.accumulate) add(all.to + at);
    put(all.to + at);
  }
}

/// Sums of columns in two kernels. In the first one a block has `rows_each` rows and column_lanes packs of columns: a
/// thread adds every row_lanes-th row of its columns, and then the block its threads' sums, both in order.
inline constexpr int column_lanes = 32;
inline constexpr int row_lanes = block_threads / column_lanes;

template <int Width, class T>
__global__ void __launch_bounds__(block_threads)
    sum_columns(real_for<T>* partial, T const* x, std::int64_t rows, std::int64_t columns, std::int64_t row,
                std::int64_t rows_each, std::int64_t tiles) {
  using real = real_for<T>;
  constexpr int at_once = 4;  // loads that a thread has under way
  constexpr int width = column_lanes * Width;
  auto const chunk = static_cast<std::int64_t>(blockIdx.x) / tiles;
  auto const tile = static_cast<std::int64_t>(blockIdx.x) - chunk * tiles;
  auto const column_lane = static_cast<int>(threadIdx.x) % column_lanes;
  auto const row_lane = static_cast<int>(threadIdx.x) / column_lanes;
  auto const first_row = chunk * rows_each;
  auto const end = first_row + rows_each < rows ? first_row + rows_each : rows;
  auto const column = tile * width + column_lane * Width;
  real own[Width] = {};
  auto const add = [&](pack<T, Width> const& more) {
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) own[k] = sum(own[k], static_cast<real>(wide(more.values[k])));
  };
  if (column < columns) {
    auto r = first_row + row_lane;
    auto const* from = x + r * row + column;
    for (; r + (at_once - 1) * row_lanes < end; r += at_once * row_lanes, from += at_once * row_lanes * row) {
      pack<T, Width> some[at_once];
      TRIREME_DEVICE_UNROLL
      for (int i = 0; i < at_once; ++i) some[i] = load<Width>(from + i * row_lanes * row);
      TRIREME_DEVICE_UNROLL
      for (int i = 0; i < at_once; ++i) add(some[i]);
    }
    for (; r < end; r += row_lanes, from += row_lanes * row) add(load<Width>(from));
  }
  auto& sums = block_shared<real[row_lanes][width]>();
  TRIREME_DEVICE_UNROLL
  for (int k = 0; k < Width; ++k) sums[row_lane][column_lane * Width + k] = own[k];
  sync_block();
  for (int c = static_cast<int>(threadIdx.x); c < width && tile * width + c < columns; c += block_threads) {
    auto total = sums[0][c];
    TRIREME_DEVICE_UNROLL
    for (int i = 1; i < row_lanes; ++i) total = sum(total, sums[i][c]);
    partial[chunk * columns + tile * width + c] = total;
  }
}

/// The second kernel: adds the sums of all chunks of rows to `to`. A block has last_columns columns, and last_lanes
/// threads for each.
inline constexpr int last_columns = 8;
inline constexpr int last_lanes = block_threads / last_columns;

template <class G, class Real>
__global__ void __launch_bounds__(block_threads)
    add_column_sums(G* to, Real const* partial, std::int64_t columns, std::int64_t chunks) {
  auto const of_block = static_cast<int>(threadIdx.x) % last_columns;
  auto const lane_of_column = static_cast<int>(threadIdx.x) / last_columns;
  auto const column = static_cast<std::int64_t>(blockIdx.x) * last_columns + of_block;
  Real own = 0;
  if (column < columns) {
    TRIREME_DEVICE_UNROLL
    for (std::int64_t chunk = lane_of_column; chunk < chunks; chunk += last_lanes)
      own = sum(own, partial[chunk * columns + column]);
  }
  auto& sums = block_shared<Real[last_lanes][last_columns]>();
  sums[lane_of_column][of_block] = own;
  sync_block();
  if (lane_of_column != 0 || column >= columns) return;
  for (int i = 1; i < last_lanes; ++i) own = sum(own, sums[i][of_block]);
  to[column] = narrow<G>(sum(static_cast<Real>(wide(to[column])), own));
}

/// Rows that a block of sum_columns() adds: about a thousand blocks in all, whatever the device, so that the order of a
/// sum depends on the shape alone.
inline std::int64_t rows_of_chunk(std::int64_t rows, std::int64_t columns, std::int64_t width) {
  constexpr std::int64_t whole = 4 * row_lanes, most = 512, blocks = 1024;
  auto const tiles = (columns + width - 1) / width;
  auto const each = (rows * tiles / blocks + whole - 1) / whole * whole;
  return each < whole ? whole : each > most ? most : each;
}

}  // namespace trireme::ops::detail::device
