// The launch function of communicators in CUDA's language. A program that uses trireme::cuda compiles this file, with
// the others that trireme/cuda.cu includes, once with nvcc (the target trireme::cuda does that), and otherwise includes
// headers only. The kernels themselves are in ops/cuda/combine.cuh.
#include <cstdint>

#include "trireme/comm/detail/cuda_kernels.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/ops/cuda/combine.cuh"

namespace trireme::comm::detail {
using ops::cuda_kernels::combination;
static_assert(most_cuda_terms == ops::cuda_kernels::most_terms);
static_assert(static_cast<dtype>(cuda_element::f64) == dtype::f64 &&
                  static_cast<dtype>(cuda_element::bf16) == dtype::bf16 &&
                  static_cast<dtype>(cuda_element::u64) == dtype::u64 &&
                  static_cast<dtype>(cuda_element::u8) == dtype::u8,
              "both lists have one order");
static_assert(static_cast<combination>(cuda_reduction::sum) == combination::sum &&
                  static_cast<combination>(cuda_reduction::max) == combination::max &&
                  static_cast<combination>(cuda_reduction::min) == combination::min &&
                  static_cast<combination>(cuda_reduction::mean) == combination::mean &&
                  static_cast<combination>(cuda_reduction::pairwise) == combination::pairwise,
              "both lists have one order");

int cuda_combine(cuda_element type, cuda_reduction op, void* const* outputs, int output_count, void const* const* terms,
                 int term_count, std::int64_t count, int divisor, void* stream) {
  return ops::detail::device::launch_combination(static_cast<dtype>(type), static_cast<combination>(op), outputs,
                                                 output_count, terms, term_count, count, divisor, stream);
}

}  // namespace trireme::comm::detail
