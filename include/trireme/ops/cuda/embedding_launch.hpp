#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/cuda/launch.hpp"

// The kernels of embeddings behind plain functions, as launch.hpp has those of elements; ops/cuda/embedding.cu has
// their bodies. Tokens are rows / context samples of `context` each; rows have `channels` elements. The table has rows
// for the tokens from `first` on, `words` of them; a token without a row adds nothing.

namespace trireme::ops::cuda_kernels {

/// y[b, t] = table[tokens[b, t] - first] + positions[t]; `positions` may be null.
[[nodiscard]] int embed(handle stream, dtype of, void* y, std::int32_t const* tokens, void const* table,
                        void const* positions, std::int64_t rows, std::int64_t context, std::int64_t channels,
                        std::int64_t first, std::int64_t words);
/// y[row] += table[tokens[row]]
[[nodiscard]] int add_embedded(handle stream, dtype of, void* y, std::int32_t const* tokens, void const* table,
                               std::int64_t rows, std::int64_t channels, std::int64_t words);
/// segments[b, t] = the number of separators before t in sample b, at most `last`.
[[nodiscard]] int count_separators(handle stream, std::int32_t* segments, std::int32_t const* tokens,
                                   std::int64_t samples, std::int64_t context, std::int32_t separator,
                                   std::int32_t last);

/// The tensors of a backward pass: dtable[tokens[b, t] - first] += dy[b, t], and dpositions[t] += dy[b, t].
struct embed_backward_call {
  dtype of_gradients = dtype::f32;  ///< that of dy, or the type in which it is summed
  void* dtable = nullptr;
  void* dpositions = nullptr;  ///< or null
  dtype of = dtype::f32;
  void const* dy = nullptr;
  std::int32_t const* tokens = nullptr;
  std::int64_t rows = 0;  ///< fewer than 2^31
  std::int64_t context = 0;
  std::int64_t channels = 0;
  std::int64_t first = 0;
  std::int64_t words = 0;
  void* scratch = nullptr;  ///< embed_backward_scratch() bytes, aligned to 256
};
/// The bytes of device memory that it needs.
[[nodiscard]] std::size_t embed_backward_scratch(embed_backward_call const& call);
[[nodiscard]] int embed_backward(handle stream, embed_backward_call const& call);

}  // namespace trireme::ops::cuda_kernels
