#pragma once

#include <cstdint>

#include "trireme/contract/numerics.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/ops/types.hpp"

// The kernels of a CUDA device behind plain functions, which any compiler reads; ops/cuda/kernels.cu has their bodies.
// Each queues its work on `stream` (a cudaStream_t) and returns a cudaError_t: 0 if it is queued. Element types that a
// function does not take are refused with an invalid value.

namespace trireme::ops::cuda_kernels {

using handle = void*;

/// y[i] = the element with these bits.
[[nodiscard]] int fill(handle stream, void* y, std::size_t bytes_of_element, std::uint64_t bits, std::int64_t n);
/// y[i] = x[i], converted between floating-point types.
[[nodiscard]] int copy(handle stream, dtype to, void* y, dtype from, void const* x, std::int64_t n);
/// y[row * y_row + c] = x[row * x_row + c] for c < columns, converted.
[[nodiscard]] int copy_columns(handle stream, dtype to, void* y, std::int64_t y_row, dtype from, void const* x,
                               std::int64_t x_row, std::int64_t rows, std::int64_t columns);
/// y[i] += weight * x[i]; with a weight of 1 the kernel of add().
[[nodiscard]] int accumulate(handle stream, dtype to, void* y, dtype from, void const* x, std::int64_t n,
                             double weight);
[[nodiscard]] int scale(handle stream, dtype of, void* y, std::int64_t n, double factor);
[[nodiscard]] int elementwise_product(handle stream, dtype of, void* y, void const* a, void const* b, std::int64_t n);
[[nodiscard]] int activate(handle stream, dtype of, void* y, void const* x, std::int64_t n, activation act);
[[nodiscard]] int activate_backward(handle stream, dtype of, void* dx, void const* dy, void const* x, std::int64_t n,
                                    activation act);
/// y[to: b, r, c] = x[from: b, r, c], converted.
[[nodiscard]] int copy_blocks(handle stream, dtype to_type, void* y, block_places const& to, dtype from_type,
                              void const* x, block_places const& from, block_extents const& extents);

/// Which numbers dropout drops: those of the site for these samples, whose ids are in device memory.
struct dropout_call {
  dtype of = dtype::f32;
  double probability = 0;
  random_key key{};
  std::uint32_t site = 0;
  std::int64_t const* samples = nullptr;
};
/// Dropout of y, which has n numbers from number `begin` on of samples of `each` numbers.
[[nodiscard]] int dropout(handle stream, dropout_call const& call, void* y, std::int64_t begin, std::int64_t n,
                          std::int64_t each);
/// Dropout of y (rows, fused, columns) as the cut says.
[[nodiscard]] int dropout_part(handle stream, dropout_call const& call, void* y, std::int64_t rows,
                               dropout_cut const& cut);

/// Adds the hash of n elements (hash_element, from index `first` on) to *total, in device memory.
[[nodiscard]] int hash(handle stream, std::size_t bytes_of_element, void const* x, std::int64_t n, std::uint64_t name,
                       std::uint64_t first, unsigned long long* total);
/// Sets *flag, in device memory, to 1 if an element is infinite or NaN.
[[nodiscard]] int find_non_finite(handle stream, dtype of, void const* x, std::int64_t n, unsigned* flag);
/// Adds the sum of squares of each block of 1024 elements to the integers of an exact_sum in device memory; float and
/// double.
[[nodiscard]] int sum_of_squares(handle stream, dtype of, void const* x, std::int64_t n, std::int64_t* state);

/// How the terms of several ranks are combined.
enum class combination : std::uint8_t { sum, max, min, mean, pairwise };
/// The most terms, and the most outputs, of combine().
inline constexpr int most_terms = 256;
/// outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this order (pairwise: the sum in the tree over them); a mean
/// is then divided by `divisor`. An output may be a term. All element types but for means, which are of floating-point
/// types.
[[nodiscard]] int combine(handle stream, dtype of, combination op, void* const* outputs, int output_count,
                          void const* const* terms, int term_count, std::int64_t n, int divisor);

/// The most terms of a gradient, and the most outputs, of one step of an optimizer.
inline constexpr int most_gradient_terms = 256;
inline constexpr int most_update_outputs = 16;

/// The tensors of one step of an optimizer: those that it changes, of the type `value_type` (float or double), the
/// terms of the gradient, and the outputs that get the new values.
struct update_call {
  dtype value_type = dtype::f32;
  void* value = nullptr;
  std::int64_t n = 0;
  dtype gradient_type = dtype::f32;
  void const* const* terms = nullptr;
  int term_count = 0;  ///< at most most_gradient_terms
  double scale = 1;    ///< of the sum of the terms
  dtype output_type = dtype::f32;
  void* const* outputs = nullptr;
  int output_count = 0;  ///< at most most_update_outputs
};
[[nodiscard]] int adamw(handle stream, update_call const& call, void* first, void* second, adamw_numbers const& how);
[[nodiscard]] int sgd(handle stream, update_call const& call, void* velocity, sgd_numbers const& how);
/// One tensor of several that AdamW updates together: one term of a gradient, and at most one output.
struct adamw_tensor {
  void* value;
  void* first;
  void* second;
  void const* gradient;
  void* output;  ///< or null
  std::int64_t n;
  double scale;  ///< of the gradient
  adamw_numbers how;
};
[[nodiscard]] int adamw_together(handle stream, dtype value_type, dtype gradient_type, dtype output_type,
                                 adamw_tensor const* all, std::size_t count);
/// One tensor of several whose squares are added together.
struct squared_tensor {
  void const* x;
  std::int64_t n;
};
/// sum_of_squares() of several tensors of one type.
[[nodiscard]] int squares_together(handle stream, dtype of, squared_tensor const* all, std::size_t count,
                                   std::int64_t* state);
/// value[i] -= by * (-1, 0 or 1: the sign of measured[i]); values of float or double.
[[nodiscard]] int step_against_sign(handle stream, dtype of, void* value, dtype of_measured, void const* measured,
                                    std::int64_t n, double by);

}  // namespace trireme::ops::cuda_kernels
