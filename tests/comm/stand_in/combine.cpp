// The kernel of communicators, by loops of the host.
#include "cuda_and_nccl.hpp"

namespace trireme::comm::detail {

int cuda_combine(cuda_element type, cuda_reduction op, void* const* outputs, int output_count, void const* const* terms,
                 int term_count, std::int64_t count, int divisor, void* on) {
  std::vector<void*> const to(outputs, outputs + output_count);
  std::vector<void const*> const from(terms, terms + term_count);
  stand_in::queue_kernel(on, [=] {
    if (count > 0) stand_in::combine(type, op, to, from, count, divisor);
  });
  return cudaSuccess;
}

}  // namespace trireme::comm::detail
