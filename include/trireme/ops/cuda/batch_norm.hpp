#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/batch_norm.hpp"
#include "trireme/ops/cuda/batch_norm_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// The batch normalisation kernels of CUDA memory, with the shapes and checks of batch_norm_on<host>. Work is queued on
/// cuda::stream() of the calling thread.
///
/// Numerics sums over rows are formed in double and rounded once. Chunks of rows are summed, and then their sums, in an
///          order that depends on the shape alone. normalise, normalise_backward and inverse_deviation have the host's
///          bits where its compiler contracts no products and sums.
/// Bytes    16 bytes of device memory for each channel and chunk of rows, of which there are at most 512.
/// Threads  thread-safe on different outputs; each thread has its own stream.
/// Errors   assertion_error (light) if sizes do not fit; device_error with CUDA's message if work cannot be queued;
///          std::bad_alloc if the device's memory is used up.
template <>
struct batch_norm_on<cuda> : detail::batch_norm_checks {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, cuda>>;
  template <class T>
  using sums = std::type_identity_t<tensor_view<accumulate_t<std::remove_const_t<T>>, cuda>>;
  template <class T>
  using numbers = std::type_identity_t<tensor_view<accumulate_t<std::remove_const_t<T>> const, cuda>>;

  template <class T>
  requires detail::cuda_float<std::remove_const_t<T>>
  static void column_sums(sums<T> sum, view<T> x) {
    check("column_sums", x, sum);
    auto const rows = x.extent(0), channels = x.extent(1);
    detail::expect_cuda("column_sums", cuda_kernels::column_sums(cuda::stream(), type_of<T>, raw(sum), raw(x), nullptr,
                                                                 rows, channels, scratch("column_sums", x)));
  }
  template <class T>
  requires detail::cuda_float<std::remove_const_t<T>>
  static void column_squares(sums<T> sum, view<T> x, numbers<T> mean) {
    check("column_squares", x, sum, mean);
    auto const rows = x.extent(0), channels = x.extent(1);
    detail::expect_cuda("column_squares",
                        cuda_kernels::column_sums(cuda::stream(), type_of<T>, raw(sum), raw(x), raw(mean), rows,
                                                  channels, scratch("column_squares", x)));
  }
  template <class T>
  requires detail::cuda_float<std::remove_const_t<T>>
  static void column_gradients(sums<T> of_dy, sums<T> of_both, view<T> dy, input<std::remove_const_t<T>> x,
                               numbers<T> mean, numbers<T> rstd) {
    check("column_gradients", dy, of_dy, of_both, mean, rstd);
    check("column_gradients", x, mean);
    auto const rows = dy.extent(0), channels = dy.extent(1);
    detail::expect_cuda("column_gradients", cuda_kernels::column_gradients(
                                                cuda::stream(), type_of<T>, raw(of_dy), raw(of_both), raw(dy), raw(x),
                                                raw(mean), raw(rstd), rows, channels, scratch("column_gradients", dy)));
  }
  template <std::floating_point A>
  static void inverse_deviation(view<A> rstd, input<A> variance, double epsilon) {
    expects(assertion_level::light, rstd.size() == variance.size(),
            [] { return std::string("trireme::ops::inverse_deviation: sizes differ"); });
    detail::expect_cuda("inverse_deviation", cuda_kernels::inverse_deviation(cuda::stream(), dtype_of<A>, raw(rstd),
                                                                             raw(variance), rstd.size(), epsilon));
  }
  template <detail::cuda_float T>
  static void normalise(view<T> y, input<T> x, numbers<T> mean, numbers<T> rstd, input<T> gain, input<T> bias) {
    check("normalise", y, mean, rstd, gain, bias);
    check("normalise", x, mean);
    detail::expect_cuda(
        "normalise", cuda_kernels::normalise_columns(cuda::stream(), dtype_of<T>, raw(y), raw(x), raw(mean), raw(rstd),
                                                     raw(gain), raw(bias), y.extent(0), y.extent(1)));
  }
  /// dx may be dy.
  template <detail::cuda_float T>
  static void normalise_backward(view<T> dx, input<T> dy, input<T> x, numbers<T> mean, numbers<T> rstd, input<T> gain,
                                 numbers<T> of_dy, numbers<T> of_both, std::int64_t n, bool accumulate) {
    check("normalise_backward", dx, mean, rstd, gain, of_dy, of_both);
    check("normalise_backward", dy, mean);
    check("normalise_backward", x, mean);
    cuda_kernels::column_gradient const by{raw(mean), raw(rstd), raw(gain), raw(of_dy), raw(of_both)};
    detail::expect_cuda("normalise_backward",
                        cuda_kernels::normalise_columns_backward(cuda::stream(), dtype_of<T>, raw(dx), raw(dy), raw(x),
                                                                 by, n, accumulate, dx.extent(0), dx.extent(1)));
  }

 private:
  template <class T>
  static constexpr dtype type_of = dtype_of<std::remove_const_t<T>>;
  template <class T>
  static double* scratch(char const* who, view<T> x) {
    auto const numbers = cuda_kernels::column_sums_scratch(x.extent(0), x.extent(1));
    return static_cast<double*>(detail::cuda_scratch(who, static_cast<std::size_t>(numbers) * sizeof(double)));
  }
};

}  // namespace trireme::ops
