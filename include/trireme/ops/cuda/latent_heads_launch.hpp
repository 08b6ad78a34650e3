#pragma once

#include <cstdint>

#include "trireme/core/dtype.hpp"

// The kernels of latent attention's heads of a CUDA device behind plain functions (ops/cuda/launch.hpp says how they
// behave); ops/cuda/latent_heads.cu has their bodies, ops/latent_heads.hpp says what they compute.

namespace trireme::ops::cuda_kernels {

/// The widths of the parts of a head, and the rows of all samples.
struct latent_widths {
  std::int64_t rows = 0, context = 0, heads = 1;
  std::int64_t plain = 0, rotary = 0, values = 0;
  std::int64_t width = 0;  ///< of a head in qkv
  double query_scale = 1;  ///< of queries
};

/// The table is of the type of sums.
[[nodiscard]] int arrange_latent_heads(void* stream, dtype of, void* qkv, void const* queries, void const* pairs,
                                       void const* key, void const* table, latent_widths const& how);
[[nodiscard]] int arrange_latent_heads_backward(void* stream, dtype of, void* dqueries, void* dpairs, void* dkey,
                                                void const* dqkv, void const* table, latent_widths const& how);

}  // namespace trireme::ops::cuda_kernels
