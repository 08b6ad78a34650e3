#pragma once

#include "trireme/core/exact_sum.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/cuda/formulas.cuh"

// Reductions to integers, whose sums have no order: the results are the host's bits, whatever the order of blocks.

namespace trireme::ops::detail::device {

/// The sum of hash_element over all elements, added to *total.
template <class Bits>
__global__ void __launch_bounds__(block_threads)
    hash_elements(Bits const* x, std::int64_t n, std::uint64_t name, std::uint64_t first, unsigned long long* total) {
  unsigned long long own = 0;
  for (auto i = first_task(); i < n; i += all_tasks())
    own += hash_element(name, first + static_cast<std::uint64_t>(i), x[i]);
  for (int by = warp_width / 2; by > 0; by /= 2) own += shuffle_xor(own, by);
  if (threadIdx.x % warp_width == 0) atomic_add(*total, own);
}

/// Sets *flag if all bits of an exponent are set, as only those of infinity and NaN are.
template <class Bits>
__global__ void __launch_bounds__(block_threads)
    find_non_finite(Bits const* x, std::int64_t n, Bits exponent, unsigned* flag) {
  bool bad = false;
  for (auto i = first_task(); i < n; i += all_tasks()) bad = bad || (x[i] & exponent) == exponent;
  if (ballot(bad) != 0 && threadIdx.x % warp_width == 0) atomic_or(*flag, 1U);
}

/// Tensors whose squares are summed together.
template <class T>
struct squared_tensors {
  static constexpr int most = 120;
  T const* x[most];
  std::int64_t n[most];
  std::int64_t end[most];  ///< number of the first block of 1024 elements after the tensor
  int count;
};

/// The sum of squares of each block of 1024 elements of each tensor, by 16 lanes: lane k sums the squares of elements
/// k, k + 16, ... in order, then the lanes are added in a fixed tree, in double. The sums are added to the integers of
/// an exact_sum.
template <class T>
__global__ void __launch_bounds__(block_threads)
    sum_squares(squared_tensors<T> const all, unsigned long long* state) {
  constexpr std::int64_t block = 1024;
  constexpr int lanes = 16;
  auto const blocks = all.end[all.count - 1];
  auto const lane = static_cast<int>(threadIdx.x) % lanes;
  // All lanes of a warp make the same number of rounds, because each of them takes part in the shuffles.
  constexpr int together = warp_width / lanes;
  auto const of_warp = first_task() / warp_width * together;
  int t = 0;
  for (auto at = of_warp; at < blocks; at += all_tasks() / warp_width * together) {
    auto const b = at + static_cast<int>(threadIdx.x) % warp_width / lanes;
    double total = 0;
    if (b < blocks) {
      while (b >= all.end[t]) ++t;
      auto const begin = (b - (t == 0 ? 0 : all.end[t - 1])) * block;
      auto const end = begin + block < all.n[t] ? begin + block : all.n[t];
      T const* const x = all.x[t];
      for (auto i = begin + lane; i < end; i += lanes) {
        auto const v = static_cast<double>(x[i]);
        total = sum(total, product(v, v));
      }
    }
    for (int by = lanes / 2; by > 0; by /= 2) total = sum(total, shuffle_xor(total, by));
    if (lane != 0 || b >= blocks) continue;
    auto const parts = exact_sum::parts_of(total);
    for (int k = 0; k < 3; ++k) {
      if (parts.values[k] != 0)
        atomic_add(state[parts.limb + static_cast<std::size_t>(k)], static_cast<unsigned long long>(parts.values[k]));
    }
  }
}

}  // namespace trireme::ops::detail::device
