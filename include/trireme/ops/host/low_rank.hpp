#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/low_rank_shapes.hpp"

namespace trireme::ops {

namespace detail {

template <class T>
void small_product(T* y, T const* a, bool a_turned, T const* b, bool b_turned, std::int64_t m, std::int64_t n,
                   std::int64_t k);
template <class T>
void product_of_sum(T* y, T* x, T const* z, double weight, T const* b, std::int64_t m, std::int64_t n, std::int64_t k);
template <class T>
void rest_and_product(T* rest, T* x, T const* p, T const* own, T const* all, double factor, std::int64_t m,
                      std::int64_t n, std::int64_t r);

}  // namespace detail

/// Kernels on matrices of few columns. Products are the same bits at every CPU level, so ranks on different machines
/// may each compute them, and so are orthonormal columns.
///
/// Shapes   matrices are row-major views of two extents.
/// Threads  thread-safe on different outputs.   Errors   assertion_error (light) if sizes do not fit.
struct host_low_rank {
  template <class T>
  using view = tensor_view<T, host>;

  /// y = a b, with a or b transposed if requested; one of the three extents of the product is small.
  ///
  /// Shapes   y (M,N); a (M,K), or (K,M) transposed; b (K,N), or (N,K) transposed.
  /// Numerics each element is summed in the order of K, in T (float or double); products are rounded.
  template <class T>
  static void small_product(view<T> y, detail::input<T> a, transposed of_a, detail::input<T> b, transposed of_b) {
    auto const [m, n, k] = detail::sizes_of_product(y.extents(), a.extents(), of_a, b.extents(), of_b);
    detail::small_product(raw(y), raw(a), of_a == transposed::yes, raw(b), of_b == transposed::yes, m, n, k);
  }
  /// x += weight z, then y = x b, in one pass over x and z.
  ///
  /// Shapes   y (M,N); x and z (M,K); b (K,N).
  /// Numerics x has the bits of accumulate, which may depend on the CPU level; y those of small_product.
  template <class T>
  static void product_of_sum(view<T> y, view<T> x, detail::input<T> z, double weight, detail::input<T> b) {
    auto const [m, n, k] = detail::sizes_of_product_of_sum(y.extents(), x.extents(), z.extents(), b.extents());
    detail::product_of_sum(raw(y), raw(x), raw(z), weight, raw(b), m, n, k);
  }
  /// rest = factor (x - p own^T), then x = p all^T, in one pass over x and rest.
  ///
  /// Shapes   rest and x (M,N); p (M,R); own and all (N,R).
  /// Numerics x has the bits of small_product; rest is factor x + (-factor) (p own^T), with the bits of small_product,
  ///          scale and accumulate.
  template <class T>
  static void rest_and_product(view<T> rest, view<T> x, detail::input<T> p, detail::input<T> own, detail::input<T> all,
                               double factor) {
    auto const [m, n, r] =
        detail::sizes_of_rest(rest.extents(), x.extents(), p.extents(), own.extents(), all.extents());
    detail::rest_and_product(raw(rest), raw(x), raw(p), raw(own), raw(all), factor, m, n, r);
  }

  /// Makes the columns of x orthonormal, starting with the first (Gram-Schmidt, each column made orthogonal twice). A
  /// column that is a linear combination of earlier ones is replaced by a coordinate vector made orthogonal to them.
  ///
  /// Shapes   x (n, r), r <= n.
  /// Numerics inner products in double, in the order of n.
  template <class T>
  static void orthonormalise(tensor_view<T, host> x) {
    detail::expect_columns(x.extents());
    auto const n = x.extent(0);
    auto const r = x.extent(1);
    T* const all = raw(x);
    thread_local std::vector<double> column;
    column.resize(static_cast<std::size_t>(n));
    auto const inner = [&](auto&& a, auto&& b) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += a(i) * b(i);
      return sum;
    };
    auto const own = [&](std::int64_t i) -> double& { return column[static_cast<std::size_t>(i)]; };
    auto const made_orthogonal = [&](std::int64_t c) {
      for (int twice = 0; twice < 2; ++twice) {
        for (std::int64_t before = 0; before < c; ++before) {
          auto const other = [&](std::int64_t i) { return static_cast<double>(all[i * r + before]); };
          double const projection = inner(own, other);
          for (std::int64_t i = 0; i < n; ++i) own(i) -= projection * other(i);
        }
      }
      return inner(own, own);
    };
    constexpr double lost = 1e-10;  // of its square: below this the rest of the column is rounding error
    for (std::int64_t c = 0; c < r; ++c) {
      for (std::int64_t i = 0; i < n; ++i) own(i) = static_cast<double>(all[i * r + c]);
      double const whole = inner(own, own);
      double left = made_orthogonal(c);
      bool const stands = left > lost * whole && left <= whole * 2;  // false for NaN too
      for (std::int64_t axis = 0; !stands && axis < n; ++axis) {
        std::fill(column.begin(), column.end(), 0.0);
        own((c + axis) % n) = 1;
        left = made_orthogonal(c);
        if (2 * static_cast<double>(n) * left >= 1) break;  // holds for at least one axis
      }
      double const factor = 1 / std::sqrt(left);
      for (std::int64_t i = 0; i < n; ++i) all[i * r + c] = static_cast<T>(own(i) * factor);
    }
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/low_rank.ipp"
#endif
