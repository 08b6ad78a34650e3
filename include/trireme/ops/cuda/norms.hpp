#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/norms_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Normalisation of the rows of a matrix in CUDA memory: layer_norm, and rms_norm, which has no mean and no bias.
///
/// Views are checked as on<host> checks them. Work is queued on cuda::stream() of the calling thread.
///
/// Numerics as on the host, but for the order of sums: sums in the accumulate type, the variance about the mean; the
///          result of a row depends on that row alone. dgain and dbias are summed in an order that depends on the
///          numbers of rows, of channels and of the device's multiprocessors, never on which block is done first.
/// Bytes    backward passes use cuda_scratch: at most 8 rows of sums a multiprocessor, 3.2 MB for GPT-2 on an H100.
/// Threads  thread-safe on different outputs; each thread has its own stream.
/// Errors   assertion_error (light) if the sizes do not fit; device_error with CUDA's message if work cannot be queued.
struct cuda_normalisation {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<view<T const>>;
  template <class T>
  using output = std::type_identity_t<view<T>>;

  /// y = (x - mean) * rstd * gain + bias, rstd = 1 / sqrt(variance + epsilon).
  /// Shapes   x, y (M, C); mean, rstd (M); gain, bias (C). y may be x.
  template <detail::cuda_float T>
  static void layer_norm(view<T> y, output<accumulate_t<T>> mean, output<accumulate_t<T>> rstd, input<T> x,
                         input<T> gain, input<T> bias, double epsilon) {
    auto const channels = gain.size();
    detail::same_size("layer_norm", y.size(), x.size());
    detail::same_size("layer_norm", x.size(), mean.size() * channels);
    detail::same_size("layer_norm", mean.size(), rstd.size());
    detail::same_size("layer_norm", bias.size(), channels);
    detail::expect_cuda("layer_norm",
                        cuda_kernels::layer_norm(cuda::stream(), dtype_of<T>, raw(y), raw(mean), raw(rstd), raw(x),
                                                 raw(gain), raw(bias), mean.size(), channels, epsilon));
  }

  /// The gradients of layer_norm: dx is written, or added to if `accumulate`; dgain and dbias are added to.
  /// Shapes   dx, dy, x (M, C); mean, rstd (M); gain, dgain, dbias (C). dx may be dy unless it accumulates.
  template <detail::cuda_float T>
  static void layer_norm_backward(view<T> dx, output<accumulate_t<T>> dgain, output<accumulate_t<T>> dbias, input<T> dy,
                                  input<T> x, input<accumulate_t<T>> mean, input<accumulate_t<T>> rstd, input<T> gain,
                                  bool accumulate) {
    auto const channels = gain.size();
    detail::same_size("layer_norm_backward", dx.size(), x.size());
    detail::same_size("layer_norm_backward", dy.size(), x.size());
    detail::same_size("layer_norm_backward", x.size(), mean.size() * channels);
    detail::same_size("layer_norm_backward", mean.size(), rstd.size());
    detail::same_size("layer_norm_backward", dgain.size(), channels);
    detail::same_size("layer_norm_backward", dbias.size(), channels);
    detail::expect_cuda("layer_norm_backward",
                        cuda_kernels::layer_norm_backward(
                            cuda::stream(), {.of = dtype_of<T>,
                                             .dx = raw(dx),
                                             .dgain = raw(dgain),
                                             .dbias = raw(dbias),
                                             .dy = raw(dy),
                                             .x = raw(x),
                                             .mean = raw(mean),
                                             .rstd = raw(rstd),
                                             .gain = raw(gain),
                                             .rows = mean.size(),
                                             .channels = channels,
                                             .accumulate = accumulate,
                                             .scratch = scratch<T>("layer_norm_backward", mean.size(), channels)}));
  }

  /// y = x * rstd * gain, rstd = 1 / sqrt(average of squares + epsilon).
  /// Shapes   x, y (M, C); rstd (M); gain (C). y may be x.
  template <detail::cuda_float T>
  static void rms_norm(view<T> y, output<accumulate_t<T>> rstd, input<T> x, input<T> gain, double epsilon) {
    detail::same_size("rms_norm", y.size(), x.size());
    detail::same_size("rms_norm", x.size(), rstd.size() * gain.size());
    detail::expect_cuda("rms_norm", cuda_kernels::rms_norm(cuda::stream(), dtype_of<T>, raw(y), raw(rstd), raw(x),
                                                           raw(gain), rstd.size(), gain.size(), epsilon));
  }

  /// The gradients of rms_norm: dx is written, or added to if `accumulate`; dgain is added to.
  /// Shapes   dx, dy, x (M, C); rstd (M); gain, dgain (C). dx may be dy unless it accumulates.
  template <detail::cuda_float T>
  static void rms_norm_backward(view<T> dx, output<accumulate_t<T>> dgain, input<T> dy, input<T> x,
                                input<accumulate_t<T>> rstd, input<T> gain, bool accumulate) {
    detail::same_size("rms_norm_backward", dx.size(), x.size());
    detail::same_size("rms_norm_backward", dy.size(), x.size());
    detail::same_size("rms_norm_backward", x.size(), rstd.size() * gain.size());
    detail::same_size("rms_norm_backward", dgain.size(), gain.size());
    detail::expect_cuda("rms_norm_backward",
                        cuda_kernels::rms_norm_backward(
                            cuda::stream(), {.of = dtype_of<T>,
                                             .dx = raw(dx),
                                             .dgain = raw(dgain),
                                             .dy = raw(dy),
                                             .x = raw(x),
                                             .rstd = raw(rstd),
                                             .gain = raw(gain),
                                             .rows = rstd.size(),
                                             .channels = gain.size(),
                                             .accumulate = accumulate,
                                             .scratch = scratch<T>("rms_norm_backward", rstd.size(), gain.size())}));
  }

 private:
  template <class T>
  static void* scratch(char const* who, std::int64_t rows, std::int64_t channels) {
    return detail::cuda_scratch(who, cuda_kernels::norm_backward_scratch(dtype_of<T>, rows, channels));
  }
};

}  // namespace trireme::ops
