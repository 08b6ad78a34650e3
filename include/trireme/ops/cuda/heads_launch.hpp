#pragma once

#include <cstdint>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/types.hpp"

// The kernels of heads behind plain functions, as in launch.hpp. Tables, rstd and the gradients of gains are float, or
// double for heads of double.

namespace trireme::ops::cuda_kernels {

using handle = void*;

/// `table` may be null: no rotation.
[[nodiscard]] int arrange_heads(handle stream, dtype of, void* qkv, void const* x, void const* table,
                                head_layout const& how, std::int64_t rows);
[[nodiscard]] int arrange_heads_backward(handle stream, dtype of, void* dx, void const* dqkv, void const* table,
                                         head_layout const& how, std::int64_t rows);

/// The tensors of an RMS norm of each query and key.
struct head_norms {
  dtype of = dtype::f32;
  head_layout how{};
  std::int64_t rows = 0;
  void const* x = nullptr;
  void const* query_gain = nullptr;
  void const* key_gain = nullptr;
  void* rstd = nullptr;
};
[[nodiscard]] int normalise_heads(handle stream, head_norms const& norms, void* y, double epsilon);
/// The bytes of scratch memory that the backward pass takes.
[[nodiscard]] std::int64_t bytes_of_head_gains(head_norms const& norms);
[[nodiscard]] int normalise_heads_backward(handle stream, head_norms const& norms, void* dx, void const* dy,
                                           void* dquery_gain, void* dkey_gain, void* scratch);

/// seen (samples, context, 2). Padding between words: *first_refused, in device memory and 0 before, becomes the
/// complement of the number of the first such token.
[[nodiscard]] int visible_keys(handle stream, std::int32_t* seen, std::int32_t const* tokens, std::int64_t samples,
                               std::int64_t context, token_mask const& how, unsigned long long* first_refused);

}  // namespace trireme::ops::cuda_kernels
