#pragma once

#include <limits>

#include "trireme/ops/cuda/float_types.cuh"
#include "trireme/ops/cuda/ordered_sums.cuh"
#include "trireme/ops/cuda/routing_launch.hpp"

// Routing of rows to experts. A warp has a row: its lanes take the experts in turn. Sums over a row's choices are in
// the order of the choices, in all lanes alike; sums over experts are added in a tree.

namespace trireme::ops::detail::device {

using cuda_kernels::most_expert_groups;
using cuda_kernels::most_experts;
using cuda_kernels::routed_rows;

inline constexpr int block_warps = block_threads / warp_width;

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % warp_width; }
/// The rows of this warp: this one, and every so-many-th one after it.
__device__ __forceinline__ std::int64_t first_row() { return first_task() / warp_width; }
__device__ __forceinline__ std::int64_t all_row_warps() { return all_tasks() / warp_width; }

template <class Real>
__device__ __forceinline__ Real warp_sum(Real x) {
  for (int by = warp_width / 2; by > 0; by /= 2) x = sum(x, shuffle_xor(x, by));
  return x;
}

/// A number that may be chosen, and its index. Candidates are in a strict order: the larger number first, of equal
/// numbers the one with the lower index. NaN counts as the lowest number.
template <class Real>
struct candidate {
  Real number;
  int index;

  static __device__ __forceinline__ candidate before_all() { return {std::numeric_limits<Real>::infinity(), -1}; }
  static __device__ __forceinline__ candidate of(Real number, int index) {
    return {not_a_number(number) ? -std::numeric_limits<Real>::infinity() : number, index};
  }
  friend __device__ __forceinline__ bool precedes(candidate a, candidate b) {
    return a.number > b.number || (!(a.number < b.number) && a.index < b.index);
  }
};
/// The first candidate after `last`, of n numbers; the same in all lanes of the warp, which all take part.
template <class Real, class Number>
__device__ __forceinline__ candidate<Real> next_candidate(candidate<Real> last, int n, Number const& number_of) {
  candidate<Real> best{-std::numeric_limits<Real>::infinity(), std::numeric_limits<int>::max()};
  for (int i = lane_of_thread(); i < n; i += warp_width) {
    auto const one = candidate<Real>::of(number_of(i), i);
    if (precedes(last, one) && precedes(one, best)) best = one;
  }
  for (int by = warp_width / 2; by > 0; by /= 2) {
    candidate<Real> const other{shuffle_xor(best.number, by), shuffle_xor(best.index, by)};
    if (precedes(other, best)) best = other;
  }
  return best;
}

/// Chooses the experts of a row with the largest numbers. Their weights are numbers of `values`, which the warp has
/// written and waited for; returns their sum. The lane that writes the weight of choice j is j % warp_width.
template <class Real, class Number>
__device__ __forceinline__ Real choose_experts(std::int32_t* chosen, Real* weights, Real const* values, int experts,
                                               int choices, Number const& number_of) {
  Real mass = 0;
  auto last = candidate<Real>::before_all();
  for (int j = 0; j < choices; ++j) {
    last = next_candidate(last, experts, number_of);
    auto const value = values[last.index];
    mass = sum(mass, value);
    if (lane_of_thread() != j % warp_width) continue;
    chosen[j] = last.index;
    weights[j] = value;
  }
  return mass;
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    route_rows(sum_type<T>* probabilities, std::int32_t* chosen, sum_type<T>* weights, T const* logits,
               routed_rows const all) {
  using real = sum_type<T>;
  auto const experts = static_cast<int>(all.experts), choices = static_cast<int>(all.choices);
  for (auto row = first_row(); row < all.rows; row += all_row_warps()) {
    auto const* const from = logits + row * experts;
    auto* const p = probabilities + row * experts;
    real peak = -std::numeric_limits<real>::infinity();
    for (int e = lane_of_thread(); e < experts; e += warp_width) {
      real const one = wide(from[e]);
      peak = one > peak ? one : peak;
    }
    for (int by = warp_width / 2; by > 0; by /= 2) {
      auto const other = shuffle_xor(peak, by);
      peak = other > peak ? other : peak;
    }
    real mass = 0;
    for (int e = lane_of_thread(); e < experts; e += warp_width) {
      p[e] = exp(lane<real>{difference(wide(from[e]), peak)}).v;
      mass = sum(mass, p[e]);
    }
    mass = warp_sum(mass);
    for (int e = lane_of_thread(); e < experts; e += warp_width) p[e] = quotient(p[e], mass);
    sync_warp();
    auto* const w = weights + row * choices;
    auto const of_chosen =
        choose_experts(chosen + row * choices, w, p, experts, choices, [&](int e) { return p[e]; });
    if (choices == 1) continue;
    for (int j = lane_of_thread(); j < choices; j += warp_width) w[j] = quotient(w[j], of_chosen);
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    route_rows_backward(T* dlogits, sum_type<T> const* dweights, sum_type<T> const* probabilities,
                        std::int32_t const* chosen, sum_type<T> const* weights, sum_type<T> const* slopes,
                        routed_rows const all) {
  using real = sum_type<T>;
  auto const experts = static_cast<int>(all.experts), choices = static_cast<int>(all.choices);
  for (auto row = first_row(); row < all.rows; row += all_row_warps()) {
    auto const* const p = probabilities + row * experts;
    auto const* const which = chosen + row * choices;
    auto const* const w = weights + row * choices;
    auto const* const dw = dweights + row * choices;
    real mean_of_choices = 0, mass = 0;
    for (int j = 0; j < choices; ++j) {
      mean_of_choices = sum(mean_of_choices, product(w[j], dw[j]));
      mass = sum(mass, p[which[j]]);
    }
    auto const slope_of = [&](int e) {
      real slope = slopes == nullptr ? real{0} : slopes[row * experts + e];
      for (int j = 0; j < choices; ++j) {
        if (which[j] != e) continue;
        slope = sum(slope, choices == 1 ? dw[j] : quotient(difference(dw[j], mean_of_choices), mass));
      }
      return slope;
    };
    real mean = 0;
    for (int e = lane_of_thread(); e < experts; e += warp_width) mean = sum(mean, product(p[e], slope_of(e)));
    mean = warp_sum(mean);
    for (int e = lane_of_thread(); e < experts; e += warp_width)
      dlogits[row * experts + e] = narrow<T>(product(p[e], difference(slope_of(e), mean)));
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    score_rows(sum_type<T>* scores, std::int32_t* chosen, sum_type<T>* weights, T const* logits, T const* bias,
               routed_rows const all, scored_choice const how) {
  using real = sum_type<T>;
  auto const experts = static_cast<int>(all.experts), choices = static_cast<int>(all.choices);
  auto const groups = static_cast<int>(how.groups), each = experts / groups;
  bool const all_groups = how.chosen_groups == how.groups;
  auto* const of_groups = block_shared<real[block_warps][most_expert_groups]>()[threadIdx.x / warp_width];
  for (auto row = first_row(); row < all.rows; row += all_row_warps()) {
    auto* const s = scores + row * experts;
    for (int e = lane_of_thread(); e < experts; e += warp_width) {
      real const x = wide(logits[row * experts + e]);
      s[e] = quotient(real{1}, sum(real{1}, exp(lane<real>{-x}).v));
    }
    sync_warp();
    auto const biased = [&](int e) -> real { return sum(s[e], wide(bias[e])); };
    // The last group that is chosen: those before it in the order of candidates are chosen as well.
    auto last = candidate<real>::before_all();
    if (!all_groups) {
      for (int g = lane_of_thread(); g < groups; g += warp_width) {
        auto first = candidate<real>::of(biased(g * each), 0);
        candidate<real> second{-std::numeric_limits<real>::infinity(), each};
        for (int e = 1; e < each; ++e) {
          auto const one = candidate<real>::of(biased(g * each + e), e);
          if (precedes(one, first)) {
            second = first;
            first = one;
          } else if (precedes(one, second)) {
            second = one;
          }
        }
        of_groups[g] = each == 1 ? first.number : sum(first.number, second.number);
      }
      sync_warp();
      for (int g = 0; g < static_cast<int>(how.chosen_groups); ++g)
        last = next_candidate(last, groups, [&](int i) { return of_groups[i]; });
    }
    auto const number_of = [&](int e) {
      if (!all_groups && precedes(last, candidate<real>::of(of_groups[e / each], e / each)))
        return -std::numeric_limits<real>::infinity();
      return biased(e);
    };
    auto* const w = weights + row * choices;
    auto const mass = choose_experts(chosen + row * choices, w, s, experts, choices, number_of);
    for (int j = lane_of_thread(); j < choices; j += warp_width)
      w[j] = quotient(product(static_cast<real>(how.scale), w[j]), mass);
    sync_warp();  // before of_groups is written again
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    score_rows_backward(T* dlogits, sum_type<T> const* dweights, sum_type<T> const* scores, std::int32_t const* chosen,
                        sum_type<T> const* weights, routed_rows const all, sum_type<T> scale) {
  using real = sum_type<T>;
  auto const experts = static_cast<int>(all.experts), choices = static_cast<int>(all.choices);
  for (auto row = first_row(); row < all.rows; row += all_row_warps()) {
    auto const* const s = scores + row * experts;
    auto const* const which = chosen + row * choices;
    auto const* const dw = dweights + row * choices;
    real mean = 0, mass = 0;
    for (int j = 0; j < choices; ++j) {
      mean = sum(mean, product(weights[row * choices + j], dw[j]));
      mass = sum(mass, s[which[j]]);
    }
    for (int e = lane_of_thread(); e < experts; e += warp_width) {
      real d = 0;
      for (int j = 0; j < choices; ++j) {
        if (which[j] != e) continue;
        auto const slope = quotient(difference(product(scale, dw[j]), mean), mass);
        d = product(product(slope, s[e]), difference(real{1}, s[e]));
      }
      dlogits[row * experts + e] = narrow<T>(d);
    }
  }
}

// Choices are counted and sorted in chunks, one after the other: the choices of a chunk are counted by a block, and
// counts[expert * chunks + chunk] is their number.

struct choice_chunks {
  std::int64_t n;  // choices
  std::int64_t each;
  std::int64_t chunks;
  int experts;

  static choice_chunks of(std::int64_t n, std::int64_t experts) {
    constexpr std::int64_t least = 256, most = 512;
    auto each = (n + most - 1) / most;
    each = each < least ? least : (each + warp_width - 1) / warp_width * warp_width;
    return {n, each, (n + each - 1) / each, static_cast<int>(experts)};
  }
};

static __global__ void __launch_bounds__(block_threads)
    count_choices(std::int32_t const* chosen, unsigned* counts, choice_chunks const all) {
  auto& own = block_shared<unsigned[most_experts]>();
  for (int e = static_cast<int>(threadIdx.x); e < all.experts; e += block_threads) own[e] = 0;
  sync_block();
  auto const chunk = static_cast<std::int64_t>(blockIdx.x);
  auto const end = (chunk + 1) * all.each < all.n ? (chunk + 1) * all.each : all.n;
  for (auto i = chunk * all.each + threadIdx.x; i < end; i += block_threads) atomic_add(own[chosen[i]], 1U);
  sync_block();
  for (int e = static_cast<int>(threadIdx.x); e < all.experts; e += block_threads)
    counts[e * all.chunks + chunk] = own[e];
}

/// The numbers of the lanes before this one, added; `total` becomes those of all lanes.
__device__ __forceinline__ std::int64_t sum_before(std::int64_t x, std::int64_t& total) {
  std::int64_t before = 0;
  total = x;
  for (int by = 1; by < warp_width; by *= 2) {
    auto const other = shuffle_xor(total, by);
    if ((lane_of_thread() & by) != 0) before += other;
    total += other;
  }
  return before;
}

/// A warp for each expert: a count becomes the number of its choices in earlier chunks; totals[expert] that in all.
static __global__ void __launch_bounds__(block_threads)
    add_up_chunks(unsigned* counts, std::int64_t* totals, choice_chunks const all) {
  for (auto e = first_row(); e < all.experts; e += all_row_warps()) {
    std::int64_t seen = 0;
    for (std::int64_t first = 0; first < all.chunks; first += warp_width) {
      auto const chunk = first + lane_of_thread();
      std::int64_t const mine = chunk < all.chunks ? counts[e * all.chunks + chunk] : 0;
      std::int64_t together = 0;
      auto const before = sum_before(mine, together);
      if (chunk < all.chunks) counts[e * all.chunks + chunk] = static_cast<unsigned>(seen + before);
      seen += together;
    }
    if (lane_of_thread() == 0) totals[e] = seen;
  }
}

/// A block of one warp for each chunk. `bits` are those that the numbers from 0 to `experts` have.
static __global__ void __launch_bounds__(warp_width)
    place_choices(std::int32_t* positions, std::int32_t const* chosen, unsigned const* earlier,
                  std::int64_t const* totals, choice_chunks const all, int bits) {
  auto& next = block_shared<std::int32_t[most_experts]>();  // the position of an expert's next choice
  auto const lane = lane_of_thread();
  auto const chunk = static_cast<std::int64_t>(blockIdx.x);
  std::int64_t start = 0;
  for (int first = 0; first < all.experts; first += warp_width) {
    auto const e = first + lane;
    std::int64_t together = 0;
    auto const before = sum_before(e < all.experts ? totals[e] : 0, together);
    if (e < all.experts) next[e] = static_cast<std::int32_t>(start + before + earlier[e * all.chunks + chunk]);
    start += together;
  }
  sync_warp();
  auto const end = (chunk + 1) * all.each < all.n ? (chunk + 1) * all.each : all.n;
  for (auto first = chunk * all.each; first < end; first += warp_width) {
    auto const i = first + lane;
    bool const exists = i < end;
    int const expert = exists ? chosen[i] : all.experts;  // a number that no expert has
    lane_mask same = all_lanes;
    for (int bit = 0; bit < bits; ++bit) {
      bool const set = (expert >> bit & 1) != 0;
      auto const lanes = ballot(set);
      same &= set ? lanes : ~lanes;
    }
    auto const lower = same & ((lane_mask{1} << lane) - 1);
    auto const rank = count_lanes(lower);
    auto const place = exists ? next[expert] + rank : 0;
    if (exists) positions[i] = place;
    sync_warp();
    if (exists && lower == 0) next[expert] = place + count_lanes(same);
    sync_warp();
  }
}

/// A warp for each expert.
template <class T>
__global__ void __launch_bounds__(block_threads)
    add_excess_counts(T* excess, unsigned const* counts, choice_chunks const all) {
  for (auto e = first_row(); e < all.experts; e += all_row_warps()) {
    std::int64_t mine = 0;
    for (std::int64_t chunk = lane_of_thread(); chunk < all.chunks; chunk += warp_width)
      mine += counts[e * all.chunks + chunk];
    std::int64_t count = 0;
    (void)sum_before(mine, count);
    if (lane_of_thread() == 0)
      excess[e] = narrow<T>(sum(wide(excess[e]), static_cast<sum_type<T>>(count * all.experts - all.n)));
  }
}

/// partial[block] = the sum of load * probability over elements of a block; a chunk of the counts is a sample.
template <class Real>
__global__ void __launch_bounds__(block_threads)
    sum_imbalance(Real* slopes, Real const* probabilities, unsigned const* counts, double* partial,
                  choice_chunks const samples, std::int64_t rows_of_sample, double load_of_choice, double scale,
                  std::int64_t numbers) {
  double total = 0;
  for (auto i = first_task(); i < numbers; i += all_tasks()) {
    auto const row = split(i, samples.experts);
    auto const sample = split(row.quotient, rows_of_sample).quotient;
    auto const load = product(static_cast<double>(counts[row.rest * samples.chunks + sample]), load_of_choice);
    total = sum(total, product(load, static_cast<double>(probabilities[i])));
    if (slopes != nullptr) slopes[i] = static_cast<Real>(product(scale, load));
  }
  total = joined_in_block<0>(total, added{}, 0.0);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}
static __global__ void __launch_bounds__(block_threads)
    add_partial_sums(double const* partial, std::int64_t count, double* to) {
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += block_threads) total = sum(total, partial[i]);
  total = joined_in_block<0>(total, added{}, 0.0);
  if (threadIdx.x == 0) *to = total;
}

/// A task is a pack of a choice's row.
template <class T, int Width>
struct dispatching {
  static constexpr int width = 1;
  T* to;
  T const* from;
  std::int32_t const* positions;
  std::int64_t choices, packs;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const choice = split(i, packs);
    auto const row = split(choice.quotient, choices).quotient;
    store(to + (positions[choice.quotient] * packs + choice.rest) * Width,
          load<Width>(from + (row * packs + choice.rest) * Width));
  }
};

/// A task is a pack of a row.
template <class T, int Width>
struct combining {
  using real = sum_type<T>;
  static constexpr int width = 1;
  T* to;
  T const* from;
  std::int32_t const* positions;
  real const* weights;  // or null
  std::int64_t choices, packs;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const row = split(i, packs);
    real totals[Width] = {};
    for (auto choice = row.quotient * choices; choice < (row.quotient + 1) * choices; ++choice) {
      auto const weight = weights == nullptr ? real{1} : weights[choice];
      auto const in = load<Width>(from + (positions[choice] * packs + row.rest) * Width);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) totals[k] = sum(totals[k], product(weight, wide(in.values[k])));
    }
    pack<T, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(totals[k]);
    store(to + i * Width, out);
  }
};

/// A warp for each choice.
template <class T, int Width>
__global__ void __launch_bounds__(block_threads)
    combine_rows_backward(T* dfrom, sum_type<T>* dweights, T const* dto, T const* from, std::int32_t const* positions,
                          sum_type<T> const* weights, std::int64_t n, std::int64_t choices, std::int64_t channels) {
  using real = sum_type<T>;
  for (auto choice = first_row(); choice < n; choice += all_row_warps()) {
    auto const position = static_cast<std::int64_t>(positions[choice]);
    auto const* const dy = dto + split(choice, choices).quotient * channels;
    auto const weight = weights[choice];
    real dot = 0;
    for (std::int64_t c = lane_of_thread() * Width; c < channels; c += warp_width * Width) {
      auto const d = load<Width>(dy + c);
      auto const x = load<Width>(from + position * channels + c);
      pack<T, Width> out;
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) {
        dot = sum(dot, product(wide(d.values[k]), wide(x.values[k])));
        out.values[k] = narrow<T>(product(weight, wide(d.values[k])));
      }
      store(dfrom + position * channels + c, out);
    }
    dot = warp_sum(dot);
    if (lane_of_thread() == 0) dweights[choice] = dot;
  }
}

}  // namespace trireme::ops::detail::device
