#pragma once

#include <cstdint>

#include "trireme/core/dtype.hpp"

// The kernels of compression::power_sgd behind plain functions, as in ops/cuda/launch.hpp; ops/cuda/low_rank.cu has
// their bodies. Elements are of float or double.

namespace trireme::ops::cuda_kernels {

/// y (m, n) = a (m, k) b (k, n); a is stored as (k, m) if `a_turned`, b as (n, k) if `b_turned`.
[[nodiscard]] int small_product(void* stream, dtype of, void* y, void const* a, bool a_turned, void const* b,
                                bool b_turned, std::int64_t m, std::int64_t n, std::int64_t k);
/// Makes the columns of x (n, r) orthonormal; `column` (n) is scratch memory.
[[nodiscard]] int orthonormalise(void* stream, dtype of, void* x, double* column, std::int64_t n, std::int64_t r);

}  // namespace trireme::ops::cuda_kernels
