#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

// What the functions of ops::on<cuda> have in common: how work is queued, how its errors are thrown, and how a number of
// a device comes to the host.

namespace trireme::ops {

namespace detail {

/// The element types that a kernel of CUDA memory computes with.
template <class T>
concept cuda_float = std::is_same_v<T, double> || std::is_same_v<T, float> || storage_float<T>;
/// Whether a kernel copies elements of U to elements of T.
template <class T, class U>
concept cuda_copies = std::is_same_v<T, U> ||(cuda_float<T>&& cuda_float<U>);
/// Throws comm_error with CUDA's message unless `code` is success.
inline void expect_cuda(char const* who, int code) {
  if (code != cudaSuccess)
    trireme::detail::expect_cuda(static_cast<::cudaError_t>(code), text("trireme::ops::", who, " in CUDA memory"));
}

/// Where the kernels of one thread leave numbers for the host: memory of the device, and pinned memory of the host that
/// they are copied to. One pair for each device.
class cuda_results {
 public:
  static constexpr std::size_t bytes = 1024;
  struct place {
    void* on_device = nullptr;
    void* on_host = nullptr;
  };

  cuda_results() = default;
  cuda_results(cuda_results const&) = delete;
  cuda_results& operator=(cuda_results const&) = delete;
  ~cuda_results() {
    for (auto const& each : of_device_) {
      (void)::cudaFree(each.on_device);
      (void)::cudaFreeHost(each.on_host);
    }
  }
  [[nodiscard]] static place of_thread(char const* who) {
    (void)cuda::stream();  // made first, so it ends after the memory that its kernels write
    thread_local cuda_results all;
    int device = 0;
    expect_cuda(who, ::cudaGetDevice(&device));
    auto const at = static_cast<std::size_t>(device);
    if (at >= all.of_device_.size()) all.of_device_.resize(at + 1);
    auto& found = all.of_device_[at];
    if (found.on_device == nullptr) expect_cuda(who, ::cudaMalloc(&found.on_device, bytes));
    if (found.on_host == nullptr) expect_cuda(who, ::cudaMallocHost(&found.on_host, bytes));
    return found;
  }

 private:
  std::vector<place> of_device_;
};

/// Zeros N integers in device memory, calls `launch` with their address, and returns them when the device has them.
template <class T, std::size_t N, class Launch>
[[nodiscard]] std::array<T, N> cuda_result(char const* who, Launch&& launch) {
  static_assert(N * sizeof(T) <= cuda_results::bytes);
  auto const place = cuda_results::of_thread(who);
  auto* const stream = cuda::stream();
  expect_cuda(who, ::cudaMemsetAsync(place.on_device, 0, N * sizeof(T), stream));
  expect_cuda(who, launch(static_cast<T*>(place.on_device)));
  expect_cuda(who, ::cudaMemcpyAsync(place.on_host, place.on_device, N * sizeof(T), cudaMemcpyDeviceToHost, stream));
  cuda::finish();
  std::array<T, N> result;
  std::memcpy(result.data(), place.on_host, sizeof result);
  return result;
}

/// Throws config_error for more terms or outputs than the arguments of one kernel hold.
inline void expect_fits(char const* who, std::size_t count, int most, char const* what) {
  if (count <= static_cast<std::size_t>(most)) return;
  throw config_error(text("trireme::ops::", who, ": one kernel in CUDA memory takes at most ", most, ' ', what,
                          ", and here are ", count, "; use fewer ranks on one device"));
}

}  // namespace detail

}  // namespace trireme::ops
