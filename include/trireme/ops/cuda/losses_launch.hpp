#pragma once

#include <cstdint>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/types.hpp"

// The kernels of losses behind plain functions, as in launch.hpp.

namespace trireme::ops::cuda_kernels {

using handle = void*;

/// What the kernels of a loss leave for the host, in device memory that is zero before.
struct loss_numbers {
  double sum;
  unsigned long long left_out;  ///< rows that do not count
  /// Of the first target that is refused: the complement of the low 32 bits of its number, and below them the 32 bits
  /// of the target, an int32 or (rounded away from 0 and 1) a float; 0: none.
  unsigned long long first_refused;
};

/// A call of the kernels of a cross entropy: logits (rows, row_length), of which the first `classes` of each row count.
struct cross_entropy_call {
  dtype of = dtype::f32;
  void* logits = nullptr;
  std::int64_t rows = 0, row_length = 0, classes = 0;
  std::int32_t const* targets = nullptr;
  double weight = 1;
  bool gradient = false;
  cross_entropy_terms terms{};
  table_range part{};           ///< of classes, for the kernels of a part
  double* losses = nullptr;     ///< (rows) scratch memory
  loss_numbers* out = nullptr;  ///< in device memory
};
[[nodiscard]] int cross_entropy(handle stream, cross_entropy_call const& call);
/// peaks, masses and chosen: float, or double for logits of double.
[[nodiscard]] int row_peaks(handle stream, dtype of, void const* logits, std::int64_t rows, std::int64_t classes,
                            void* peaks);
[[nodiscard]] int row_masses(handle stream, dtype of, void const* logits, std::int64_t rows, std::int64_t classes,
                             std::int32_t const* targets, table_range part, double smoothing, void const* peaks,
                             void* masses, void* chosen);
[[nodiscard]] int cross_entropy_part(handle stream, cross_entropy_call const& call, void const* peaks,
                                     void const* masses, void const* chosen);

/// The doubles of scratch memory that a comparison of n numbers with their targets takes.
[[nodiscard]] std::int64_t parts_of_comparison(std::int64_t n);
/// out->sum = the sum of (y - target)^2; dy = slope * (y - target), unless dy is null.
[[nodiscard]] int squared_error(handle stream, dtype of, void* dy, void const* y, dtype target_type,
                                void const* targets, std::int64_t n, double slope, double* parts, loss_numbers* out);
/// out->sum = the sum of -t log(sigmoid(y)) - (1 - t) log(1 - sigmoid(y)); dy = weight * its derivative.
[[nodiscard]] int binary_cross_entropy(handle stream, dtype of, void* dy, void const* y, dtype target_type,
                                       void const* targets, std::int64_t n, double weight, double* parts,
                                       loss_numbers* out);

}  // namespace trireme::ops::cuda_kernels
