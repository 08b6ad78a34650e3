#pragma once

#include <cuda_runtime.h>

// A model of the program's own: linear regression, y = weights . x + bias. Its kernels are in regression.cu, which nvcc
// compiles; neither file knows Trireme.
namespace regression {

inline constexpr int inputs = 8;

/// Addresses in CUDA memory.
struct batch {
  float const* x;  ///< (n, inputs)
  float const* y;  ///< (n)
  float* errors;   ///< (n), written
  int n;
};
struct model {
  float* weights;  ///< (inputs)
  float* bias;     ///< (1)
};

/// Queues on `stream`: the gradients of the mean of the squared errors, and the sum of these squares at `loss`.
[[nodiscard]] cudaError_t find_gradients(batch const& all, model const& values, model const& gradients, float* loss,
                                         cudaStream_t stream);

}  // namespace regression
