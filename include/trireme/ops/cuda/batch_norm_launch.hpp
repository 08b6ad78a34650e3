#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.hpp"

// The kernels of batch normalisation of a CUDA device behind plain functions (ops/cuda/launch.hpp says how they
// behave); ops/cuda/batch_norm.cu has their bodies, ops/batch_norm.hpp says what they compute. Numbers of channels are
// of the type of sums: double for elements of double, else float.

namespace trireme::ops::cuda_kernels {

/// The double numbers of memory that sums over so many rows need.
[[nodiscard]] std::int64_t column_sums_scratch(std::int64_t rows, std::int64_t channels) noexcept;
/// sum[c] = the sum of x[., c], or, with a mean, of (x[., c] - mean[c])^2.
[[nodiscard]] int column_sums(void* stream, dtype of, void* sum, void const* x, void const* mean, std::int64_t rows,
                              std::int64_t channels, double* scratch);
/// of_dy[c] = the sum of dy[., c]; of_both[c] = that of dy[., c] * (x[., c] - mean[c]) * rstd[c].
[[nodiscard]] int column_gradients(void* stream, dtype of, void* of_dy, void* of_both, void const* dy, void const* x,
                                   void const* mean, void const* rstd, std::int64_t rows, std::int64_t channels,
                                   double* scratch);
/// float or double
[[nodiscard]] int inverse_deviation(void* stream, dtype of, void* rstd, void const* variance, std::int64_t n,
                                    double epsilon);
[[nodiscard]] int normalise_columns(void* stream, dtype of, void* y, void const* x, void const* mean, void const* rstd,
                                    void const* gain, void const* bias, std::int64_t rows, std::int64_t channels);

/// What the gradient of a normalisation is computed of; gain is of the type of elements.
struct column_gradient {
  void const* mean = nullptr;
  void const* rstd = nullptr;
  void const* gain = nullptr;
  void const* of_dy = nullptr;
  void const* of_both = nullptr;
};
[[nodiscard]] int normalise_columns_backward(void* stream, dtype of, void* dx, void const* dy, void const* x,
                                             column_gradient const& by, std::int64_t n, bool accumulate,
                                             std::int64_t rows, std::int64_t channels);

}  // namespace trireme::ops::cuda_kernels
