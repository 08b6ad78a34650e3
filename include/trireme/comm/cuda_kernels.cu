// The launch function of communicators in CUDA's language. A program that uses trireme::cuda compiles this file, with
// the others that trireme/cuda.cu includes, once with nvcc (the target trireme::cuda does that), and otherwise includes
// headers only. The kernel itself is in ops/cuda/combine.cuh.
#include <cstdint>

#include "trireme/comm/detail/cuda_kernels.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/ops/cuda/combine.cuh"

namespace trireme::comm::detail {
namespace {

template <auto A, auto B>
inline constexpr bool same_number = static_cast<int>(A) == static_cast<int>(B);
using ops::cuda_kernels::combination;
static_assert(most_cuda_terms == ops::cuda_kernels::most_terms);
static_assert(same_number<cuda_element::f64, dtype::f64> && same_number<cuda_element::bf16, dtype::bf16> &&
              same_number<cuda_element::u64, dtype::u64> && same_number<cuda_element::u8, dtype::u8>);
static_assert(same_number<cuda_reduction::sum, combination::sum> &&
              same_number<cuda_reduction::mean, combination::mean> &&
              same_number<cuda_reduction::max, combination::max> && same_number<cuda_reduction::min, combination::min>);

}  // namespace

int cuda_combine(cuda_element type, cuda_reduction op, void* const* outputs, int output_count, void const* const* terms,
                 int term_count, std::int64_t count, int divisor, void* stream) {
  return ops::detail::device::launch_combination(static_cast<dtype>(type), static_cast<combination>(op), outputs,
                                                 output_count, terms, term_count, count, divisor, stream);
}

}  // namespace trireme::comm::detail
