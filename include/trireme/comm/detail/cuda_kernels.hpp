#pragma once

#include <cstdint>

// The interface to the kernels in comm/cuda_kernels.cu, in plain types: nvcc compiles the kernels, any compiler this.
namespace trireme::comm::detail {

enum class cuda_element : std::uint8_t { f64, f32, bf16, f16, i64, i32, u64, u32, i8, u8 };  // as dtype
enum class cuda_reduction : std::uint8_t { sum, max, min, mean, pairwise };

/// The most terms, and the most outputs, of one kernel launch.
inline constexpr int most_cuda_terms = 256;

/// Queues outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this order (pairwise: the sum in the tree over them).
/// `stream` is a cudaStream_t; a mean is then divided by `divisor`. An output may be a term. Returns a cudaError_t.
[[nodiscard]] int cuda_combine(cuda_element type, cuda_reduction op, void* const* outputs, int output_count,
                               void const* const* terms, int term_count, std::int64_t count, int divisor, void* stream);

}  // namespace trireme::comm::detail
