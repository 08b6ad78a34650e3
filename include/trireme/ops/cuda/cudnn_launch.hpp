#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/ops/cuda/launch.hpp"

namespace trireme::ops::cuda_kernels {

/// One call of attention: rows of queries, keys and values as nn::attend gives them.
struct attention_call {
  handle stream = nullptr;
  dtype of = dtype::f32;  ///< of qkv, y and their gradients
  std::int64_t batch = 0;
  std::int64_t context = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;  ///< D of a head; C = heads * width
  bool causal = true;
  std::int64_t window = 0;    ///< 0: any distance
  double scale = 1;           ///< 1 / sqrt(D)
  void const* qkv = nullptr;  ///< (B*T, 3C)
  void* y = nullptr;          ///< (B*T, C)
  float* lse = nullptr;       ///< (B, H, T): natural logarithm of the row's sum of exponentials of scaled scores
  void const* dy = nullptr;   ///< backward only
  void* dqkv = nullptr;       ///< backward only, written
};
/// Whether cuDNN is there and takes this call, in both directions: 16-bit types, supported shapes and masks, not turned
/// off by TRIREME_ATTENTION=own. Cached by shape; the first call of a shape may take a second.
[[nodiscard]] bool cudnn_takes(attention_call const& call);
/// Bytes of workspace in device memory.
[[nodiscard]] std::size_t cudnn_workspace(attention_call const& call, bool backward);
/// Queues the work. Returns a cudaError_t.
[[nodiscard]] int cudnn_attention(attention_call const& call, void* workspace);
[[nodiscard]] int cudnn_attention_backward(attention_call const& call, void* workspace);

}  // namespace trireme::ops::cuda_kernels
