#pragma once

#include <cstdint>

#include "trireme/core/dtype.hpp"

// The kernels of attention over pages of a CUDA device behind plain functions (ops/cuda/launch.hpp says how they
// behave); ops/cuda/paged_attention.cu has their bodies, ops/paged_attention.hpp says what they compute.

namespace trireme::ops::cuda_kernels {

/// Rows of many sequences, and the pages of these, in memory of the device.
struct paged_work {
  std::int64_t const* places = nullptr;  ///< of each row its position, and where its sequence begins in `pages`
  std::int32_t const* pages = nullptr;
  std::int64_t rows = 0;
  std::int64_t heads = 1, key_heads = 1, width = 0;
  std::int64_t window = 0;  ///< how many positions back are seen; 0: all
};

/// Writes the keys and values of the rows to their pages.
[[nodiscard]] int keep_pages(void* stream, dtype of, void* kept, void const* qkv, paged_work const& work);
/// y = softmax(q k^T / sqrt(width)) v of each row and head, over the positions up to its own.
[[nodiscard]] int attend_pages(void* stream, dtype of, void* y, void const* kept, void const* qkv,
                               paged_work const& work);

}  // namespace trireme::ops::cuda_kernels
