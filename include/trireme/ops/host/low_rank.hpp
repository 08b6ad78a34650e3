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

/// Kernels on matrices of few columns. Results are the same bits at every CPU level, so ranks on different machines may
/// each compute them.
///
/// Shapes   matrices are row-major views of two extents.
/// Threads  thread-safe on different outputs.   Errors   assertion_error (light) if sizes do not fit.
struct host_low_rank {
  /// y = a b, with a or b transposed if requested; one of the three extents of the product is small.
  ///
  /// Shapes   y (M,N); a (M,K), or (K,M) transposed; b (K,N), or (N,K) transposed.
  /// Numerics each element is summed in the order of K, in T (float or double).
  template <class T>
  static void small_product(tensor_view<T, host> y, std::type_identity_t<tensor_view<T const, host>> a, transposed of_a,
                            std::type_identity_t<tensor_view<T const, host>> b, transposed of_b) {
    auto const [m, n, k] = detail::sizes_of_product(y.extents(), a.extents(), of_a, b.extents(), of_b);
    T* const to = raw(y);
    T const* const left = raw(a);
    T const* right = raw(b);
    if (of_b == transposed::yes) {
      thread_local std::vector<T> turned;
      turned.resize(static_cast<std::size_t>(k * n));
      for (std::int64_t j = 0; j < n; ++j) {
        for (std::int64_t l = 0; l < k; ++l) turned[static_cast<std::size_t>(l * n + j)] = right[j * k + l];
      }
      right = turned.data();
    }
    std::fill(to, to + m * n, T{});
    if (of_a == transposed::yes) {  // read rows of a and b once each, in order
      for (std::int64_t l = 0; l < k; ++l) {
        for (std::int64_t i = 0; i < m; ++i) add_row(to + i * n, left[l * m + i], right + l * n, n);
      }
    } else {
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t l = 0; l < k; ++l) add_row(to + i * n, left[i * k + l], right + l * n, n);
      }
    }
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

 private:
  template <class T>
  static void add_row(T* to, T factor, T const* from, std::int64_t n) {
    for (std::int64_t j = 0; j < n; ++j) to[j] += factor * from[j];
  }
};

}  // namespace trireme::ops
