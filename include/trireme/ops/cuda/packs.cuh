#pragma once

#include <cstdint>

#include "trireme/ops/cuda/device.hpp"

// How kernels go over elements: threads take them in turn, several at once where all tensors are aligned together.

#define TRIREME_DEVICE_UNROLL _Pragma("unroll")
#define TRIREME_DEVICE_ROLLED _Pragma("unroll 1")  // for loops whose copies would need too many registers
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#undef TRIREME_DEVICE_UNROLL
#define TRIREME_DEVICE_UNROLL _Pragma("GCC unroll 16")
#undef TRIREME_DEVICE_ROLLED
#define TRIREME_DEVICE_ROLLED _Pragma("GCC unroll 1")
#endif

namespace trireme::ops::detail::device {

inline constexpr int block_threads = 256;

/// Neighbouring elements that are read or written at once.
template <class T, int Width>
struct alignas(Width * sizeof(T)) pack {
  T values[Width];
};

/// a / b, neither negative. Devices divide numbers of 32 bits several times faster.
__device__ __forceinline__ std::int64_t quotient_of(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

__device__ __forceinline__ std::int64_t remainder_of(std::int64_t a, std::int64_t b) {
  return a - quotient_of(a, b) * b;
}

/// This thread's first task, and the number of threads of all blocks: a thread does every so-many-th task.
__device__ __forceinline__ std::int64_t first_task() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t all_tasks() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

/// Blocks for so many tasks: at least one, and no more than the device is filled with.
inline std::int64_t blocks_for(std::int64_t tasks) {
  auto const wanted = (tasks + block_threads - 1) / block_threads;
  auto const most = most_blocks();
  return wanted < 1 ? 1 : wanted > most ? most : wanted;
}

/// Where packs of Width elements of all tensors can begin.
struct pack_start {
  std::int64_t place = -1;  // index of the first element of a tensor within an aligned pack; -1: of none yet
  bool together = true;

  template <int Width, class T>
  void of(T const* address) {
    auto const here = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address) / sizeof(T) % Width);
    if (place >= 0 && place != here) together = false;
    place = here;
  }
  /// The number of elements before the first pack; `count` if the tensors are never aligned together.
  [[nodiscard]] std::int64_t head(int width, std::int64_t count) const {
    if (!together) return count;
    auto const before = place <= 0 ? 0 : width - place;
    return before < count ? before : count;
  }
};

/// Calls work.at<Width>(i) for packs of elements from `head` on, and work.at<1>(i) for the others.
template <class Work>
__global__ void __launch_bounds__(block_threads) for_elements(Work const work, std::int64_t head, std::int64_t count) {
  constexpr int width = Work::width;
  auto const thread = first_task();
  auto const threads = all_tasks();
  std::int64_t const packs = (count - head) / width;
  for (std::int64_t p = thread; p < packs; p += threads) work.template at<width>(head + p * width);
  std::int64_t const tail = head + packs * width;
  std::int64_t const singles = head + (count - tail);
  for (std::int64_t s = thread; s < singles; s += threads) work.template at<1>(s < head ? s : tail + (s - head));
}

/// Queues `work` on `count` elements. `start` has seen all of its tensors.
template <class Work>
[[nodiscard]] int launch_elements(char const* name, Work const& work, pack_start const& start, std::int64_t count,
                                  void* stream) {
  if (count == 0) return launch_succeeded;
  auto const head = start.head(Work::width, count);
  auto const packs = (count - head) / Work::width;
  return run(name, &for_elements<Work>, blocks_for(packs > head ? packs : head), block_threads, stream, work, head,
             count);
}

}  // namespace trireme::ops::detail::device
