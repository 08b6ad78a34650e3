#pragma once

#include <cstdint>

#include "trireme/core/assertion.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

template <class T, class A>
void layer_norm_rows(T* y, A* mean, A* rstd, T const* x, T const* gain, T const* bias, std::int64_t rows,
                     std::int64_t channels, double epsilon);
template <class T, class A>
void layer_norm_backward_rows(T* dx, A* dgain, A* dbias, T const* dy, T const* x, A const* mean, A const* rstd,
                              T const* gain, std::int64_t rows, std::int64_t channels, bool accumulate);
template <class T, class A>
void rms_norm_rows(T* y, A* rstd, T const* x, T const* gain, std::int64_t rows, std::int64_t channels, double epsilon);
template <class T, class A>
void rms_norm_backward_rows(T* dx, A* dgain, T const* dy, T const* x, A const* rstd, T const* gain, std::int64_t rows,
                            std::int64_t channels, bool accumulate);

}  // namespace detail

/// Normalisation of the rows of a matrix: layer_norm, and rms_norm, which has no mean and no bias.
/// Numerics sums in the accumulate type, the variance about the mean (two passes over a row that is in L1); a row's
///          result does not depend on the other rows, and dgain and dbias are summed in the order of rows.
/// Errors   assertion_error (light) if the sizes do not fit.
struct host_normalisation {
  template <class T>
  using view = tensor_view<T, host>;

  /// y = (x - mean) * rstd * gain + bias, rstd = 1 / sqrt(variance + epsilon).
  /// Shapes   x, y (M, C); mean, rstd (M); gain, bias (C). y may be x.
  template <class T>
  static void layer_norm(view<T> y, detail::output<accumulate_t<T>> mean, detail::output<accumulate_t<T>> rstd,
                         detail::input<T> x, detail::input<T> gain, detail::input<T> bias, double epsilon) {
    auto const channels = gain.size();
    detail::same_size("layer_norm", y.size(), x.size());
    detail::same_size("layer_norm", x.size(), mean.size() * channels);
    detail::same_size("layer_norm", mean.size(), rstd.size());
    detail::same_size("layer_norm", bias.size(), channels);
    detail::layer_norm_rows(raw(y), raw(mean), raw(rstd), raw(x), raw(gain), raw(bias), mean.size(), channels, epsilon);
  }

  /// The gradients of layer_norm: dx is written, or added to if `accumulate`; dgain and dbias are added to.
  /// Shapes   dx, dy, x (M, C); mean, rstd (M); gain, dgain, dbias (C). dx may be dy unless it accumulates.
  template <class T>
  static void layer_norm_backward(view<T> dx, detail::output<accumulate_t<T>> dgain,
                                  detail::output<accumulate_t<T>> dbias, detail::input<T> dy, detail::input<T> x,
                                  detail::input<accumulate_t<T>> mean, detail::input<accumulate_t<T>> rstd,
                                  detail::input<T> gain, bool accumulate) {
    auto const channels = gain.size();
    detail::same_size("layer_norm_backward", dx.size(), x.size());
    detail::same_size("layer_norm_backward", dy.size(), x.size());
    detail::same_size("layer_norm_backward", x.size(), mean.size() * channels);
    detail::same_size("layer_norm_backward", mean.size(), rstd.size());
    detail::same_size("layer_norm_backward", dgain.size(), channels);
    detail::same_size("layer_norm_backward", dbias.size(), channels);
    detail::layer_norm_backward_rows(raw(dx), raw(dgain), raw(dbias), raw(dy), raw(x), raw(mean), raw(rstd), raw(gain),
                                     mean.size(), channels, accumulate);
  }

  /// y = x * rstd * gain, rstd = 1 / sqrt(average of squares + epsilon).
  /// Shapes   x, y (M, C); rstd (M); gain (C). y may be x.
  template <class T>
  static void rms_norm(view<T> y, detail::output<accumulate_t<T>> rstd, detail::input<T> x, detail::input<T> gain,
                       double epsilon) {
    detail::same_size("rms_norm", y.size(), x.size());
    detail::same_size("rms_norm", x.size(), rstd.size() * gain.size());
    detail::rms_norm_rows(raw(y), raw(rstd), raw(x), raw(gain), rstd.size(), gain.size(), epsilon);
  }

  /// The gradients of rms_norm: dx is written, or added to if `accumulate`; dgain is added to.
  /// Shapes   dx, dy, x (M, C); rstd (M); gain, dgain (C). dx may be dy unless it accumulates.
  template <class T>
  static void rms_norm_backward(view<T> dx, detail::output<accumulate_t<T>> dgain, detail::input<T> dy,
                                detail::input<T> x, detail::input<accumulate_t<T>> rstd, detail::input<T> gain,
                                bool accumulate) {
    detail::same_size("rms_norm_backward", dx.size(), x.size());
    detail::same_size("rms_norm_backward", dy.size(), x.size());
    detail::same_size("rms_norm_backward", x.size(), rstd.size() * gain.size());
    detail::same_size("rms_norm_backward", dgain.size(), gain.size());
    detail::rms_norm_backward_rows(raw(dx), raw(dgain), raw(dy), raw(x), raw(rstd), raw(gain), rstd.size(), gain.size(),
                                   accumulate);
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/normalisation.ipp"
#endif
