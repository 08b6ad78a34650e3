#pragma once

#include <cstdint>

#include "trireme/ops/cuda/packs.cuh"

// Sums of floating-point numbers in one order, which depends on the number of elements only and not on the device.

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

}  // namespace trireme::ops::detail::device
