#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

// What the functions of ops::on<cuda> have in common: how work is queued, how its errors are thrown, and how a number
// of a device comes to the host.

namespace trireme::ops {

namespace detail {

/// The element types that a kernel of CUDA memory computes with.
template <class T>
concept cuda_float = std::is_same_v<T, double> || std::is_same_v<T, float> || storage_float<T>;
/// Whether a kernel copies elements of U to elements of T.
template <class T, class U>
concept cuda_copies = std::is_same_v<T, U> ||(cuda_float<T>&& cuda_float<U>);
/// Throws device_error with CUDA's message unless `code` is success, and, under TRIREME_CUDA_CHECK, unless what was
/// queued has succeeded.
inline void expect_cuda(char const* who, int code) {
  if (code == cudaSuccess && !trireme::detail::cuda_checks_each_kernel()) return;
  trireme::detail::expect_queued(static_cast<::cudaError_t>(code), text("trireme::ops::", who, " in CUDA memory"));
}

/// Memory of the device that kernels of one thread share, one block a device: it grows and is kept.
class cuda_scratch_memory {
 public:
  [[nodiscard]] static void* of_thread(char const* who, std::size_t bytes) {
    (void)cuda::stream();  // made first, so it ends after the memory that its kernels write
    thread_local cuda_scratch_memory all;
    int device = 0;
    expect_cuda(who, ::cudaGetDevice(&device));
    auto const at = static_cast<std::size_t>(device);
    if (at >= all.of_device_.size()) all.of_device_.resize(at + 1);
    auto& found = all.of_device_[at];
    if (bytes > found.bytes()) found.replace(text("trireme::ops::", who, " in CUDA memory"), bytes);
    return found.address();
  }

 private:
  std::vector<trireme::detail::cuda_stream_memory> of_device_;
};
/// Device memory of this thread, aligned as cuda::allocate aligns: for kernels queued on its stream before its next
/// call of this function, which may return the same memory or free it in the order of the stream. Its contents are not
/// set. No other stream may use it, so a collective may not either.
///
/// Errors   device_memory_error (a std::bad_alloc) if the device's memory is used up.
[[nodiscard]] inline void* cuda_scratch(char const* who, std::size_t bytes) {
  return cuda_scratch_memory::of_thread(who, bytes);
}

/// Memory of this thread's device for numbers that kernels leave, and as much pinned memory of the host, to which they
/// are copied.
class mirrored_memory {
 public:
  mirrored_memory(char const* who, std::size_t bytes) : bytes_(bytes) {
    expect_cuda(who, ::cudaGetDevice(&device_));
    expect_cuda(who, ::cudaMallocHost(&on_host_, bytes));
    try {
      on_device_ = cuda::allocate(bytes);
    } catch (...) {
      (void)::cudaFreeHost(on_host_);
      throw;
    }
  }
  mirrored_memory(mirrored_memory const&) = delete;
  mirrored_memory& operator=(mirrored_memory const&) = delete;
  ~mirrored_memory() {
    cuda::deallocate(on_device_, bytes_);
    cuda_staging::deallocate(on_host_, bytes_);
  }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] void* on_device() const noexcept { return on_device_; }
  [[nodiscard]] void* on_host() const noexcept { return on_host_; }

 private:
  std::size_t bytes_;
  int device_ = 0;
  void* on_device_ = nullptr;
  void* on_host_ = nullptr;
};

/// Where the kernels of one thread leave numbers that the host waits for at once. One memory for each device; the first
/// half is that of cuda_result, the second one that of squares_total.
class cuda_results {
 public:
  static constexpr std::size_t bytes = 32768;  // of each half: the counts of 4096 experts

  [[nodiscard]] static mirrored_memory const& of_thread(char const* who) {
    (void)cuda::stream();  // made first, so it ends after the memory that its kernels write
    thread_local cuda_results all;
    int device = 0;
    expect_cuda(who, ::cudaGetDevice(&device));
    auto const at = static_cast<std::size_t>(device);
    if (at >= all.of_device_.size()) all.of_device_.resize(at + 1);
    auto& found = all.of_device_[at];
    if (found == nullptr) found = std::make_unique<mirrored_memory>(who, 2 * bytes);
    return *found;
  }

 private:
  std::vector<std::unique_ptr<mirrored_memory>> of_device_;
};

/// Zeros N integers in device memory, calls `launch` with their address, and returns them when the device has them.
template <class T, std::size_t N, class Launch>
[[nodiscard]] std::array<T, N> cuda_result(char const* who, Launch&& launch) {
  static_assert(N * sizeof(T) <= cuda_results::bytes);
  auto const& place = cuda_results::of_thread(who);
  auto* const stream = cuda::stream();
  expect_cuda(who, ::cudaMemsetAsync(place.on_device(), 0, N * sizeof(T), stream));
  expect_cuda(who, launch(static_cast<T*>(place.on_device())));
  expect_cuda(who,
              ::cudaMemcpyAsync(place.on_host(), place.on_device(), N * sizeof(T), cudaMemcpyDeviceToHost, stream));
  cuda::finish();
  std::array<T, N> result;
  std::memcpy(result.data(), place.on_host(), sizeof result);
  return result;
}

/// Pinned memory of one thread, from which a stream copies to the device while the host goes on. A slot is used again
/// when its copy is done.
class pinned_slots {
 public:
  static constexpr std::size_t most_bytes = std::size_t{4} << 20;

  pinned_slots() = default;
  pinned_slots(pinned_slots const&) = delete;
  pinned_slots& operator=(pinned_slots const&) = delete;
  ~pinned_slots() {
    for (auto const& each : slots_) {
      (void)::cudaEventDestroy(each.done);
      (void)::cudaFreeHost(each.memory);
    }
  }
  [[nodiscard]] static pinned_slots& of_thread() {
    (void)cuda::stream();  // made first, so it ends after the memory that it copies from
    thread_local pinned_slots all;
    return all;
  }
  void upload(void* to, void const* from, std::size_t bytes) {
    auto& place = free_slot(bytes);
    std::memcpy(place.memory, from, bytes);
    expect_cuda("upload", ::cudaMemcpyAsync(to, place.memory, bytes, cudaMemcpyHostToDevice, cuda::stream()));
    expect_cuda("upload", ::cudaEventRecord(place.done, cuda::stream()));
  }

 private:
  struct slot {
    void* memory = nullptr;
    std::size_t bytes = 0;
    ::cudaEvent_t done = nullptr;
    int device = 0;  // events belong to one
  };
  static constexpr std::size_t most_slots = 16;

  slot& free_slot(std::size_t bytes) {
    int device = 0;
    expect_cuda("upload", ::cudaGetDevice(&device));
    for (;;) {
      for (auto& each : slots_)
        if (each.device == device && each.bytes >= bytes && is_done(each)) return each;
      if (slots_.size() < most_slots) break;
      cuda::finish();
      for (auto& each : slots_) {
        (void)::cudaEventDestroy(each.done);
        (void)::cudaFreeHost(each.memory);
      }
      slots_.clear();
    }
    slot made{.bytes = std::max<std::size_t>(std::bit_ceil(bytes), 4096), .device = device};
    expect_cuda("upload", ::cudaMallocHost(&made.memory, made.bytes));
    expect_cuda("upload", ::cudaEventCreateWithFlags(&made.done, cudaEventDisableTiming));
    return slots_.emplace_back(made);
  }
  static bool is_done(slot const& it) {
    auto const code = ::cudaEventQuery(it.done);
    if (code == cudaErrorNotReady) (void)::cudaGetLastError();
    return code == cudaSuccess;
  }

  std::vector<slot> slots_;
};
/// Throws config_error for more terms or outputs than the arguments of one kernel hold.
inline void expect_fits(char const* who, std::size_t count, int most, char const* what) {
  if (count <= static_cast<std::size_t>(most)) return;
  throw config_error(text("trireme::ops::", who, ": one kernel in CUDA memory takes at most ", most, ' ', what,
                          ", and here are ", count, "; use fewer ranks on one device"));
}

}  // namespace detail

}  // namespace trireme::ops
