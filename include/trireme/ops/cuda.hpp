#pragma once

#include "trireme/ops/cuda/attention.hpp"
#include "trireme/ops/cuda/batch_norm.hpp"
#include "trireme/ops/cuda/batch_queue.hpp"
#include "trireme/ops/cuda/codes.hpp"
#include "trireme/ops/cuda/elements.hpp"
#include "trireme/ops/cuda/embedding.hpp"
#include "trireme/ops/cuda/heads.hpp"
#include "trireme/ops/cuda/images.hpp"
#include "trireme/ops/cuda/latent_heads.hpp"
#include "trireme/ops/cuda/losses.hpp"
#include "trireme/ops/cuda/low_rank.hpp"
#include "trireme/ops/cuda/norms.hpp"
#include "trireme/ops/cuda/paged_attention.hpp"
#include "trireme/ops/cuda/products.hpp"
#include "trireme/ops/cuda/routing.hpp"
#include "trireme/ops/cuda/selection.hpp"
#include "trireme/ops/cuda/whole_tensors.hpp"

// A program that includes this header links trireme::cuda, which has the kernels themselves (docs/gpus.md).

namespace trireme::ops {

/// The kernels of CUDA memory; each base class documents its own.
///
/// Work is queued on cuda::stream() of the calling thread, in the order of its calls.
/// Threads  thread-safe on different outputs; each thread has its own stream.
template <>
struct on<cuda> : cuda_elements,
                  cuda_products,
                  cuda_attention,
                  cuda_codes,
                  cuda_low_rank,
                  cuda_selection,
                  cuda_normalisation,
                  cuda_embedding,
                  cuda_losses,
                  cuda_heads,
                  cuda_routing {};

}  // namespace trireme::ops
