#pragma once

#include "trireme/ops/cuda/batch_norm_launch.hpp"
#include "trireme/ops/cuda/float_types.cuh"

// Batch normalisation. A thread stays in a few neighbouring columns and goes over rows, so that the numbers of its
// columns are read once. Sums over rows have two stages: a block sums the rows of a chunk, and the chunks' sums, in
// memory, are then added. Both orders depend on the shape alone.

namespace trireme::ops::detail::device {

/// How the threads of a block lie over rows of `packs` packs of columns: `across` of them beside each other, a power of
/// two, and the others below.
struct column_blocks {
  std::int64_t rows, packs;
  std::int64_t chunk;   // rows of a block
  std::int64_t chunks;  // blocks one below the other
  int across;

  static column_blocks of(std::int64_t rows, std::int64_t packs, std::int64_t most_chunks) {
    int across = 1;
    while (across < 32 && across < packs) across *= 2;
    auto const down = block_threads / across;
    std::int64_t const each = 8;  // rows of a thread, so that a block is worth its end
    auto chunks = (rows + down * each - 1) / (down * each);
    chunks = chunks < 1 ? 1 : chunks > most_chunks ? most_chunks : chunks;
    auto const chunk = (rows + chunks - 1) / chunks;
    return {rows, packs, chunk, chunk == 0 ? 1 : (rows + chunk - 1) / chunk, across};
  }
  [[nodiscard]] std::int64_t blocks() const { return (packs + across - 1) / across * chunks; }
};
/// The pack, and the rows, of this thread.
struct column_place {
  std::int64_t pack, first, end, chunk;
  int step;
  bool exists;  // whether there is such a pack
};
__device__ __forceinline__ column_place column_place_of(column_blocks const& all) {
  auto const block = split(blockIdx.x, all.chunks);
  auto const thread = static_cast<int>(threadIdx.x);
  auto const pack = block.quotient * all.across + thread % all.across;
  auto const first = block.rest * all.chunk;
  auto const end = first + all.chunk;
  return {pack,       first + thread / all.across,  end < all.rows ? end : all.rows,
          block.rest, block_threads / all.across, pack < all.packs};
}

// What is summed: add<Width>(place, pack, totals) adds the terms of the elements from `place` on, which are of that
// pack of columns; written(column, totals) gets the sums of a column.

template <class T, int Width>
struct summing_columns {
  using real = sum_type<T>;
  static constexpr int terms = 1;
  real* sum_of;
  T const* x;
  struct columns {};
  __device__ columns at(std::int64_t) const { return {}; }
  __device__ void add(columns const&, std::int64_t place, double (&totals)[1][Width]) const {
    auto const in = load<Width>(x + place);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) totals[0][k] = sum(totals[0][k], static_cast<double>(wide(in.values[k])));
  }
  __device__ void finish(std::int64_t column, double const (&totals)[1]) const {
    sum_of[column] = static_cast<real>(totals[0]);
  }
};
template <class T, int Width>
struct summing_squares {
  using real = sum_type<T>;
  static constexpr int terms = 1;
  real* sum_of;
  T const* x;
  real const* mean;
  struct columns {
    double mean[Width];
  };
  __device__ columns at(std::int64_t column) const {
    columns all;
    for (int k = 0; k < Width; ++k) all.mean[k] = static_cast<double>(mean[column + k]);
    return all;
  }
  __device__ void add(columns const& all, std::int64_t place, double (&totals)[1][Width]) const {
    auto const in = load<Width>(x + place);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      auto const off = difference(static_cast<double>(wide(in.values[k])), all.mean[k]);
      totals[0][k] = sum(totals[0][k], product(off, off));
    }
  }
  __device__ void finish(std::int64_t column, double const (&totals)[1]) const {
    sum_of[column] = static_cast<real>(totals[0]);
  }
};
template <class T, int Width>
struct summing_gradients {
  using real = sum_type<T>;
  static constexpr int terms = 2;
  real* of_dy;
  real* of_both;
  T const* dy;
  T const* x;
  real const* mean;
  real const* rstd;
  struct columns {
    double mean[Width];
  };
  __device__ columns at(std::int64_t column) const {
    columns all;
    for (int k = 0; k < Width; ++k) all.mean[k] = static_cast<double>(mean[column + k]);
    return all;
  }
  __device__ void add(columns const& all, std::int64_t place, double (&totals)[2][Width]) const {
    auto const d = load<Width>(dy + place);
    auto const in = load<Width>(x + place);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      auto const one = static_cast<double>(wide(d.values[k]));
      auto const off = difference(static_cast<double>(wide(in.values[k])), all.mean[k]);
      totals[0][k] = sum(totals[0][k], one);
      totals[1][k] = sum(totals[1][k], product(one, off));
    }
  }
  __device__ void finish(std::int64_t column, double const (&totals)[2]) const {
    of_dy[column] = static_cast<real>(totals[0]);
    of_both[column] = static_cast<real>(product(totals[1], static_cast<double>(rstd[column])));
  }
};

/// The sums of each chunk: partial[(term * columns + column) * chunks + chunk].
template <class Work, int Width>
__global__ void __launch_bounds__(block_threads)
    sum_chunks(Work const work, column_blocks const all, double* partial) {
  auto const here = column_place_of(all);
  auto const channels = all.packs * Width;
  double totals[Work::terms][Width] = {};
  if (here.exists) {
    auto const columns = work.at(here.pack * Width);
    for (auto row = here.first; row < here.end; row += here.step)
      work.add(columns, row * channels + here.pack * Width, totals);
  }
  // Those of one column are added in a tree: half of the threads that are left add the other half's.
  auto& shared = block_shared<double[block_threads][Work::terms][Width]>();
  auto const thread = static_cast<int>(threadIdx.x);
  for (int half = block_threads / 2; half >= all.across; half /= 2) {
    if (thread >= half && thread < 2 * half)
      for (int t = 0; t < Work::terms; ++t)
        for (int k = 0; k < Width; ++k) shared[thread][t][k] = totals[t][k];
    sync_block();
    if (thread < half)
      for (int t = 0; t < Work::terms; ++t)
        for (int k = 0; k < Width; ++k) totals[t][k] = sum(totals[t][k], shared[thread + half][t][k]);
  }
  if (thread >= all.across || !here.exists) return;
  for (int t = 0; t < Work::terms; ++t)
    for (int k = 0; k < Width; ++k)
      partial[(t * channels + here.pack * Width + k) * all.chunks + here.chunk] = totals[t][k];
}
/// A warp adds the chunks of a column.
template <class Work>
__global__ void __launch_bounds__(block_threads)
    add_chunks(Work const work, std::int64_t channels, std::int64_t chunks, double const* partial) {
  auto const lane = static_cast<int>(threadIdx.x) % warp_width;
  for (auto column = first_task() / warp_width; column < channels; column += all_tasks() / warp_width) {
    double totals[Work::terms] = {};
    for (int t = 0; t < Work::terms; ++t) {
      for (std::int64_t chunk = lane; chunk < chunks; chunk += warp_width)
        totals[t] = sum(totals[t], partial[(t * channels + column) * chunks + chunk]);
      for (int by = warp_width / 2; by > 0; by /= 2) totals[t] = sum(totals[t], shuffle_xor(totals[t], by));
    }
    if (lane == 0) work.finish(column, totals);
  }
}

template <class Real>
struct inverting_deviations {
  static constexpr int width = 1;
  Real* rstd;
  Real const* variance;
  Real epsilon;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    rstd[i] = quotient(Real{1}, root(sum(variance[i], epsilon)));
  }
};

template <class T, int Width>
struct normalising {
  using real = sum_type<T>;
  T* y;
  T const* x;
  real const* mean;
  real const* rstd;
  T const* gain;
  T const* bias;
  struct columns {
    real mean[Width], rstd[Width], gain[Width], bias[Width];
  };
  __device__ columns at(std::int64_t column) const {
    columns all;
    for (int k = 0; k < Width; ++k) {
      all.mean[k] = mean[column + k];
      all.rstd[k] = rstd[column + k];
      all.gain[k] = wide(gain[column + k]);
      all.bias[k] = wide(bias[column + k]);
    }
    return all;
  }
  __device__ void write(columns const& all, std::int64_t place) const {
    auto out = load<Width>(x + place);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      auto const normal = product(difference(wide(out.values[k]), all.mean[k]), all.rstd[k]);
      out.values[k] = narrow<T>(sum(product(normal, all.gain[k]), all.bias[k]));
    }
    store(y + place, out);
  }
};
template <class T, int Width>
struct normalising_backward {
  using real = sum_type<T>;
  T* dx;
  T const* dy;
  T const* x;
  real const* mean;
  real const* rstd;
  T const* gain;
  real const* of_dy;
  real const* of_both;
  real share;  // 1 / rows of the sums
  bool accumulate;
  struct columns {
    real mean[Width], rstd[Width], factor[Width], of_dy[Width], of_both[Width];
  };
  __device__ columns at(std::int64_t column) const {
    columns all;
    for (int k = 0; k < Width; ++k) {
      all.mean[k] = mean[column + k];
      all.rstd[k] = rstd[column + k];
      all.factor[k] = product(wide(gain[column + k]), rstd[column + k]);
      all.of_dy[k] = of_dy[column + k];
      all.of_both[k] = of_both[column + k];
    }
    return all;
  }
  __device__ void write(columns const& all, std::int64_t place) const {
    auto const d = load<Width>(dy + place);
    auto const in = load<Width>(x + place);
    pack<T, Width> out;
    if (accumulate) out = load<Width>(dx + place);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      auto const normal = product(difference(wide(in.values[k]), all.mean[k]), all.rstd[k]);
      auto const along = product(share, sum(all.of_dy[k], product(normal, all.of_both[k])));
      auto const one = product(all.factor[k], difference(wide(d.values[k]), along));
      out.values[k] = narrow<T>(accumulate ? sum(wide(out.values[k]), one) : one);
    }
    store(dx + place, out);
  }
};

template <class Work, int Width>
__global__ void __launch_bounds__(block_threads) for_columns(Work const work, column_blocks const all) {
  auto const here = column_place_of(all);
  if (!here.exists) return;
  auto const columns = work.at(here.pack * Width);
  for (auto row = here.first; row < here.end; row += here.step)
    work.write(columns, (row * all.packs + here.pack) * Width);
}

/// The most chunks of a column's sum.
inline constexpr std::int64_t most_column_chunks = 512;
/// The width of packs of sums: each number of a pack is two or three numbers of double in a thread.
template <class T>
inline constexpr int sum_width = std::min(pack_width<T>, 4);

template <int Width, class Work>
int launch_column_sums(char const* name, Work const& work, std::int64_t rows, std::int64_t channels, double* scratch,
                       void* stream) {
  auto const all = column_blocks::of(rows, channels / Width, most_column_chunks);
  if (auto const code = run(name, &sum_chunks<Work, Width>, all.blocks(), block_threads, stream, work, all, scratch);
      code != launch_succeeded)
    return code;
  return run(name, &add_chunks<Work>, blocks_for(channels * warp_width), block_threads, stream, work, channels,
             all.chunks, scratch);
}
template <int Width, class Work>
int launch_columns(char const* name, Work const& work, std::int64_t rows, std::int64_t channels, void* stream) {
  if (rows == 0 || channels == 0) return launch_succeeded;
  auto const all = column_blocks::of(rows, channels / Width, std::int64_t{1} << 16);
  return run(name, &for_columns<Work, Width>, all.blocks(), block_threads, stream, work, all);
}

}  // namespace trireme::ops::detail::device
