#pragma once

#ifdef Success
#error \
    "Eigen, which trireme includes, uses the name Success, which X11 defines as a macro: #undef it before the include"
#include <trireme_stopped_because_of_a_macro>
#endif
#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "trireme/ops/host/detail/product_kernels.hpp"

namespace trireme::ops::detail {

/// c (m, n) = a (m, k) b (k, n), all row-major and contiguous.
///
/// Calls Eigen's blocked product directly: the expression `c.noalias() = a * b` also instantiates three other
/// algorithms for small and thin matrices, which costs four times the compile time and makes a row's bits depend on m.
template <class A>
void eigen_multiply(A* c, A const* a, A const* b, std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr int any = Eigen::Dynamic;
  constexpr int by_row = Eigen::RowMajor;
  std::fill(c, c + m * n, A{0});
  Eigen::internal::gemm_blocking_space<by_row, A, A, any, any, any> blocking(m, n, k, 1, true);
  Eigen::internal::general_matrix_matrix_product<Eigen::Index, A, by_row, false, A, by_row, false, by_row, 1>::run(
      m, n, k, a, k, b, n, c, 1, n, A{1}, blocking, nullptr);
}

/// The same with every row's bits independent of m: Eigen processes four rows at a time, and the remaining rows one at
/// a time.
template <class A>
void eigen_multiply_rows(A* c, A const* a, A const* b, std::int64_t m, std::int64_t n, std::int64_t k) {
  thread_local growing_buffer padding;
  auto const whole = m / 4 * 4;
  if (whole > 0) eigen_multiply(c, a, b, whole, n, k);
  if (whole == m) return;
  A* const left = padding.take<A>(4 * (n + k));  // (4,k), then the result (4,n)
  std::copy(a + whole * k, a + m * k, left);
  std::fill(left + (m - whole) * k, left + 4 * k, A{0});
  eigen_multiply(left + 4 * k, left, b, std::int64_t{4}, n, k);
  std::copy(left + 4 * k, left + 4 * k + (m - whole) * n, c + whole * n);
}

/// to (k, n) = w, which is (k, n) or, transposed, (n, k); converted.
template <class A, class T>
void eigen_operand(A* to, T const* w, bool transposed, std::int64_t k, std::int64_t n) {
  if (!transposed) {
    for (std::int64_t i = 0; i < k * n; ++i) to[i] = static_cast<A>(w[i]);
    return;
  }
  constexpr std::int64_t block = 16;
  for (std::int64_t row = 0; row < k; row += block) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = row; i < std::min(k, row + block); ++i) to[i * n + j] = static_cast<A>(w[j * k + i]);
    }
  }
}

/// y (m, n) = rule(x (m, k) right (k, n)), in blocks of rows.
template <class T, class A>
void eigen_product(store_rule<T> const& rule, T const* x, A const* right, std::int64_t m, std::int64_t n,
                   std::int64_t k) {
  thread_local growing_buffer sums_buffer;
  thread_local growing_buffer left_buffer;
  constexpr std::int64_t most = 512;
  for (std::int64_t row = 0; row < m; row += most) {
    auto const rows = std::min(most, m - row);
    A const* left = nullptr;
    if constexpr (std::is_same_v<T, A>) {
      left = x + row * k;
    } else {
      A* const to = left_buffer.take<A>(rows * k);
      eigen_operand(to, x + row * k, false, rows, k);
      left = to;
    }
    A* const sums = sums_buffer.take<A>(rows * n);
    eigen_multiply_rows(sums, left, right, rows, n, k);
    baseline::store_sums<T>({&rule, sums, n, row, 0, rows, n});
  }
}

/// c (r, s) += u (m, r)^T v (m, s), with column sums if requested.
template <class T, class A>
void eigen_product_transposed(A* c, T const* u, T const* v, std::int64_t m, std::int64_t r, std::int64_t s, A* u_sums,
                              A* v_sums) {
  thread_local growing_buffer left_buffer;
  thread_local growing_buffer right_buffer;
  thread_local growing_buffer sums_buffer;
  A const* right = nullptr;
  if constexpr (std::is_same_v<T, A>) {
    right = v;
  } else {
    A* const to = right_buffer.take<A>(m * s);
    eigen_operand(to, v, false, m, s);
    right = to;
  }
  A* const left = left_buffer.take<A>(m * r);  // u^T (r, m)
  eigen_operand(left, u, true, r, m);
  constexpr std::int64_t most = 512;
  for (std::int64_t row = 0; row < r; row += most) {
    auto const rows = std::min(most, r - row);
    A* const sums = sums_buffer.take<A>(rows * s);
    eigen_multiply(sums, left + row * m, right, rows, s, m);
    for (std::int64_t i = 0; i < rows * s; ++i) c[row * s + i] += sums[i];
  }
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; u_sums != nullptr && j < r; ++j) u_sums[j] += static_cast<A>(u[i * r + j]);
    for (std::int64_t j = 0; v_sums != nullptr && j < s; ++j) v_sums[j] += static_cast<A>(v[i * s + j]);
  }
}

}  // namespace trireme::ops::detail
