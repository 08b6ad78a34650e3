#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/cuda_kernels.hpp"
#include "trireme/comm/space_kernels.hpp"
#include "trireme/core/cuda_space.hpp"

// Communicators on CUDA memory (target trireme::cuda, which contains the kernels of comm/cuda_kernels.cu). Include this
// to use a communicator on tensors of the space trireme::cuda. comm::threads then has every collective for it: its
// ranks share one device, each on its thread's stream. comm::nccl (comm/nccl.hpp) has one device a rank.

namespace trireme::comm::detail {

[[nodiscard]] constexpr cuda_element cuda_element_of(dtype type) noexcept { return static_cast<cuda_element>(type); }
static_assert(cuda_element_of(dtype::f32) == cuda_element::f32 && cuda_element_of(dtype::f16) == cuda_element::f16 &&
                  cuda_element_of(dtype::i64) == cuda_element::i64 &&
                  cuda_element_of(dtype::i32) == cuda_element::i32 &&
                  cuda_element_of(dtype::u64) == cuda_element::u64 && cuda_element_of(dtype::u8) == cuda_element::u8,
              "both lists have one order");

[[nodiscard]] constexpr cuda_reduction cuda_reduction_of(reduction_kind op) noexcept {
  if (op == reduction_kind::max) return cuda_reduction::max;
  if (op == reduction_kind::min) return cuda_reduction::min;
  if (op == reduction_kind::pairwise) return cuda_reduction::pairwise;
  return op == reduction_kind::mean ? cuda_reduction::mean : cuda_reduction::sum;
}

}  // namespace trireme::comm::detail

namespace trireme::comm {

/// Of CUDA memory, whatever its kernels: a space that derives from cuda has kernels of its own. Copies and reductions
/// are queued on the calling thread's stream; complete() waits for it.
template <std::derived_from<cuda> Space>
struct space_kernels<Space> {
  static constexpr bool touchable = false;
  static void copy(void* to, void const* from, std::size_t bytes) {
    if (bytes == 0 || to == from) return;
    trireme::detail::expect_queued(::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::stream()),
                                   "trireme::comm: copying in CUDA memory");
  }
  template <class T, class Op>
  static void combine(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count,
                      int divisor) {
    auto const code = detail::cuda_combine(
        detail::cuda_element_of(dtype_of<T>), detail::cuda_reduction_of(reduction_of<Op>), outputs.data(),
        static_cast<int>(outputs.size()), terms.data(), static_cast<int>(terms.size()), count, divisor, cuda::stream());
    trireme::detail::expect_queued(static_cast<::cudaError_t>(code), "trireme::comm: reducing in CUDA memory");
  }
  static void complete() { cuda::finish(); }
};

}  // namespace trireme::comm
