#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/cuda/launch.hpp"

// Matrix products of CUDA memory behind plain functions, which any compiler reads. ops/cuda/cublas.cu has the product
// itself, over cuBLASLt; ops/cuda/products.cu has the kernels around it.

namespace trireme::ops::cuda_kernels {

/// What a product does to a number before it is stored. GELU is the one with tanh.
enum class product_epilogue : std::uint8_t {
  none,
  bias,        ///< z + bias
  gelu,        ///< gelu(z); z is kept if `kept` is given
  gelu_bias,   ///< gelu(z + bias); z + bias is kept if `kept` is given
  gelu_slope,  ///< z * gelu'(kept)
  left_sums,   ///< z; `sums` receives the sums of left's terms for each row
  right_sums,  ///< z; `sums` receives the sums of right's terms for each column
};
[[nodiscard]] constexpr char const* name_of(product_epilogue epilogue) noexcept {
  switch (epilogue) {
    case product_epilogue::bias:
      return "bias";
    case product_epilogue::gelu:
      return "GELU";
    case product_epilogue::gelu_bias:
      return "bias and GELU";
    case product_epilogue::gelu_slope:
      return "the derivative of GELU";
    case product_epilogue::left_sums:
    case product_epilogue::right_sums:
      return "sums of an operand";
    default:
      return "none";
  }
}

/// to = epilogue(left right + added), with matrices in row-major order; a row length counts the elements from a row to
/// the next one, and elements of a row behind the matrix are neither read nor written.
struct product_call {
  dtype of = dtype::f32;       ///< left and right
  dtype to_type = dtype::f32;  ///< to, added, bias and kept: `of`, or f32 for operands of 16 bits
  std::int64_t rows = 0, columns = 0, inner = 0;
  void const* left = nullptr;  ///< (rows, inner), or (inner, rows) if transposed
  std::int64_t left_row = 0;
  bool left_transposed = false;
  void const* right = nullptr;  ///< (inner, columns), or (columns, inner) if transposed
  std::int64_t right_row = 0;
  bool right_transposed = false;
  void* to = nullptr;  ///< (rows, columns)
  std::int64_t to_row = 0;
  void const* added = nullptr;  ///< (rows, columns) with rows of to_row, may be `to`; null: nothing is added
  product_epilogue epilogue = product_epilogue::none;
  void const* bias = nullptr;  ///< (columns)
  void* kept = nullptr;        ///< (rows, columns) with rows of to_row, a multiple of 8; null: nothing is kept
  void* sums = nullptr;        ///< (rows) or (columns) of the type of `to`
  bool tf32 = false;           ///< operands of float may be rounded to TF32
};

/// How a call of multiply() went. The texts are constants of the library that is called.
struct product_outcome {
  enum class state : std::uint8_t {
    queued,
    unsupported,  ///< the library has no algorithm for this call, so another epilogue may help
    failed,
  };
  state is = state::queued;
  char const* call = "";          ///< the function that has failed
  char const* reason = "";        ///< its message
  std::size_t no_memory_for = 0;  ///< bytes of the device that were asked for, if its memory is used up
};

/// Queues a product. Sums are formed in float, or in double for double. Operands of float are rounded to TF32 only if
/// the call allows it.
[[nodiscard]] product_outcome multiply(handle stream, product_call const& call);

/// The measured time of a product, which is planned by this call if it was not before; 0 if products are not measured
/// (TRIREME_CUDA_TUNE), infinite if there is no algorithm.
[[nodiscard]] double product_microseconds(handle stream, product_call const& call);

/// What remains to be done with the sums of a product, for each element in this order:
///   z = sums + bias; kept = z; z = slope_at given ? z * act'(slope_at) : act(z); to = z + residual (+ to)
/// Tensors that are null are left out. All are (rows, columns) of the type `of` with rows of `row` elements, but
/// `sums`.
struct product_finish {
  dtype of = dtype::f32;
  dtype sums_type = dtype::f32;  ///< `of`, or f32 for 16 bits
  std::int64_t rows = 0, columns = 0, row = 0;
  void const* sums = nullptr;  ///< may be `to` or `kept`
  std::int64_t sums_row = 0;
  void* to = nullptr;
  void const* bias = nullptr;  ///< (columns)
  activation act = activation::none;
  void* kept = nullptr;
  void const* residual = nullptr;  ///< may be `to`
  void const* slope_at = nullptr;  ///< may be `to`
  bool accumulate = false;
};
[[nodiscard]] int finish_product(handle stream, product_finish const& what);

/// sums[c] += the sum of x[r * row + c] over all rows r, for c < columns. `sums` has the type `of`, or f32 for 16 bits.
/// The order of each sum depends on rows and columns only. `scratch` has column_sums_bytes(), aligned to 16 bytes.
[[nodiscard]] int column_sums(handle stream, dtype to, void* sums, dtype of, void const* x, std::int64_t rows,
                              std::int64_t columns, std::int64_t row, void* scratch);
[[nodiscard]] std::size_t column_sums_bytes(dtype of, std::int64_t rows, std::int64_t columns);

}  // namespace trireme::ops::cuda_kernels
