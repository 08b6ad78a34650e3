#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "trireme/comm/detail/cuda_kernels.hpp"
#include "trireme/comm/space_kernels.hpp"
#include "trireme/core/cuda_space.hpp"

// Communicators on CUDA memory (target trireme::cuda, which brings the kernels in comm/cuda_kernels.cu). Include this
// where a communicator meets a tensor of the space trireme::cuda: comm::threads then has every collective for it, its
// ranks sharing one device, each on its thread's stream. comm::nccl (comm/nccl.hpp) has a rank a device.

namespace trireme::comm::detail {

template <class T>
[[nodiscard]] consteval cuda_element cuda_element_of() {
  using enum cuda_element;
  if constexpr (std::is_same_v<T, double>)
    return f64;
  else if constexpr (std::is_same_v<T, float>)
    return f32;
  else if constexpr (std::is_same_v<T, bfloat16>)
    return bf16;
  else if constexpr (!std::is_integral_v<T>)
    return f16;
  else if constexpr (sizeof(T) == 8)
    return std::is_signed_v<T> ? i64 : u64;
  else if constexpr (sizeof(T) == 4)
    return std::is_signed_v<T> ? i32 : u32;
  else
    return std::is_signed_v<T> ? i8 : u8;
}

template <class Op>
[[nodiscard]] consteval cuda_reduction cuda_reduction_of() {
  if constexpr (std::is_same_v<Op, reduction::max>)
    return cuda_reduction::max;
  else if constexpr (std::is_same_v<Op, reduction::min>)
    return cuda_reduction::min;
  else
    return std::is_same_v<Op, reduction::mean> ? cuda_reduction::mean : cuda_reduction::sum;
}

}  // namespace trireme::comm::detail

namespace trireme::comm {

/// Copies and reductions are queued on the calling thread's stream; complete() waits for it.
template <>
struct space_kernels<cuda> {
  static constexpr bool touchable = false;
  static void copy(void* to, void const* from, std::size_t bytes) {
    if (bytes == 0 || to == from) return;
    expect_cuda(::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::stream()),
                "trireme::comm: copying in CUDA memory");
  }
  template <class T, class Op>
  static void combine(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count,
                      int divisor) {
    expect_cuda(static_cast<::cudaError_t>(
                    detail::cuda_combine(detail::cuda_element_of<T>(), detail::cuda_reduction_of<Op>(), outputs.data(),
                                         static_cast<int>(outputs.size()), terms.data(), static_cast<int>(terms.size()),
                                         count, divisor, cuda::stream())),
                "trireme::comm: reducing in CUDA memory");
  }
  static void complete() { cuda::finish(); }

 private:
  static void expect_cuda(::cudaError_t code, std::string_view doing) { trireme::detail::expect_cuda(code, doing); }
};

}  // namespace trireme::comm
