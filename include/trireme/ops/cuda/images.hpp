#pragma once

#include <concepts>
#include <cstdint>

#include "trireme/core/cuda_space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/images_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/images.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// The image kernels of CUDA memory, with the shapes and checks of images_on<host>. Work is queued on cuda::stream() of
/// the calling thread.
///
/// Numerics sums are formed in the accumulate type in the host's order, and rounded once: in float and double the
///          host's bits. The host rounds each addition of patches_backward, max_pool_backward and
///          average_pool_backward, so 16-bit gradients differ from its by these roundings.
/// Threads  thread-safe on different outputs; each thread has its own stream.
/// Errors   assertion_error (light) if sizes do not fit; device_error with CUDA's message if work cannot be queued.
template <>
struct images_on<cuda> : detail::image_checks {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, cuda>>;

  template <detail::cuda_float T>
  static void patches(view<T> y, input<T> x, window const& at, std::int64_t gap = 0) {
    auto const n = images("patches", x, y, (gap + at.count()) * at.numbers(), at);
    detail::expect_cuda("patches",
                        cuda_kernels::patches(cuda::stream(), dtype_of<T>, raw(y), raw(x), plain(at), n, gap));
  }
  template <detail::cuda_float T>
  static void patches_backward(view<T> dx, input<T> dy, window const& at, std::int64_t gap = 0) {
    auto const n = images("patches_backward", dx, dy, (gap + at.count()) * at.numbers(), at);
    detail::expect_cuda("patches_backward", cuda_kernels::patches_backward(cuda::stream(), dtype_of<T>, raw(dx),
                                                                           raw(dy), plain(at), n, gap));
  }

  template <detail::cuda_float T>
  static void add_positions(view<T> y, input<T> x, input<T> table, input<T> token, std::int64_t first) {
    positions("add_positions", y, x, table, token);
    auto const width = table.extent(1);
    detail::expect_cuda("add_positions", cuda_kernels::add_positions(cuda::stream(), dtype_of<T>, raw(y), raw(x),
                                                                     raw(table), token.empty() ? nullptr : raw(token),
                                                                     y.size() / width, width, table.extent(0), first));
  }
  /// dx may be dy; sums over rows are in the order of rows.
  template <detail::cuda_float T, std::same_as<accumulate_t<T>> G>
  static void add_positions_backward(view<T> dx, input<T> dy, view<G> dtable, std::type_identity_t<view<G>> dtoken,
                                     std::int64_t first, bool accumulate) {
    positions("add_positions_backward", dx, dy, dtable, dtoken);
    auto const width = dtable.extent(1);
    detail::expect_cuda("add_positions_backward",
                        cuda_kernels::add_positions_backward(cuda::stream(), dtype_of<T>, raw(dx), raw(dy), raw(dtable),
                                                             dtoken.empty() ? nullptr : raw(dtoken), dx.size() / width,
                                                             width, dtable.extent(0), first, accumulate));
  }

  template <detail::cuda_float T>
  static void max_pool(view<T> y, input<T> x, window const& at) {
    auto const n = images("max_pool", x, y, at.count() * at.channels, at);
    detail::expect_cuda("max_pool", cuda_kernels::max_pool(cuda::stream(), dtype_of<T>, raw(y), raw(x), plain(at), n));
  }
  /// dx and dy may not overlap, nor dx and x.
  template <detail::cuda_float T>
  static void max_pool_backward(view<T> dx, input<T> dy, input<T> x, window const& at) {
    auto const n = images("max_pool_backward", dx, dy, at.count() * at.channels, at);
    detail::expect_cuda("max_pool_backward", cuda_kernels::max_pool_backward(cuda::stream(), dtype_of<T>, raw(dx),
                                                                             raw(dy), raw(x), plain(at), n));
  }

  template <detail::cuda_float T>
  static void average_pool(view<T> y, input<T> x, window const& at) {
    auto const n = images("average_pool", x, y, at.count() * at.channels, at);
    detail::expect_cuda("average_pool",
                        cuda_kernels::average_pool(cuda::stream(), dtype_of<T>, raw(y), raw(x), plain(at), n));
  }
  template <detail::cuda_float T>
  static void average_pool_backward(view<T> dx, input<T> dy, window const& at) {
    auto const n = images("average_pool_backward", dx, dy, at.count() * at.channels, at);
    detail::expect_cuda("average_pool_backward", cuda_kernels::average_pool_backward(cuda::stream(), dtype_of<T>,
                                                                                     raw(dx), raw(dy), plain(at), n));
  }

 private:
  static cuda_kernels::image_window plain(window const& at) {
    return {at.height, at.width, at.channels, at.kernel, at.stride, at.padding, at.rows(), at.columns()};
  }
};

}  // namespace trireme::ops
