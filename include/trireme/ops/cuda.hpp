#pragma once

#include "trireme/ops/cuda/batch_norm.hpp"
#include "trireme/ops/cuda/elements.hpp"
#include "trireme/ops/cuda/images.hpp"
#include "trireme/ops/cuda/latent_heads.hpp"
#include "trireme/ops/cuda/routing.hpp"

// A program that includes this header links trireme::cuda, which has the kernels themselves (docs/gpus.md).

namespace trireme::ops {

/// The kernels of CUDA memory; each base class documents its own.
///
/// Work is queued on cuda::stream() of the calling thread, in the order of its calls.
/// Threads  thread-safe on different outputs; each thread has its own stream.
template <>
struct on<cuda> : cuda_elements, cuda_routing {};

}  // namespace trireme::ops
