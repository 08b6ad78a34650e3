#pragma once

#include "trireme/ops/cuda/elements.hpp"
#include "trireme/ops/cuda/heads.hpp"
#include "trireme/ops/cuda/losses.hpp"

// A program that includes this header links trireme::cuda, which has the kernels themselves (docs/gpus.md).

namespace trireme::ops {

/// The kernels of CUDA memory; each base class documents its own.
///
/// Work is queued on cuda::stream() of the calling thread, in the order of its calls.
/// Threads  thread-safe on different outputs; each thread has its own stream.
template <>
struct on<cuda> : cuda_elements, cuda_losses, cuda_heads {};

}  // namespace trireme::ops
