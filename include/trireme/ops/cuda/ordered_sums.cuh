#pragma once

#include <cmath>
#include <cstdint>

#include "trireme/ops/cuda/packs.cuh"

// Sums of floating-point numbers in one order, which depends on the number of elements only and not on the device; and
// the largest of a block's numbers, which is found in the same way.

namespace trireme::ops::detail::device {

/// The sum of `own` over all threads of a block of Threads, in a fixed tree; every thread gets it.
template <int Threads>
__device__ __forceinline__ double ordered_sum_of_block(double own) {
  constexpr int warps = Threads / warp_width;
  auto& of_warps = block_shared<double[warps]>();
  for (int by = warp_width / 2; by > 0; by /= 2) own = sum(own, shuffle_xor(own, by));
  sync_block();  // all threads have read what was there before
  if (threadIdx.x % warp_width == 0) of_warps[threadIdx.x / warp_width] = own;
  sync_block();
  double all = 0;
  for (int warp = 0; warp < warps; ++warp) all = sum(all, of_warps[warp]);
  return all;
}

/// The most threads of any block.
inline constexpr int largest_block = 1024;

struct larger {
  template <class Real>
  __device__ __forceinline__ Real operator()(Real a, Real b) const {
    return std::fmax(a, b);  // passes over NaN
  }
};
struct added {
  template <class Real>
  __device__ __forceinline__ Real operator()(Real a, Real b) const {
    return sum(a, b);
  }
};
/// The numbers of a block's threads, joined: those of each warp in a tree, then those of the warps in a tree. All
/// threads get the result. The block has whole warps. `Number` differs between the calls of a kernel, or a barrier of
/// the caller lies between two calls.
template <int Number, class Real, class Join>
__device__ __forceinline__ Real joined_in_block(Real x, Join join, Real nothing) {
  auto& of_warps = block_shared<Real[largest_block / warp_width], Number>();
  auto const thread = static_cast<int>(threadIdx.x);
  for (int by = warp_width / 2; by > 0; by /= 2) x = join(x, shuffle_xor(x, by));
  if (thread % warp_width == 0) of_warps[thread / warp_width] = x;
  sync_block();
  auto const lane = thread % warp_width;
  x = lane < static_cast<int>(blockDim.x) / warp_width ? of_warps[lane] : nothing;
  for (int by = warp_width / 2; by > 0; by /= 2) x = join(x, shuffle_xor(x, by));
  return x;
}

}  // namespace trireme::ops::detail::device
