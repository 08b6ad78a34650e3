#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "trireme/core/cuda_space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/latent_heads_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/latent_heads.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// The kernels of latent attention of CUDA memory, with the shapes and checks of latent_heads_on<host>. Work is queued
/// on cuda::stream() of the calling thread.
///
/// Numerics the host's bits, where its compiler contracts no products and sums.
/// Threads  thread-safe on different outputs; each thread has its own stream.
/// Errors   assertion_error (light) if sizes do not fit; device_error with CUDA's message if work cannot be queued.
template <>
struct latent_heads_on<cuda> : detail::latent_checks {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, cuda>>;
  template <class T>
  using angles = std::type_identity_t<tensor_view<accumulate_t<T> const, cuda>>;

  /// The views may not overlap.
  template <detail::cuda_float T>
  static void arrange(view<T> qkv, input<T> queries, input<T> pairs, input<T> key, angles<T> table,
                      latent_layout const& how) {
    check("latent_heads", how, qkv, queries, pairs, key, table);
    detail::expect_cuda("latent_heads", cuda_kernels::arrange_latent_heads(cuda::stream(), dtype_of<T>, raw(qkv),
                                                                           raw(queries), raw(pairs), raw(key),
                                                                           raw(table), plain(how, key.extent(0))));
  }
  /// The views may not overlap.
  template <detail::cuda_float T>
  static void arrange_backward(view<T> dqueries, view<T> dpairs, view<T> dkey, input<T> dqkv, angles<T> table,
                               latent_layout const& how) {
    check("latent_heads_backward", how, dqkv, dqueries, dpairs, dkey, table);
    detail::expect_cuda("latent_heads_backward", cuda_kernels::arrange_latent_heads_backward(
                                                     cuda::stream(), dtype_of<T>, raw(dqueries), raw(dpairs), raw(dkey),
                                                     raw(dqkv), raw(table), plain(how, dkey.extent(0))));
  }

 private:
  static cuda_kernels::latent_widths plain(latent_layout const& how, std::int64_t rows) {
    auto const scale = std::sqrt(static_cast<double>(how.width()) / static_cast<double>(how.query()));
    return {rows, how.context, how.heads, how.plain, how.rotary, how.values, how.width(), scale};
  }
};

}  // namespace trireme::ops
