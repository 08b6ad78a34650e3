#pragma once

#include <cstdint>

#include "trireme/ops/cuda/held.cuh"

// Normalisation of the rows of a matrix: layer_norm (Centred), and rms_norm, which has no mean and no bias. bfloat16
// and float16 are computed in float and rounded once.
//
// A row is read once and stays in the registers of the threads that share it: the lanes of a warp, or a block if the
// row is longer. Rows that do not fit, that are not aligned to 16 bytes, or of double are read several times, by a
// block each. Sums have a fixed order: each thread adds its own elements, then the lanes of a warp are added in a tree,
// and the warps in their order.

namespace trireme::ops::detail::device {

/// The tensors of a forward pass; all rows have `channels` elements.
template <class T>
struct norm_forward {
  using real = real_for<T>;
  T* y;
  real* mean;  // not read or written by rms_norm, nor is `bias`
  real* rstd;
  T const* x;
  T const* gain;
  T const* bias;
  std::int64_t rows, channels;
  real share, epsilon;  // share: 1 / channels
};

/// Those of a backward pass. Each block writes the sums of its rows for the gradients of the gain and of the bias to a
/// row of `partial`, one after the other.
template <class T>
struct norm_backward {
  using real = real_for<T>;
  T* dx;
  T const* dy;
  T const* x;
  real const* mean;
  real const* rstd;
  T const* gain;
  real* partial;
  std::int64_t rows, channels;
  real share;
  bool accumulate;
};

/// The sums of Count numbers over the Threads threads that share a row; each of them gets the totals. `round` counts
/// the calls of a block.
template <int Threads, class Real, int Count>
__device__ __forceinline__ void sum_over_row(Real (&x)[Count], int& round) {
  TRIREME_DEVICE_UNROLL
  for (int by = warp_width / 2; by > 0; by /= 2) {
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Count; ++k) x[k] = sum(x[k], shuffle_xor(x[k], by));
  }
  if constexpr (Threads > warp_width) {
    // Two arrays in turn: when a thread writes one again, all threads have left the call that read it before.
    constexpr int warps = Threads / warp_width;
    auto& of_warps = block_shared<Real[2][Count][warps]>()[round & 1];
    ++round;
    auto const thread = static_cast<int>(threadIdx.x);
    if (thread % warp_width == 0) {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Count; ++k) of_warps[k][thread / warp_width] = x[k];
    }
    sync_block();
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Count; ++k) {
      Real total = 0;
      TRIREME_DEVICE_UNROLL
      for (int w = 0; w < warps; ++w) total = sum(total, of_warps[k][w]);
      x[k] = total;
    }
  }
}

/// How the threads of a block share rows that stay in registers: Threads of them have a row of up to Threads * Values
/// elements, and a thread has packs of 16 bytes.
template <class T, int Values, int Threads, int Block>
struct row_sharing {
  static constexpr int width = pack_width<T>;
  static constexpr int packs = Values / width;
  static constexpr int rows_at_once = Block / Threads;
  static_assert(packs * width == Values && rows_at_once * Threads == Block);

  int thread = static_cast<int>(threadIdx.x) % Threads;
  int channels;

  __device__ __forceinline__ explicit row_sharing(std::int64_t channels_of_row)
      : channels(static_cast<int>(channels_of_row)) {}
  /// The first row of this thread, and the step to its next one.
  __device__ __forceinline__ static std::int64_t first() {
    return static_cast<std::int64_t>(blockIdx.x) * rows_at_once + static_cast<int>(threadIdx.x) / Threads;
  }
  __device__ __forceinline__ static std::int64_t step() { return static_cast<std::int64_t>(gridDim.x) * rows_at_once; }
  /// The channel at which pack k of this thread begins, and whether the row has it.
  __device__ __forceinline__ int begin(int k) const { return (k * Threads + thread) * width; }
  __device__ __forceinline__ bool has(int k) const { return begin(k) < channels; }
};

template <bool Centred, class T, int Values, int Threads, int Block>
__global__ void __launch_bounds__(Block) normalise_rows(norm_forward<T> const at) {
  using real = real_for<T>;
  using sharing = row_sharing<T, Values, Threads, Block>;
  // A block waits for its own threads, so it reads its next row meanwhile (float would take too many registers).
  // Warps have other warps that read.
  constexpr bool ahead = Threads > warp_width && sizeof(T) == 2;
  sharing const own(at.channels);
  int round = 0;
  held<T, sharing::width> in[sharing::packs];
  auto const read = [&](std::int64_t row) {
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < sharing::packs; ++k) {
      in[k] = {};
      if (own.has(k) && row < at.rows) in[k].read(at.x + row * at.channels + own.begin(k));
    }
  };
  if constexpr (ahead) read(own.first());
  for (auto row = own.first(); row < at.rows; row += own.step()) {
    if constexpr (!ahead) read(row);
    real values[sharing::packs][sharing::width];
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < sharing::packs; ++k) {
      TRIREME_DEVICE_UNROLL
      for (int w = 0; w < sharing::width; ++w) values[k][w] = in[k][w];
    }
    if constexpr (ahead) read(row + own.step());
    real middle = 0;
    if constexpr (Centred) {
      real total[1] = {0};
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < sharing::packs; ++k) {
        TRIREME_DEVICE_UNROLL
        for (int w = 0; w < sharing::width; ++w) total[0] = sum(total[0], values[k][w]);
      }
      sum_over_row<Threads>(total, round);
      middle = product(total[0], at.share);
    }
    real squares[1] = {0};
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < sharing::packs; ++k) {
      if (!own.has(k)) continue;
      TRIREME_DEVICE_UNROLL
      for (int w = 0; w < sharing::width; ++w) {
        if constexpr (Centred) values[k][w] = difference(values[k][w], middle);
        squares[0] = fused(values[k][w], values[k][w], squares[0]);
      }
    }
    sum_over_row<Threads>(squares, round);
    real const inverse = quotient(real{1}, root(sum(product(squares[0], at.share), at.epsilon)));
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < sharing::packs; ++k) {
      if (!own.has(k)) continue;
      auto const c = own.begin(k);
      held<T, sharing::width> gain;
      gain.read(at.gain + c);
      if constexpr (Centred) {
        held<T, sharing::width> bias;
        bias.read(at.bias + c);
        TRIREME_DEVICE_UNROLL
        for (int w = 0; w < sharing::width; ++w)
          values[k][w] = fused(product(values[k][w], inverse), gain[w], bias[w]);
      } else {
        TRIREME_DEVICE_UNROLL
        for (int w = 0; w < sharing::width; ++w) values[k][w] = product(product(values[k][w], inverse), gain[w]);
      }
      held<T, sharing::width>::write(at.y + row * at.channels + c, values[k]);
    }
    if (own.thread == 0) {
      if constexpr (Centred) at.mean[row] = middle;
      at.rstd[row] = inverse;
    }
  }
}

/// The same for rows of any length at any address, which are read up to three times.
template <bool Centred, class T>
__global__ void __launch_bounds__(block_threads) normalise_any_rows(norm_forward<T> const at) {
  using real = real_for<T>;
  int round = 0;
  for (std::int64_t row = blockIdx.x; row < at.rows; row += gridDim.x) {
    T const* const x = at.x + row * at.channels;
    T* const y = at.y + row * at.channels;
    real middle = 0;
    if constexpr (Centred) {
      real total[1] = {0};
      for (std::int64_t c = threadIdx.x; c < at.channels; c += block_threads)
        total[0] = sum(total[0], static_cast<real>(wide(x[c])));
      sum_over_row<block_threads>(total, round);
      middle = product(total[0], at.share);
    }
    real squares[1] = {0};
    for (std::int64_t c = threadIdx.x; c < at.channels; c += block_threads) {
      real const distance = difference(static_cast<real>(wide(x[c])), middle);
      squares[0] = fused(distance, distance, squares[0]);
    }
    sum_over_row<block_threads>(squares, round);
    real const inverse = quotient(real{1}, root(sum(product(squares[0], at.share), at.epsilon)));
    for (std::int64_t c = threadIdx.x; c < at.channels; c += block_threads) {
      real const normal = product(difference(static_cast<real>(wide(x[c])), middle), inverse);
      if constexpr (Centred)
        y[c] = narrow<T>(fused(normal, static_cast<real>(wide(at.gain[c])), static_cast<real>(wide(at.bias[c]))));
      else
        y[c] = narrow<T>(product(normal, static_cast<real>(wide(at.gain[c]))));
    }
    if (threadIdx.x == 0) {
      if constexpr (Centred) at.mean[row] = middle;
      at.rstd[row] = inverse;
    }
  }
}

// With n = (x - mean) rstd and g = dy gain: dx = rstd (g - average(g) - n average(g n)); without a mean the first
// average is left out. The gradient of the gain is the sum of dy n over rows, that of the bias the sum of dy: a thread
// adds these for its columns and the rows of its warp or block in their order, then the warps of a block are added in
// theirs. add_column_parts adds the blocks.

template <bool Centred, class T, int Values, int Threads, int Block, int BlocksOfProcessor>
__global__ void __launch_bounds__(Block, BlocksOfProcessor) normalise_rows_backward(norm_backward<T> const at) {
  using real = real_for<T>;
  using sharing = row_sharing<T, Values, Threads, Block>;
  constexpr int packs = sharing::packs;
  constexpr int width = sharing::width;
  constexpr int sums_of_column = Centred ? 2 : 1;
  sharing const own(at.channels);
  int round = 0;
  real columns[sums_of_column][packs][width] = {};  // of the gain, of the bias
  // As in normalise_rows; dx may be dy, but the rows that are read ahead are this block's own, written later.
  constexpr bool ahead = Threads > warp_width && sizeof(T) == 2;
  held<T, width> next_slopes[packs], next_numbers[packs];
  real next_mean = 0, next_rstd = 0;
  auto const read = [&](std::int64_t row) {
    if (row < at.rows) {
      if constexpr (Centred) next_mean = at.mean[row];
      next_rstd = at.rstd[row];
    }
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < packs; ++k) {
      next_slopes[k] = next_numbers[k] = {};
      if (!own.has(k) || row >= at.rows) continue;
      next_slopes[k].read(at.dy + row * at.channels + own.begin(k));
      next_numbers[k].read(at.x + row * at.channels + own.begin(k));
    }
  };
  if constexpr (ahead) read(own.first());
  for (auto row = own.first(); row < at.rows; row += own.step()) {
    auto const offset = row * at.channels;
    held<T, width> slopes[packs], numbers[packs], before[packs];
    if constexpr (!ahead) read(row);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < packs; ++k) {
      slopes[k] = next_slopes[k];
      numbers[k] = next_numbers[k];
      before[k] = {};
    }
    real const centre = next_mean;
    real const factor = next_rstd;
    if constexpr (ahead) read(row + own.step());
    if (at.accumulate) {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < packs; ++k)
        if (own.has(k)) before[k].read(at.dx + offset + own.begin(k));
    }
    auto const normal_of = [&](real x) { return product(Centred ? difference(x, centre) : x, factor); };
    real sums[sums_of_column] = {};  // of g n, of g
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < packs; ++k) {
      if (!own.has(k)) continue;
      held<T, width> gain;
      gain.read(at.gain + own.begin(k));
      TRIREME_DEVICE_UNROLL
      for (int w = 0; w < width; ++w) {
        real const slope = slopes[k][w];
        real const normal = normal_of(numbers[k][w]);
        real const g = product(slope, gain[w]);
        sums[0] = fused(g, normal, sums[0]);
        columns[0][k][w] = fused(slope, normal, columns[0][k][w]);
        if constexpr (Centred) {
          sums[1] = sum(sums[1], g);
          columns[1][k][w] = sum(columns[1][k][w], slope);
        }
      }
    }
    sum_over_row<Threads>(sums, round);
    real const tilt = product(-sums[0], at.share);
    real const average = Centred ? product(-sums[sums_of_column - 1], at.share) : real{0};
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < packs; ++k) {
      if (!own.has(k)) continue;
      slopes[k].keep();
      numbers[k].keep();
      held<T, width> gain;
      gain.read(at.gain + own.begin(k));
      real out[width];
      TRIREME_DEVICE_UNROLL
      for (int w = 0; w < width; ++w) {
        real g = product(slopes[k][w], gain[w]);
        if constexpr (Centred) g = sum(g, average);
        out[w] = fused(factor, fused(tilt, normal_of(numbers[k][w]), g), before[k][w]);
      }
      held<T, width>::write(at.dx + offset + own.begin(k), out);
    }
  }
  if constexpr (Threads < Block) {
    auto& of_warps = block_shared<real[sums_of_column][packs][width][Threads], 1>();
    auto const turn = static_cast<int>(threadIdx.x) / Threads;
    for (int w = 0; w + 1 < Block / Threads; ++w) {
      if (turn == w) {
        TRIREME_DEVICE_UNROLL
        for (int s = 0; s < sums_of_column; ++s) {
          TRIREME_DEVICE_UNROLL
          for (int k = 0; k < packs; ++k) {
            TRIREME_DEVICE_UNROLL
            for (int e = 0; e < width; ++e) {
              auto& total = of_warps[s][k][e][own.thread];
              total = w == 0 ? columns[s][k][e] : sum(total, columns[s][k][e]);
            }
          }
        }
      }
      sync_block();
    }
    if (turn + 1 != Block / Threads) return;
    TRIREME_DEVICE_UNROLL
    for (int s = 0; s < sums_of_column; ++s) {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < packs; ++k) {
        TRIREME_DEVICE_UNROLL
        for (int e = 0; e < width; ++e)
          columns[s][k][e] = sum(of_warps[s][k][e][own.thread], columns[s][k][e]);
      }
    }
  }
  real* const partial = at.partial + static_cast<std::int64_t>(blockIdx.x) * sums_of_column * at.channels;
  TRIREME_DEVICE_UNROLL
  for (int s = 0; s < sums_of_column; ++s) {
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < packs; ++k) {
      if (!own.has(k)) continue;
      pack<real, width> out;
      TRIREME_DEVICE_UNROLL
      for (int e = 0; e < width; ++e) out.values[e] = columns[s][k][e];
      store(partial + s * at.channels + own.begin(k), out);
    }
  }
}

/// The same for rows of any length at any address. A thread keeps the sums of its columns in `partial`.
template <bool Centred, class T>
__global__ void __launch_bounds__(block_threads) normalise_any_rows_backward(norm_backward<T> const at) {
  using real = real_for<T>;
  constexpr int sums_of_column = Centred ? 2 : 1;
  real* const of_gain = at.partial + static_cast<std::int64_t>(blockIdx.x) * sums_of_column * at.channels;
  real* const of_bias = of_gain + at.channels;
  int round = 0;
  bool first = true;
  for (std::int64_t row = blockIdx.x; row < at.rows; row += gridDim.x, first = false) {
    T const* const dy = at.dy + row * at.channels;
    T const* const x = at.x + row * at.channels;
    T* const dx = at.dx + row * at.channels;
    real const centre = Centred ? at.mean[row] : real{0};
    real const factor = at.rstd[row];
    auto const normal_at = [&](std::int64_t c) {
      return product(difference(static_cast<real>(wide(x[c])), centre), factor);
    };
    auto const g_at = [&](std::int64_t c) {
      return product(static_cast<real>(wide(dy[c])), static_cast<real>(wide(at.gain[c])));
    };
    real sums[2] = {0, 0};
    for (std::int64_t c = threadIdx.x; c < at.channels; c += block_threads) {
      real const slope = wide(dy[c]);
      real const normal = normal_at(c);
      real const g = g_at(c);
      sums[0] = fused(g, normal, sums[0]);
      of_gain[c] = fused(slope, normal, first ? real{0} : of_gain[c]);
      if constexpr (Centred) {
        sums[1] = sum(sums[1], g);
        of_bias[c] = sum(slope, first ? real{0} : of_bias[c]);
      }
    }
    sum_over_row<block_threads>(sums, round);
    real const tilt = product(-sums[0], at.share);
    real const average = Centred ? product(-sums[1], at.share) : real{0};
    for (std::int64_t c = threadIdx.x; c < at.channels; c += block_threads) {
      real const inner = fused(tilt, normal_at(c), sum(g_at(c), average));
      dx[c] = narrow<T>(fused(factor, inner, at.accumulate ? static_cast<real>(wide(dx[c])) : real{0}));
    }
  }
}

}  // namespace trireme::ops::detail::device
