#include "regression.hpp"

namespace regression {

namespace {

constexpr int threads = 128;  // a power of two

/// A thread a sample.
__global__ void write_errors(batch all, model values) {
  int const s = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (s >= all.n) return;
  float out = *values.bias;
  for (int i = 0; i < inputs; ++i) out += values.weights[i] * all.x[s * inputs + i];
  all.errors[s] = out - all.y[s];
}

/// A block for each sum over the samples: one a weight, one for the bias, one for the loss. Each is added in a fixed
/// order and not by atomicAdd, so that a run repeats bit for bit.
__global__ void write_sums(batch all, model gradients, float* loss) {
  __shared__ float parts[threads];
  int const sum = static_cast<int>(blockIdx.x);
  int const thread = static_cast<int>(threadIdx.x);
  float part = 0;
  for (int s = thread; s < all.n; s += threads) {
    float const error = all.errors[s];
    part += error * (sum < inputs ? all.x[s * inputs + sum] : sum == inputs ? 1.0F : error);
  }
  parts[thread] = part;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) parts[thread] += parts[thread + half];
  }
  if (thread > 0) return;
  float const mean = parts[0] / static_cast<float>(all.n);
  if (sum < inputs)
    gradients.weights[sum] = 2 * mean;
  else if (sum == inputs)
    *gradients.bias = 2 * mean;
  else
    *loss = parts[0];
}

}  // namespace

cudaError_t find_gradients(batch const& all, model const& values, model const& gradients, float* loss,
                           cudaStream_t stream) {
  int const blocks = (all.n + threads - 1) / threads;
  write_errors<<<blocks, threads, 0, stream>>>(all, values);
  write_sums<<<inputs + 2, threads, 0, stream>>>(all, gradients, loss);
  return cudaGetLastError();
}

}  // namespace regression
