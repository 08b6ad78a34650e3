#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "trireme/ops/cuda/formulas.cuh"
#include "trireme/ops/cuda/ordered_sums.cuh"

// Losses. A row of logits belongs to one block. What each row loses is left in memory in double, and sum_in_order adds
// it in an order that depends on the number of rows alone.

namespace trireme::ops::detail::device {

/// The most threads of a block that has a row.
inline constexpr int row_threads = largest_block;
/// The packs of a row that a thread keeps in registers. With 1024 threads they are all of a row of 57344 numbers of 16
/// bits, such as GPT-2's logits; what a longer row has beyond that is read again, from the cache.
inline constexpr int kept_packs = 7;
/// The elements that one block compares with their targets.
inline constexpr std::int64_t compared_elements = 4096;

/// exp(x). Logits of 16 bits have errors of 2^-9 or 2^-12, so theirs is the device's quick one; in float it is the
/// host's.
template <class T, class Real>
__device__ __forceinline__ Real natural_power(Real x) {
  if constexpr (storage_float<T>)
    return quick_exp2(product(x, 1.44269504F));
  else
    return exp(lane<Real>{x}).v;
}

/// How the threads of a block share the first n numbers of a row: packs at aligned addresses in turn, and each of the
/// few single numbers before and after these goes to one thread.
template <class T>
struct row_shares {
  static constexpr int width = pack_width<T>;
  int head, packs, singles;

  __device__ row_shares(T const* row, int n) {
    auto const beyond = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % width);
    auto const before = beyond == 0 ? 0 : width - beyond;
    head = before < n ? before : n;
    packs = (n - head) / width;
    singles = n - packs * width;
  }
  /// Where they begin in the row.
  [[nodiscard]] __device__ int pack_at(int p) const { return head + p * width; }
  [[nodiscard]] __device__ int single_at(int s) const { return s < head ? s : s + packs * width; }
  /// The thread that has number i.
  [[nodiscard]] __device__ int owner(int i, int threads) const {
    if (i < head) return i;
    auto const p = (i - head) / width;
    return p < packs ? p % threads : i - packs * width;
  }
};

/// Calls f(width, place) for this thread's numbers of a row: `width` of them, a compile-time constant, from `place` on.
template <class T, class F>
__device__ __forceinline__ void for_shares(row_shares<T> const& shares, F&& f) {
  auto const thread = static_cast<int>(threadIdx.x);
  auto const threads = static_cast<int>(blockDim.x);
  for (int p = thread; p < shares.packs; p += threads)
    f(std::integral_constant<int, row_shares<T>::width>{}, shares.pack_at(p));
  if (thread < shares.singles) f(std::integral_constant<int, 1>{}, shares.single_at(thread));
}
/// Sets n numbers to 0; all threads of the block take part.
template <class T>
__device__ __forceinline__ void clear_row(T* row, int n) {
  for_shares(row_shares<T>(row, n), [&]<int Width>(std::integral_constant<int, Width>, int place) {
    pack<T, Width> zeros;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) zeros.values[k] = narrow<T>(real_for<T>{0});
    store(row + place, zeros);
  });
}

/// What a cross entropy does with its rows.
template <class Real>
struct loss_of_rows {
  Real weight;
  bool gradient;
  std::int32_t ignored;
  Real smoothing;
  double z;

  [[nodiscard]] __device__ bool leaves_out(std::int32_t target) const { return target < 0 || target == ignored; }
};
/// A target that is refused, as loss_numbers::first_refused has it: the largest is the first one.
[[nodiscard]] __device__ inline unsigned long long refused_target(std::int64_t number, std::uint32_t bits) {
  return static_cast<unsigned long long>(~static_cast<std::uint32_t>(number)) << 32 | bits;
}
/// Where rows leave their losses, and what the host is told about them.
struct loss_marks {
  double* losses;
  unsigned long long* left_out;
  unsigned long long* first_refused;

  __device__ void leave_out(std::int64_t row, std::int32_t target, bool refused) const {
    losses[row] = 0;
    atomic_add(*left_out, 1);
    if (refused) atomic_max(*first_refused, refused_target(row, static_cast<std::uint32_t>(target)));
  }
};

/// The slope of a row's loss: exp(logit - peak) * factor - less, and of the target's logit `of_target`.
template <class Real>
struct row_slope {
  Real peak, factor, less, of_target;

  // `share` is the target's probability. With z, the slope of the log of the mass counts (1 + 2 z log mass) times.
  __device__ row_slope(loss_of_rows<Real> const& how, Real row_peak, Real mass, Real chosen_exponential, int classes) {
    auto const steep =
        how.z > 0
            ? static_cast<Real>(1 + 2 * how.z * (std::log(static_cast<double>(mass)) + static_cast<double>(row_peak)))
            : Real{1};
    auto const even = how.smoothing / static_cast<Real>(classes);
    auto const share = chosen_exponential / mass;
    peak = row_peak;
    factor = how.weight / mass * steep;
    less = how.weight * even;
    of_target = how.weight * (share * steep - even - (Real{1} - how.smoothing));
  }
  template <class T>
  [[nodiscard]] __device__ __forceinline__ T at(T logit) const {
    return narrow<T>(fused(natural_power<T>(difference(opened_lane<Real>(logit).v, peak)), factor, -less));
  }
};

/// 16 bytes of a row.
struct alignas(16) logit_words {
  std::uint32_t of[4];
};

/// The losses of rows, and their gradients in place. A block takes one row after the other: it has the row in
/// registers, finds the largest logit and the sum of exponentials, and writes the gradient, so that a row is read once
/// and written once. Staged: while it computes one row, the next one is copied to shared memory (logit_words for each
/// thread and kept pack), so that it waits for memory only if that is slower. There is one block of 1024 threads a
/// processor, since no more registers fit.
/// @param row_length  from a row to the next one; what it has beyond `classes` is not read, and its gradient is 0
template <class T, bool Staged>
__global__ void __launch_bounds__(row_threads, 1)
    cross_entropy_rows(T* logits, std::int64_t rows, std::int64_t row_length, int classes, std::int32_t const* targets,
                       loss_of_rows<real_for<T>> const how, loss_marks const marks) {
  using real = real_for<T>;
  constexpr int width = row_shares<T>::width;
  auto const thread = static_cast<int>(threadIdx.x);
  auto const threads = static_cast<int>(blockDim.x);
  logit_words* const staging = Staged ? reinterpret_cast<logit_words*>(sized_shared()) + thread : nullptr;
  auto const start = [&](T const* values) {
    row_shares<T> const shares(values, classes);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < kept_packs; ++k) {
      if (auto const p = thread + k * threads; p < shares.packs)
        start_copy(staging + k * threads, values + shares.pack_at(p), true);
    }
  };
  auto const single_of = [&](T const* values) {
    row_shares<T> const shares(values, classes);
    return thread < shares.singles ? values[shares.single_at(thread)] : narrow<T>(real{0});
  };

  auto row = static_cast<std::int64_t>(blockIdx.x);
  if constexpr (Staged) start(logits + row * row_length);
  auto target = targets[row];
  auto single = single_of(logits + row * row_length);
  for (auto next = row; row < rows; row = next) {
    next = row + gridDim.x;
    T* const values = logits + row * row_length;
    row_shares<T> const shares(values, classes);
    bool const has_single = thread < shares.singles;
    logit_words kept[kept_packs];
    if constexpr (Staged) finish_copies();
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < kept_packs; ++k) {
      if (auto const p = thread + k * threads; p < shares.packs) {
        if constexpr (Staged)
          kept[k] = staging[k * threads];
        else
          kept[k] = std::bit_cast<logit_words>(load<width>(values + shares.pack_at(p)));
      }
    }
    bool const counts = !how.leaves_out(target) && target < classes;
    auto const chosen = opened_lane<real>(values[counts ? target : 0]).v;
    auto const for_packs = [&](auto&& f) {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < kept_packs; ++k) {
        if (auto const p = thread + k * threads; p < shares.packs) {
          for (auto& word : kept[k].of) word = anew(word);  // else all numbers are kept as floats, which do not fit
          f(p, std::bit_cast<pack<T, width>>(kept[k]));
        }
      }
      for (auto p = thread + kept_packs * threads; p < shares.packs; p += threads)
        f(p, load<width>(values + shares.pack_at(p)));
    };

    auto top = -std::numeric_limits<real>::infinity();
    if (has_single) top = opened_lane<real>(single).v;
    for_packs([&](int, pack<T, width> const& numbers) {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < width; ++k) top = larger{}(top, opened_lane<real>(numbers.values[k]).v);
    });
    // Passes over NaN, which then reaches the loss through the sum of exponentials.
    auto const peak = joined_in_block<0>(top, larger{}, -std::numeric_limits<real>::infinity());
    // All threads have read the row here, and what was staged.
    auto const this_target = target;
    auto const this_single = single;
    if (next < rows) {
      if constexpr (Staged) start(logits + next * row_length);
      target = targets[next];
      single = single_of(logits + next * row_length);
    }
    // Not earlier: a row that is not staged is on its way while its target is looked at.
    if (!counts) {
      if (thread == 0) marks.leave_out(row, this_target, !how.leaves_out(this_target));
      if (how.gradient) clear_row(values, static_cast<int>(row_length));
      sync_block();  // before the next row's peak is joined
      continue;
    }

    real mass = 0;
    if (has_single) mass = natural_power<T>(difference(opened_lane<real>(this_single).v, peak));
    for_packs([&](int, pack<T, width> const& numbers) {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < width; ++k)
        mass = sum(mass, natural_power<T>(difference(opened_lane<real>(numbers.values[k]).v, peak)));
    });
    mass = joined_in_block<1>(mass, added{}, real{0});

    real total = 0;  // of the logits
    if (how.smoothing > 0) {
      if (has_single) total = opened_lane<real>(this_single).v;
      for_packs([&](int, pack<T, width> const& numbers) {
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < width; ++k) total = sum(total, opened_lane<real>(numbers.values[k]).v);
      });
      total = joined_in_block<2>(total, added{}, real{0});
    }
    if (thread == threads - 1) {  // which has the fewest numbers
      auto const log_mass = std::log(static_cast<double>(mass)) + static_cast<double>(peak);
      auto subtracted = static_cast<double>(chosen);
      if (how.smoothing > 0) {
        auto const smoothing = static_cast<double>(how.smoothing);
        subtracted = (1 - smoothing) * subtracted + smoothing / classes * static_cast<double>(total);
      }
      marks.losses[row] = log_mass - subtracted + how.z * log_mass * log_mass;
    }
    if (!how.gradient) continue;

    row_slope<real> const slope(how, peak, mass, natural_power<T>(difference(chosen, peak)), classes);
    for_packs([&](int p, pack<T, width> const& numbers) {
      pack<T, width> out;
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < width; ++k) out.values[k] = slope.at(numbers.values[k]);
      store(values + shares.pack_at(p), out);
    });
    if (has_single) values[shares.single_at(thread)] = slope.at(this_single);
    // By the thread that has just written there.
    if (thread == shares.owner(this_target, threads)) values[this_target] = narrow<T>(slope.of_target);
    for (auto i = classes + static_cast<std::int64_t>(thread); i < row_length; i += threads)
      values[i] = narrow<T>(real{0});
  }
}

/// peaks[row] = the largest logit
template <class T>
__global__ void __launch_bounds__(row_threads) row_peaks(T const* logits, int classes, real_for<T>* peaks) {
  using real = real_for<T>;
  auto const row = static_cast<std::int64_t>(blockIdx.x);
  T const* const values = logits + row * classes;
  auto top = -std::numeric_limits<real>::infinity();
  for_shares(row_shares<T>(values, classes), [&]<int Width>(std::integral_constant<int, Width>, int place) {
    auto const numbers = load<Width>(values + place);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) top = larger{}(top, opened_lane<real>(numbers.values[k]).v);
  });
  top = joined_in_block<0>(top, larger{}, -std::numeric_limits<real>::infinity());
  if (threadIdx.x == 0) peaks[row] = top;
}

/// The classes from `first` on, of `whole`.
struct class_range {
  std::int64_t first, whole;
  int here;
  /// The place of a target here; -1 if it is elsewhere.
  [[nodiscard]] __device__ int place(std::int32_t target) const {
    auto const at = target - first;
    return at >= 0 && at < here ? static_cast<int>(at) : -1;
  }
};

/// masses[row] = the sum of exp(logit - peak); chosen[row] = the target's logit, if it is here, with smoothing its part
/// of the smoothed logits
template <class T>
__global__ void __launch_bounds__(row_threads)
    row_masses(T const* logits, class_range const classes, std::int32_t const* targets, double smoothing,
               real_for<T> const* peaks, real_for<T>* masses, real_for<T>* chosen) {
  using real = real_for<T>;
  auto const row = static_cast<std::int64_t>(blockIdx.x);
  T const* const values = logits + row * classes.here;
  auto const peak = peaks[row];
  real mass = 0, total = 0;
  for_shares(row_shares<T>(values, classes.here), [&]<int Width>(std::integral_constant<int, Width>, int place) {
    auto const numbers = load<Width>(values + place);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      auto const logit = opened_lane<real>(numbers.values[k]).v;
      mass = sum(mass, natural_power<T>(difference(logit, peak)));
      total = sum(total, logit);
    }
  });
  mass = joined_in_block<0>(mass, added{}, real{0});
  total = joined_in_block<1>(total, added{}, real{0});
  if (threadIdx.x != 0) return;
  auto const target = classes.place(targets[row]);
  auto own = target < 0 ? 0.0 : static_cast<double>(opened_lane<real>(values[target]).v);
  if (smoothing > 0)
    own = (1 - smoothing) * own + smoothing / static_cast<double>(classes.whole) * static_cast<double>(total);
  masses[row] = mass;
  chosen[row] = static_cast<real>(own);
}

/// The loss of a row of which only some classes are here, and its gradient for these.
template <class T>
__global__ void __launch_bounds__(row_threads)
    cross_entropy_part_rows(T* logits, class_range const classes, std::int32_t const* targets,
                            loss_of_rows<real_for<T>> const how, real_for<T> const* peaks, real_for<T> const* masses,
                            real_for<T> const* chosen, loss_marks const marks) {
  using real = real_for<T>;
  auto const row = static_cast<std::int64_t>(blockIdx.x);
  auto const thread = static_cast<int>(threadIdx.x);
  T* const values = logits + row * classes.here;
  auto const target = targets[row];
  if (how.leaves_out(target) || target >= classes.whole) {
    if (thread == 0) marks.leave_out(row, target, !how.leaves_out(target));
    if (how.gradient) clear_row(values, classes.here);
    return;
  }
  auto const peak = peaks[row];
  auto const mass = masses[row];
  if (thread == 0) {
    auto const log_mass = std::log(static_cast<double>(mass)) + static_cast<double>(peak);
    marks.losses[row] = log_mass - static_cast<double>(chosen[row]) + how.z * log_mass * log_mass;
  }
  if (!how.gradient) return;
  row_shares<T> const shares(values, classes.here);
  auto const place = classes.place(target);
  bool const own = place >= 0 && thread == shares.owner(place, static_cast<int>(blockDim.x));
  auto const of_target = own ? natural_power<T>(difference(opened_lane<real>(values[place]).v, peak)) : real{0};
  row_slope<real> const slope(how, peak, mass, of_target, static_cast<int>(classes.whole));
  for_shares(shares, [&]<int Width>(std::integral_constant<int, Width>, int at) {
    auto numbers = load<Width>(values + at);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) numbers.values[k] = slope.at(numbers.values[k]);
    store(values + at, numbers);
  });
  if (own) values[place] = narrow<T>(slope.of_target);
}

/// parts[block] = the sum of this block's squares of y - target; dy, unless it is null, gets slope * (y - target)
template <class T, class Target>
__global__ void __launch_bounds__(block_threads)
    squared_errors(T* dy, T const* y, Target const* targets, std::int64_t n, real_for<T> slope, double* parts) {
  using real = real_for<T>;
  auto const first = static_cast<std::int64_t>(blockIdx.x) * compared_elements;
  auto const end = first + compared_elements < n ? first + compared_elements : n;
  double total = 0;
  for (auto i = first + threadIdx.x; i < end; i += block_threads) {
    auto const distance = difference(opened_lane<real>(y[i]).v, static_cast<real>(targets[i]));
    total = fused(static_cast<double>(distance), static_cast<double>(distance), total);
    if (dy != nullptr) dy[i] = narrow<T>(product(slope, distance));
  }
  total = joined_in_block<0>(total, added{}, 0.0);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

/// The same of -t log(sigmoid(y)) - (1 - t) log(1 - sigmoid(y)); dy gets `weight` times its derivative by y. A target
/// outside of [0, 1] is noted in *first_refused as in loss_marks.
template <class T, class Target>
__global__ void __launch_bounds__(block_threads)
    binary_cross_entropies(T* dy, T const* y, Target const* targets, std::int64_t n, double weight, double* parts,
                           unsigned long long* first_refused) {
  auto const first = static_cast<std::int64_t>(blockIdx.x) * compared_elements;
  auto const end = first + compared_elements < n ? first + compared_elements : n;
  double total = 0;
  for (auto i = first + threadIdx.x; i < end; i += block_threads) {
    auto const at = static_cast<double>(wide(y[i]));
    auto const target = static_cast<double>(targets[i]);
    if (!(target >= 0 && target <= 1)) {
      auto shown = static_cast<float>(target);
      if (shown >= 0 && shown <= 1) shown = target < 0 ? -1e-45F : 1 + 0x1p-23F;
      atomic_max(*first_refused, refused_target(i, std::bit_cast<std::uint32_t>(shown)));
    }
    auto const small = std::exp(-std::fabs(at));
    total = sum(total, (at > 0 ? at : 0.0) - at * target + std::log1p(small));
    if (dy == nullptr) continue;
    auto const less = small / (1 + small);  // the less likely answer's probability
    auto const slope = at < 0 ? less - target : (1 - target) - less;
    dy[i] = narrow<T>(static_cast<real_for<T>>(weight * slope));
  }
  total = joined_in_block<0>(total, added{}, 0.0);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

/// *total = the sum of n numbers: each thread of one block adds every so-many-th one in order, and these sums are added
/// in trees.
template <class Real>
__global__ void __launch_bounds__(row_threads) sum_in_order(Real const* x, std::int64_t n, Real* total) {
  Real own = 0;
  for (auto i = static_cast<std::int64_t>(threadIdx.x); i < n; i += blockDim.x) own = sum(own, x[i]);
  own = joined_in_block<0>(own, added{}, Real{0});
  if (threadIdx.x == 0) *total = own;
}

}  // namespace trireme::ops::detail::device
