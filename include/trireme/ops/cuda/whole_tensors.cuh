#pragma once

#include "trireme/ops/cuda/formulas.cuh"
#include "trireme/ops/cuda/ordered_sums.cuh"

// Updates that need a norm or a mean of a whole tensor. Each block sums chunks of it in double; one block then adds the
// sums of all chunks and leaves what follows from them in device memory, where the kernel that ends the update reads
// it: the host does not wait. Sums have one order for each size of tensor.

namespace trireme::ops::detail::device {

inline constexpr std::int64_t summed_chunk = 4096;
/// Numbers that are computed on the device; the sums of chunks follow them in memory.
struct whole_tensor_results {
  double by, pull;
};

/// What an element adds to Count sums.
template <int Count>
struct whole_addends {
  double values[Count];
};
/// Calls f(i) for this thread's elements of one chunk after another, and writes the sums of what it returns to
/// sums[j * chunks + chunk].
template <int Count, class F>
__device__ __forceinline__ void sum_chunks(std::int64_t n, double* sums, F&& f) {
  auto const chunks = (n + summed_chunk - 1) / summed_chunk;
  for (std::int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    auto const first = c * summed_chunk;
    auto const end = first + summed_chunk < n ? first + summed_chunk : n;
    double own[Count] = {};
    for (auto i = first + threadIdx.x; i < end; i += block_threads) {
      whole_addends<Count> const more = f(i);
      TRIREME_DEVICE_UNROLL
      for (int j = 0; j < Count; ++j) own[j] = sum(own[j], more.values[j]);
    }
    TRIREME_DEVICE_UNROLL
    for (int j = 0; j < Count; ++j) {
      auto const all = ordered_sum_of_block<block_threads>(own[j]);
      if (threadIdx.x == 0) sums[j * chunks + c] = all;
    }
  }
}
/// The sum of all chunks' sums number j; for a single block, of which every thread gets it.
__device__ __forceinline__ double sum_of_chunks(std::int64_t n, double const* sums, int j) {
  auto const chunks = (n + summed_chunk - 1) / summed_chunk;
  double own = 0;
  for (std::int64_t c = threadIdx.x; c < chunks; c += block_threads) own = sum(own, sums[j * chunks + c]);
  return ordered_sum_of_block<block_threads>(own);
}
template <class M>
__device__ __forceinline__ double squared(M x) {
  auto const wider = static_cast<double>(x);
  return product(wider, wider);
}

template <class M>
struct lamb_constants {
  M correction1, correction2, keep1, keep2, new1, new2, pull, scale, epsilon;
};
template <class M>
__device__ __forceinline__ M lamb_direction(lamb_constants<M> const& c, M w, M m, M v) {
  return sum(quotient(product(m, c.correction1), sum(root(product(v, c.correction2)), c.epsilon)), product(c.pull, w));
}
/// The next moments; sums of squares of the direction and of the values.
template <class M>
__global__ void __launch_bounds__(block_threads) lamb_moments(M const* value, M* first, M* second, M const* gradient,
                                                              std::int64_t n, lamb_constants<M> const c, double* sums) {
  sum_chunks<2>(n, sums, [&](std::int64_t i) {
    M const g = product(c.scale, gradient[i]);
    M const m = sum(product(c.keep1, first[i]), product(c.new1, g));
    M const v = sum(product(c.keep2, second[i]), product(product(c.new2, g), g));
    first[i] = m;
    second[i] = v;
    return whole_addends<2>{{squared(lamb_direction(c, value[i], m, v)), squared(value[i])}};
  });
}
template <class M>
__global__ void __launch_bounds__(block_threads)
    lamb_rate(whole_tensor_results* results, double const* sums, std::int64_t n, double learning_rate) {
  double const squares = sum_of_chunks(n, sums, 0);
  double const length = root(sum_of_chunks(n, sums, 1));
  double const ratio = length > 0 && squares > 0 ? quotient(length, root(squares)) : 1.0;
  if (threadIdx.x == 0) results->by = static_cast<double>(static_cast<M>(product(learning_rate, ratio)));
}
/// value -= rate * direction
template <class M>
struct moving_by_lamb {
  static constexpr int width = pack_width<M>;
  M* value;
  M const* first;
  M const* second;
  lamb_constants<M> constants;
  whole_tensor_results const* results;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const by = static_cast<M>(results->by);
    auto const m = load<Width>(first + i);
    auto const v = load<Width>(second + i);
    auto w = load<Width>(value + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      w.values[k] =
          difference(w.values[k], product(by, lamb_direction(constants, w.values[k], m.values[k], v.values[k])));
    }
    store(value + i, w);
  }
};

struct adafactor_constants {
  std::int64_t rows, columns;
  double learning_rate, keep, epsilon, threshold, least_scale, weight_decay, scale;
  bool scaled;
};
template <class M>
__device__ __forceinline__ double adafactor_square(adafactor_constants const& c, M gradient) {
  return sum(squared(product(c.scale, static_cast<double>(gradient))), c.epsilon);
}
template <class M>
__device__ __forceinline__ M adafactor_average(adafactor_constants const& c, M moment, double now) {
  return static_cast<M>(sum(product(c.keep, static_cast<double>(moment)), product(difference(1.0, c.keep), now)));
}
/// The next means of rows, a warp for each row of all matrices.
template <class M>
__global__ void __launch_bounds__(block_threads)
    adafactor_rows(M* row_means, M const* gradient, std::int64_t all_rows, adafactor_constants const c) {
  auto const lane = static_cast<int>(threadIdx.x) % warp_width;
  for (auto r = first_task() / warp_width; r < all_rows; r += all_tasks() / warp_width) {
    double own = 0;
    for (std::int64_t i = lane; i < c.columns; i += warp_width)
      own = sum(own, adafactor_square(c, gradient[r * c.columns + i]));
    for (int by = warp_width / 2; by > 0; by /= 2) own = sum(own, shuffle_xor(own, by));
    if (lane == 0) row_means[r] = adafactor_average(c, row_means[r], quotient(own, static_cast<double>(c.columns)));
  }
}
inline constexpr std::int64_t rows_of_slice = 64;
/// Sums of columns over slices of rows: sums (matrices, slices, columns).
template <class M>
__global__ void __launch_bounds__(block_threads)
    adafactor_column_sums(double* sums, M const* gradient, std::int64_t matrices, adafactor_constants const c) {
  auto const slices = (c.rows + rows_of_slice - 1) / rows_of_slice;
  for (auto task = first_task(); task < matrices * slices * c.columns; task += all_tasks()) {
    auto const slice = task / c.columns;
    auto const column = task - slice * c.columns;
    auto const matrix = slice / slices;
    auto const first = (slice - matrix * slices) * rows_of_slice;
    auto const end = first + rows_of_slice < c.rows ? first + rows_of_slice : c.rows;
    double own = 0;
    for (auto r = first; r < end; ++r)
      own = sum(own, adafactor_square(c, gradient[(matrix * c.rows + r) * c.columns + column]));
    sums[task] = own;
  }
}
/// The next means of columns.
template <class M>
__global__ void __launch_bounds__(block_threads)
    adafactor_columns(M* column_means, double const* sums, std::int64_t matrices, adafactor_constants const c) {
  auto const slices = (c.rows + rows_of_slice - 1) / rows_of_slice;
  for (auto task = first_task(); task < matrices * c.columns; task += all_tasks()) {
    auto const matrix = task / c.columns;
    auto const column = task - matrix * c.columns;
    double all = 0;
    for (std::int64_t s = 0; s < slices; ++s) all = sum(all, sums[(matrix * slices + s) * c.columns + column]);
    column_means[task] = adafactor_average(c, column_means[task], quotient(all, static_cast<double>(c.rows)));
  }
}
/// What the direction is multiplied by in each row; a block takes one matrix after another.
template <class M>
__global__ void __launch_bounds__(block_threads)
    adafactor_row_factors(M* factors, M const* row_means, std::int64_t matrices, adafactor_constants const c) {
  for (std::int64_t matrix = blockIdx.x; matrix < matrices; matrix += gridDim.x) {
    auto const* const row = row_means + matrix * c.rows;
    double own = 0;
    for (std::int64_t r = threadIdx.x; r < c.rows; r += block_threads)
      own = sum(own, quotient(static_cast<double>(row[r]), static_cast<double>(c.rows)));
    double const mean = ordered_sum_of_block<block_threads>(own);
    for (std::int64_t r = threadIdx.x; r < c.rows; r += block_threads)
      factors[matrix * c.rows + r] = static_cast<M>(root(quotient(mean, static_cast<double>(row[r]))));
  }
}
/// The direction of matrices; sums of squares of it and of the values.
template <class M>
__global__ void __launch_bounds__(block_threads)
    adafactor_direction(M* direction, M const* gradient, M const* factors, M const* column_means, M const* value,
                        std::int64_t n, adafactor_constants const c, double* sums) {
  auto const scale = static_cast<M>(c.scale);
  sum_chunks<2>(n, sums, [&](std::int64_t i) {
    auto const row = i / c.columns;
    auto const column = row / c.rows * c.columns + (i - row * c.columns);
    M const u = quotient(product(product(scale, gradient[i]), factors[row]), root(column_means[column]));
    direction[i] = u;
    return whole_addends<2>{{squared(u), squared(value[i])}};
  });
}
/// The same of a vector, with its next second moment.
template <class M>
__global__ void __launch_bounds__(block_threads)
    adafactor_vector(M* direction, M* second, M const* gradient, M const* value, std::int64_t n,
                     adafactor_constants const c, double* sums) {
  auto const scale = static_cast<M>(c.scale);
  sum_chunks<2>(n, sums, [&](std::int64_t i) {
    M const moment = adafactor_average(c, second[i], adafactor_square(c, gradient[i]));
    M const u = quotient(product(scale, gradient[i]), root(moment));
    second[i] = moment;
    direction[i] = u;
    return whole_addends<2>{{squared(u), squared(value[i])}};
  });
}
template <class M>
__global__ void __launch_bounds__(block_threads)
    adafactor_rate(whole_tensor_results* results, double const* sums, std::int64_t n, adafactor_constants const c) {
  auto const size = static_cast<double>(n);
  double const length = quotient(root(quotient(sum_of_chunks(n, sums, 0), size)), c.threshold);
  double const scale = root(quotient(sum_of_chunks(n, sums, 1), size));
  double by = c.learning_rate;
  if (c.scaled) by = product(by, c.least_scale < scale ? scale : c.least_scale);
  if (threadIdx.x != 0) return;
  results->by = quotient(by, 1.0 < length ? length : 1.0);
  results->pull = difference(1.0, product(by, c.weight_decay));
}
/// value = pull * value - change, where the change is the direction, or a running mean of it.
template <class M>
struct moving_by_adafactor {
  static constexpr int width = pack_width<M>;
  M* value;
  M const* direction;
  M* first;  ///< or nullptr
  M fresh;   ///< the part of a new direction in the mean
  whole_tensor_results const* results;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const along = static_cast<M>(results->by);
    auto const pull = static_cast<M>(results->pull);
    auto change = load<Width>(direction + i);
    auto w = load<Width>(value + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) change.values[k] = product(along, change.values[k]);
    if (first != nullptr) {
      auto const before = load<Width>(first + i);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) {
        change.values[k] = sum(before.values[k], product(fresh, difference(change.values[k], before.values[k])));
      }
      store(first + i, change);
    }
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) w.values[k] = difference(product(pull, w.values[k]), change.values[k]);
    store(value + i, w);
  }
};

/// velocity += (1 - keep) * (scale * gradient - velocity); direction is that, or with `nesterov` the next one.
template <class M>
struct gathering_momentum {
  static constexpr int width = pack_width<M>;
  M* velocity;
  M* direction;
  M const* gradient;
  M keep, fresh, scale;  ///< fresh = 1 - keep
  bool nesterov;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const in = load<Width>(gradient + i);
    auto v = load<Width>(velocity + i);
    pack<M, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      M const g = product(scale, in.values[k]);
      M const next = sum(v.values[k], product(fresh, difference(g, v.values[k])));
      v.values[k] = next;
      out.values[k] = nesterov ? sum(g, product(keep, difference(next, g))) : next;
    }
    store(velocity + i, v);
    store(direction + i, out);
  }
};
template <class M>
__global__ void __launch_bounds__(block_threads) sum_all_squares(M const* x, std::int64_t n, double* sums) {
  sum_chunks<1>(n, sums, [&](std::int64_t i) { return whole_addends<1>{{squared(x[i])}}; });
}
template <class M>
__global__ void __launch_bounds__(block_threads)
    length_to_one(whole_tensor_results* results, double const* sums, std::int64_t n) {
  double const length = root(sum_of_chunks(n, sums, 0));
  if (threadIdx.x == 0) results->by = quotient(1.0, length < 1e-7 ? 1e-7 : length);
}
/// x *= the number that the device has computed
template <class M>
struct scaling_by_result {
  static constexpr int width = pack_width<M>;
  M* x;
  whole_tensor_results const* results;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const by = static_cast<M>(results->by);
    auto out = load<Width>(x + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = product(out.values[k], by);
    store(x + i, out);
  }
};
/// y = a * x + b * y
template <class M>
struct muon_mixing {
  static constexpr int width = pack_width<M>;
  M* y;
  M const* x;
  M a, b;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const in = load<Width>(x + i);
    auto out = load<Width>(y + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = sum(product(a, in.values[k]), product(b, out.values[k]));
    store(y + i, out);
  }
};
/// value = keep * value - by * direction
template <class M>
struct muon_stepping {
  static constexpr int width = pack_width<M>;
  M* value;
  M const* direction;
  M keep, by;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const in = load<Width>(direction + i);
    auto out = load<Width>(value + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = difference(product(keep, out.values[k]), product(by, in.values[k]));
    store(value + i, out);
  }
};

}  // namespace trireme::ops::detail::device
