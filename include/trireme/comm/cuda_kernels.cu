// The launch functions of communicators in CUDA's language. A program that uses trireme::cuda compiles this file, with
// the others that trireme/cuda.cu includes, once with nvcc (the target trireme::cuda does that), and otherwise includes
// headers only. The kernel itself is in ops/cuda/combine.cuh.
#include <cstdint>
#include <cstring>

#include "trireme/comm/detail/cuda_kernels.hpp"
#include "trireme/ops/cuda/combine.cuh"

namespace trireme::comm::detail {
namespace {

namespace device = ops::detail::device;
using device::combination;
using device::terms_and_outputs;
static_assert(most_cuda_terms == device::most_terms);

/// Sums of integers wrap, so signed sums have the bits of unsigned ones.
template <combination How>
int launch_sum(cuda_element type, terms_and_outputs const& all, std::int64_t count, int divisor, void* stream) {
  switch (type) {
    case cuda_element::f64:
      return device::launch_combine<double, How>(all, count, divisor, stream);
    case cuda_element::f32:
      return device::launch_combine<float, How>(all, count, divisor, stream);
    case cuda_element::bf16:
      return device::launch_combine<bfloat16, How>(all, count, divisor, stream);
    case cuda_element::f16:
      return device::launch_combine<float16, How>(all, count, divisor, stream);
    default:
      break;
  }
  if constexpr (How == combination::sum) switch (type) {
      case cuda_element::i64:
      case cuda_element::u64:
        return device::launch_combine<unsigned long long, How>(all, count, divisor, stream);
      case cuda_element::i32:
      case cuda_element::u32:
        return device::launch_combine<unsigned, How>(all, count, divisor, stream);
      case cuda_element::i8:
      case cuda_element::u8:
        return device::launch_combine<unsigned char, How>(all, count, divisor, stream);
      default:
        break;
    }
  return device::launch_refused;
}
template <combination How>
int launch_choice(cuda_element type, terms_and_outputs const& all, std::int64_t count, void* stream) {
  switch (type) {
    case cuda_element::f64:
      return device::launch_combine<double, How>(all, count, 1, stream);
    case cuda_element::f32:
      return device::launch_combine<float, How>(all, count, 1, stream);
    case cuda_element::bf16:
      return device::launch_combine<bfloat16, How>(all, count, 1, stream);
    case cuda_element::f16:
      return device::launch_combine<float16, How>(all, count, 1, stream);
    case cuda_element::i64:
      return device::launch_combine<long long, How>(all, count, 1, stream);
    case cuda_element::u64:
      return device::launch_combine<unsigned long long, How>(all, count, 1, stream);
    case cuda_element::i32:
      return device::launch_combine<int, How>(all, count, 1, stream);
    case cuda_element::u32:
      return device::launch_combine<unsigned, How>(all, count, 1, stream);
    case cuda_element::i8:
      return device::launch_combine<signed char, How>(all, count, 1, stream);
    case cuda_element::u8:
      return device::launch_combine<unsigned char, How>(all, count, 1, stream);
  }
  return device::launch_refused;
}

}  // namespace

int cuda_combine(cuda_element type, cuda_reduction op, void* const* outputs, int output_count, void const* const* terms,
                 int term_count, std::int64_t count, int divisor, void* stream) {
  if (count == 0 || output_count == 0) return device::launch_succeeded;
  if (term_count < 1 || term_count > most_cuda_terms || output_count > most_cuda_terms) return device::launch_refused;
  terms_and_outputs all;  // unset entries are not read
  std::memcpy(all.outputs, outputs, static_cast<std::size_t>(output_count) * sizeof *outputs);
  std::memcpy(all.terms, terms, static_cast<std::size_t>(term_count) * sizeof *terms);
  all.output_count = output_count;
  all.term_count = term_count;
  switch (op) {
    case cuda_reduction::sum:
      return launch_sum<combination::sum>(type, all, count, divisor, stream);
    case cuda_reduction::mean:
      return launch_sum<combination::mean>(type, all, count, divisor, stream);
    case cuda_reduction::max:
      return launch_choice<combination::max>(type, all, count, stream);
    case cuda_reduction::min:
      return launch_choice<combination::min>(type, all, count, stream);
  }
  return device::launch_refused;
}

}  // namespace trireme::comm::detail
