#pragma once

#include <cstdint>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/codes.hpp"

// The kernels of quantising compressors behind plain functions, as in ops/cuda/launch.hpp; ops/cuda/codes.cu has their
// bodies. Gradients are of float or double.

namespace trireme::ops::cuda_kernels {

/// x as codes and scales; nullptr rounds to the nearest code.
[[nodiscard]] int encode_codes(void* stream, float* scales, std::uint8_t* codes, dtype of, void const* x,
                               std::int64_t n, code_form const& form, random_stream const* rounding);
/// y = or += the numbers that encode_codes has written.
[[nodiscard]] int decode_codes(void* stream, dtype of, void* y, float const* scales, std::uint8_t const* codes,
                               std::int64_t n, code_form const& form, bool add);
/// values[i] = the element that is drawn from the i-th of k strata of n elements; times the size of the stratum if
/// `weighted`. Values are of any floating-point type.
[[nodiscard]] int gather_drawn(void* stream, dtype to, void* values, std::int64_t k, dtype of, void const* x,
                               std::int64_t n, random_stream const& drawn, bool weighted);
/// Writes the values to the same elements of y.
[[nodiscard]] int scatter_drawn(void* stream, dtype of, void* y, std::int64_t n, dtype from, void const* values,
                                std::int64_t k, random_stream const& drawn);

}  // namespace trireme::ops::cuda_kernels
