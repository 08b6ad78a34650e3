#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/cuda/launch.hpp"

// Attention by NVIDIA's cuDNN behind plain functions; ops/cuda/cudnn.cpp has their bodies. Compiled without the headers
// of cuDNN and of its frontend, or run without the library, they take nothing, and the kernels of this library compute
// attention.
//
// The environment variable TRIREME_ATTENTION chooses: `cudnn` is the default; `own` turns it off; `unordered` lets the
// backward pass add the terms of a query's gradient in any order, which may be faster and gives other bits in each run.

namespace trireme::ops::cuda_kernels {

/// One call of attention: rows of queries, keys and values, one after another, as ops::attention takes them.
struct attention_call {
  handle stream = nullptr;
  dtype of = dtype::f32;  ///< of qkv, y and their gradients
  std::int64_t batch = 0;
  std::int64_t context = 0;  ///< T
  std::int64_t heads = 0;
  std::int64_t width = 0;  ///< D, columns of a head; C = heads * width
  bool causal = true;
  std::int64_t window = 0;    ///< only keys at a distance below this; 0: any distance
  double scale = 1;           ///< of the scores: 1 / sqrt(D)
  void const* qkv = nullptr;  ///< (B*T, 3C)
  void* y = nullptr;          ///< (B*T, C)
  float* lse = nullptr;       ///< (B, H, T): natural logarithm of the sum of exponentials of a row's scaled scores
  void const* dy = nullptr;   ///< (B*T, C), of the backward pass
  void* dqkv = nullptr;       ///< (B*T, 3C), written by the backward pass
  bool ordered = true;        ///< the backward pass gives the same bits each time
};

/// Whether cuDNN is there and computes both directions of this call: 16-bit types, D a multiple of 8 and at most 256,
/// T a multiple of 64, no window unless causal, addresses that are multiples of 16 bytes (those that are not nullptr).
/// Remembered for each shape and thread; the first call with a shape compiles kernels, which takes about a second.
[[nodiscard]] bool cudnn_takes(attention_call const& call);
/// Why cuDNN did not take, or failed at, the last call of this thread; empty if it did neither.
[[nodiscard]] std::string cudnn_refusal();
/// The version of cuDNN that is used, as 10000 * major + 100 * minor + patch; 0: none.
[[nodiscard]] std::int64_t cudnn_version();

/// Bytes of device memory that one direction of a call needs while it runs.
[[nodiscard]] std::size_t cudnn_workspace(attention_call const& call, bool backward);
/// Queues y and lse. Returns a cudaError_t.
[[nodiscard]] int cudnn_attention(attention_call const& call, void* workspace);
/// Queues dqkv. Returns a cudaError_t.
[[nodiscard]] int cudnn_attention_backward(attention_call const& call, void* workspace);

/// Asks cuDNN, which needs no GPU for that, whether a GPU computes one direction of this call.
/// @param properties  of the GPU, in the JSON of cuDNN's device properties (version 9.8 or later).
/// @param compute_capability  90 for 9.0.
/// @return  the reason why not; empty if it does.
[[nodiscard]] std::string cudnn_refuses(attention_call const& call, bool backward, std::string const& properties,
                                        int compute_capability);

}  // namespace trireme::ops::cuda_kernels
