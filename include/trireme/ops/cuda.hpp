#pragma once

#include "trireme/ops/cuda/codes.hpp"
#include "trireme/ops/cuda/elements.hpp"
#include "trireme/ops/cuda/low_rank.hpp"
#include "trireme/ops/cuda/selection.hpp"
#include "trireme/ops/cuda/whole_tensors.hpp"

// A program that includes this header links trireme::cuda, which has the kernels themselves (docs/gpus.md).

namespace trireme::ops {

/// The kernels of CUDA memory; each base class documents its own.
///
/// Work is queued on cuda::stream() of the calling thread, in the order of its calls.
/// Threads  thread-safe on different outputs; each thread has its own stream.
template <>
struct on<cuda> : cuda_codes, cuda_elements, cuda_low_rank, cuda_selection {};

}  // namespace trireme::ops
