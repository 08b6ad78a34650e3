#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "trireme/ops/host/low_rank.hpp"
#include "trireme/ops/host/simd.hpp"

namespace trireme::ops::detail {

/// How a matrix is read in products with few columns.
struct thin_strip {
  static constexpr std::int64_t rows = 32;     ///< of a matrix that is transposed piece by piece
  static constexpr std::int64_t depth = 128;   ///< columns of a piece, which fits into the first cache
  static constexpr std::int64_t summed = 512;  ///< columns that are summed first, which fit into the second cache
  static constexpr std::int64_t at_once = 16;  ///< rows read side by side: sums are loaded and stored less often
};

}  // namespace trireme::ops::detail

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/low_rank.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/low_rank.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/low_rank.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

template <class T>
void add_columns(T* to, std::int64_t ld, T const* rows, std::int64_t stride, T const* by, std::int64_t step,
                 std::int64_t across, std::int64_t m, std::int64_t n, std::int64_t k) {
  TRIREME_DISPATCH(fits_float<T>, add_columns(to, ld, rows, stride, by, step, across, m, n, k));
}
template <class T>
void product_of_strip(T* y, T* x, T const* z, double weight, T const* by, std::int64_t step, std::int64_t across,
                      std::int64_t rows, std::int64_t n, std::int64_t k, T* sums, T* packed) {
  TRIREME_DISPATCH(fits_float<T>, product_of_strip(y, x, z, weight, by, step, across, rows, n, k, sums, packed));
}
template <int C, class T>
void product_of_rows(T* y, T const* by, std::int64_t step, std::int64_t across, T const* b, std::int64_t n,
                     std::int64_t k) {
  TRIREME_DISPATCH(fits_float<T>, template product_of_rows<C>(y, by, step, across, b, n, k));
}
template <int C, class T>
void rest_of_rows(T* rest, T* x, T const* p, T const* own, T const* all, T factor, std::int64_t n, std::int64_t r) {
  TRIREME_DISPATCH(fits_float<T>, template rest_of_rows<C>(rest, x, p, own, all, factor, n, r));
}

// (rows, columns) turned into (columns, rows).
template <class T>
void turn(T* to, T const* from, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  }
}
/// Scratch memory of this thread for `count` numbers.
template <class T>
T* low_rank_scratch(std::int64_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < static_cast<std::size_t>(count)) memory.resize(static_cast<std::size_t>(count));
  return memory.data();
}

/// y (m, n) = x (m, k) times the numbers (k, n), for few columns n; if z is given, x += weight z before.
template <class T>
void narrow_product(T* y, T* x, T const* z, double weight, T const* by, std::int64_t step, std::int64_t across,
                    std::int64_t m, std::int64_t n, std::int64_t k) {
  T* const sums = low_rank_scratch<T>((n + thin_strip::depth) * thin_strip::rows);
  for (std::int64_t i = 0; i < m; i += thin_strip::rows) {
    auto const rows = std::min(thin_strip::rows, m - i);
    product_of_strip(y + i * n, x + i * k, z == nullptr ? z : z + i * k, weight, by, step, across, rows, n, k, sums,
                     sums + n * thin_strip::rows);
  }
}

template <class T>
void small_product(T* y, T const* a, bool a_turned, T const* b, bool b_turned, std::int64_t m, std::int64_t n,
                   std::int64_t k) {
  std::int64_t const step = b_turned ? 1 : n;
  std::int64_t const across = b_turned ? k : 1;
  if (a_turned && n <= m) {  // a row of a has neighbouring outputs
    T* const sums = low_rank_scratch<T>(n * m);
    std::fill(sums, sums + n * m, T{});
    for (std::int64_t l = 0; l < k; l += thin_strip::at_once)
      add_columns(sums, m, a + l * m, m, b + l * step, step, across, m, n, std::min(thin_strip::at_once, k - l));
    turn(y, sums, n, m);
    return;
  }
  if (!a_turned && n < thin_strip::rows / 2) {
    // Without z it only reads a.
    narrow_product(y, const_cast<T*>(a), static_cast<T const*>(nullptr), 0, b, step, across, m, n, k);
    return;
  }
  T const* right = b;
  if (b_turned) {
    T* const turned = low_rank_scratch<T>(k * n);
    turn(turned, b, n, k);
    right = turned;
  }
  std::int64_t const down = a_turned ? 1 : k;
  std::int64_t const along = a_turned ? m : 1;
  std::int64_t i = 0;
  for (; i + 4 <= m; i += 4) product_of_rows<4>(y + i * n, a + i * down, along, down, right, n, k);
  for (; i < m; ++i) product_of_rows<1>(y + i * n, a + i * down, along, down, right, n, k);
}

template <class T>
void product_of_sum(T* y, T* x, T const* z, double weight, T const* b, std::int64_t m, std::int64_t n, std::int64_t k) {
  narrow_product(y, x, z, weight, b, n, std::int64_t{1}, m, n, k);
}

template <class T>
void rest_and_product(T* rest, T* x, T const* p, T const* own, T const* all, double factor, std::int64_t m,
                      std::int64_t n, std::int64_t r) {
  T* const turned = low_rank_scratch<T>(2 * n * r);
  turn(turned, own, n, r);
  turn(turned + n * r, all, n, r);
  T const by = static_cast<T>(factor);
  std::int64_t i = 0;
  for (; i + 4 <= m; i += 4) rest_of_rows<4>(rest + i * n, x + i * n, p + i * r, turned, turned + n * r, by, n, r);
  for (; i < m; ++i) rest_of_rows<1>(rest + i * n, x + i * n, p + i * r, turned, turned + n * r, by, n, r);
}

}  // namespace trireme::ops::detail
