#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/cuda/launch.hpp"

// The kernels of norms behind plain functions, as launch.hpp has those of elements; ops/cuda/norms.cu has their bodies.
// Rows have `channels` elements of the type `of`; means, reciprocal deviations and gradients of gains and biases are
// double if that is double, and float otherwise.

namespace trireme::ops::cuda_kernels {

/// y = (x - mean) rstd gain + bias, with the mean and rstd of each row. y may be x.
[[nodiscard]] int layer_norm(handle stream, dtype of, void* y, void* mean, void* rstd, void const* x, void const* gain,
                             void const* bias, std::int64_t rows, std::int64_t channels, double epsilon);
/// y = x rstd gain. y may be x.
[[nodiscard]] int rms_norm(handle stream, dtype of, void* y, void* rstd, void const* x, void const* gain,
                           std::int64_t rows, std::int64_t channels, double epsilon);

/// The tensors of a backward pass. dx is written, or added to if `accumulate`; dgain and dbias are added to.
struct norm_backward_call {
  dtype of = dtype::f32;
  void* dx = nullptr;  ///< may be dy unless it accumulates
  void* dgain = nullptr;
  void* dbias = nullptr;  ///< of layer_norm alone, as is `mean`
  void const* dy = nullptr;
  void const* x = nullptr;
  void const* mean = nullptr;
  void const* rstd = nullptr;
  void const* gain = nullptr;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  bool accumulate = false;
  void* scratch = nullptr;  ///< norm_backward_scratch() bytes, aligned to 256
};
/// The bytes of device memory that a backward pass needs.
[[nodiscard]] std::size_t norm_backward_scratch(dtype of, std::int64_t rows, std::int64_t channels);
[[nodiscard]] int layer_norm_backward(handle stream, norm_backward_call const& call);
[[nodiscard]] int rms_norm_backward(handle stream, norm_backward_call const& call);

}  // namespace trireme::ops::cuda_kernels
