// Products with matrices of few columns; included once for each CPU level (see simd.hpp).
//
// The lanes of a vector are outputs that lie side by side. An output is summed by itself, in the order of K, and each
// product is rounded before it is added, so that all levels (and devices) compute the same bits.
namespace trireme::ops::detail::TRIREME_LEVEL {

// sums[c][v] += vector v of row l * the number (l, c), for l = 0, 1, ... < k. Rows are `stride` apart; the number
// (l, c) is by[l * step + c * across]. `count` is the number of valid lanes.
template <int C, int V, class F, class T>
TRIREME_INLINE void add_products(F (&sums)[std::size_t{C}][std::size_t{V}], T const* rows, std::int64_t stride,
                                 T const* by, std::int64_t step, std::int64_t across, std::int64_t k, int count) {
  for (std::int64_t l = 0; l < k; ++l, rows += stride, by += step) {
    F row[std::size_t{V}];
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) row[v] = F::load(rows + v * F::width, count);
    TRIREME_UNROLL
    for (int c = 0; c < C; ++c) {
      F const number = F::all(by[c * across]);
      TRIREME_UNROLL
      for (int v = 0; v < V; ++v) sums[c][v] = sums[c][v] + rounded_product(row[v], number);
    }
  }
}
template <int C, int V, class F>
TRIREME_INLINE void clear(F (&sums)[std::size_t{C}][std::size_t{V}]) {
  TRIREME_UNROLL
  for (int c = 0; c < C; ++c) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) sums[c][v] = F::all(0);
  }
}

template <int C, int V, class T>
TRIREME_INLINE void add_some_columns(T* to, std::int64_t ld, T const* rows, std::int64_t stride, T const* by,
                                     std::int64_t step, std::int64_t across, std::int64_t k, int count) {
  using F = lanes_for<T>;
  F sums[std::size_t{C}][std::size_t{V}];
  TRIREME_UNROLL
  for (int c = 0; c < C; ++c) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) sums[c][v] = F::load(to + c * ld + v * F::width, count);
  }
  add_products<C, V>(sums, rows, stride, by, step, across, k, count);
  TRIREME_UNROLL
  for (int c = 0; c < C; ++c) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) sums[c][v].store(to + c * ld + v * F::width, count);
  }
}
template <int V, class T>
TRIREME_INLINE void add_all_columns(T* to, std::int64_t ld, T const* rows, std::int64_t stride, T const* by,
                                    std::int64_t step, std::int64_t across, std::int64_t n, std::int64_t k, int count) {
  for (; n >= 4; n -= 4, to += 4 * ld, by += 4 * across)
    add_some_columns<4, V>(to, ld, rows, stride, by, step, across, k, count);
  if (n == 3) add_some_columns<3, V>(to, ld, rows, stride, by, step, across, k, count);
  if (n == 2) add_some_columns<2, V>(to, ld, rows, stride, by, step, across, k, count);
  if (n == 1) add_some_columns<1, V>(to, ld, rows, stride, by, step, across, k, count);
}
// to (n, m), whose rows are `ld` apart, += the transpose of rows^T (m, k) times the numbers (k, n).
template <class T>
inline void add_columns(T* to, std::int64_t ld, T const* rows, std::int64_t stride, T const* by, std::int64_t step,
                        std::int64_t across, std::int64_t m, std::int64_t n, std::int64_t k) {
  using F = lanes_for<T>;
  std::int64_t j = 0;
  for (; j + 2 * F::width <= m; j += 2 * F::width)
    add_all_columns<2>(to + j, ld, rows + j, stride, by, step, across, n, k, F::width);
  for (; j + F::width <= m; j += F::width)
    add_all_columns<1>(to + j, ld, rows + j, stride, by, step, across, n, k, F::width);
  if (j < m) add_all_columns<1>(to + j, ld, rows + j, stride, by, step, across, n, k, static_cast<int>(m - j));
}

// to (columns, thin_strip::rows) = x (rows, columns) transposed; rows of x are `ld` apart, at most thin_strip::rows.
template <class T>
inline void pack_strip(T* to, T const* x, std::int64_t ld, std::int64_t rows, std::int64_t columns) {
  std::int64_t row = 0;
  if constexpr (std::is_same_v<T, float>) {
    for (; row + 8 <= rows; row += 8) {
      T const* const from = x + row * ld;
      std::int64_t l = 0;
      for (; l + 4 <= columns; l += 4) {  // 4 columns of rows 0 to 3 and 4 to 7 in the halves of a vector
        eight<float> of[4];
        TRIREME_UNROLL
        for (int i = 0; i < 4; ++i) {
          four<float> first, second;
          std::memcpy(&first, from + i * ld + l, sizeof first);
          std::memcpy(&second, from + (i + 4) * ld + l, sizeof second);
          of[i] = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
        }
        eight<float> const low = __builtin_shufflevector(of[0], of[1], 0, 8, 1, 9, 4, 12, 5, 13);
        eight<float> const high = __builtin_shufflevector(of[0], of[1], 2, 10, 3, 11, 6, 14, 7, 15);
        eight<float> const next_low = __builtin_shufflevector(of[2], of[3], 0, 8, 1, 9, 4, 12, 5, 13);
        eight<float> const next_high = __builtin_shufflevector(of[2], of[3], 2, 10, 3, 11, 6, 14, 7, 15);
        eight<float> const turned[4] = {__builtin_shufflevector(low, next_low, 0, 1, 8, 9, 4, 5, 12, 13),
                                        __builtin_shufflevector(low, next_low, 2, 3, 10, 11, 6, 7, 14, 15),
                                        __builtin_shufflevector(high, next_high, 0, 1, 8, 9, 4, 5, 12, 13),
                                        __builtin_shufflevector(high, next_high, 2, 3, 10, 11, 6, 7, 14, 15)};
        TRIREME_UNROLL
        for (int i = 0; i < 4; ++i) std::memcpy(to + (l + i) * thin_strip::rows + row, &turned[i], sizeof turned[i]);
      }
      for (; l < columns; ++l) {
        for (std::int64_t i = 0; i < 8; ++i) to[l * thin_strip::rows + row + i] = from[l + i * ld];
      }
    }
  }
  for (; row < rows; ++row) {
    for (std::int64_t l = 0; l < columns; ++l) to[l * thin_strip::rows + row] = x[row * ld + l];
  }
}
// x += weight z, as accumulate() does.
template <class T>
inline void add_weighted(T* x, T const* z, std::int64_t n, double weight) {
  using F = lanes_for<T>;
  F const w = F::all(static_cast<T>(weight));
  TRIREME_FOR_LANES(F, n, i, count, { fma(w, F::load(z + i, count), F::load(x + i, count)).store(x + i, count); })
}
// y (rows, n) = x (rows, k) times the numbers (k, n), for at most thin_strip::rows rows; if z is given, x += weight z
// before. `sums` (n, thin_strip::rows) and `packed` (thin_strip::depth, thin_strip::rows) are scratch.
template <class T>
inline void product_of_strip(T* y, T* x, T const* z, double weight, T const* by, std::int64_t step, std::int64_t across,
                             std::int64_t rows, std::int64_t n, std::int64_t k, T* sums, T* packed) {
  for (std::int64_t i = 0; i < n * thin_strip::rows; ++i) sums[i] = 0;
  for (std::int64_t l = 0; l < k; l += thin_strip::depth) {
    auto const depth = k - l < thin_strip::depth ? k - l : thin_strip::depth;
    if (z != nullptr && l % thin_strip::summed == 0) {
      auto const columns = k - l < thin_strip::summed ? k - l : thin_strip::summed;
      for (std::int64_t row = 0; row < rows; ++row) add_weighted(x + row * k + l, z + row * k + l, columns, weight);
    }
    pack_strip(packed, x + l, k, rows, depth);
    add_columns(sums, thin_strip::rows, packed, thin_strip::rows, by + l * step, step, across, rows, n, depth);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < n; ++c) y[row * n + c] = sums[c * thin_strip::rows + row];
  }
}

// C rows of y (., n) = the numbers (., k) times b (k, n).
template <int C, int V, class T>
TRIREME_INLINE void product_of_rows_at(T* y, T const* by, std::int64_t step, std::int64_t across, T const* b,
                                       std::int64_t n, std::int64_t k, int count) {
  using F = lanes_for<T>;
  F sums[std::size_t{C}][std::size_t{V}];
  clear<C, V>(sums);
  add_products<C, V>(sums, b, n, by, step, across, k, count);
  TRIREME_UNROLL
  for (int c = 0; c < C; ++c) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) sums[c][v].store(y + c * n + v * F::width, count);
  }
}
template <int C, class T>
inline void product_of_rows(T* y, T const* by, std::int64_t step, std::int64_t across, T const* b, std::int64_t n,
                            std::int64_t k) {
  using F = lanes_for<T>;
  std::int64_t j = 0;
  for (; j + 2 * F::width <= n; j += 2 * F::width)
    product_of_rows_at<C, 2>(y + j, by, step, across, b + j, n, k, F::width);
  for (; j + F::width <= n; j += F::width) product_of_rows_at<C, 1>(y + j, by, step, across, b + j, n, k, F::width);
  if (j < n) product_of_rows_at<C, 1>(y + j, by, step, across, b + j, n, k, static_cast<int>(n - j));
}

// Rows of rest = factor (x - p own), and x = p all; p (., r), own and all (r, n).
template <int C, int V, class T>
TRIREME_INLINE void rest_of_rows_at(T* rest, T* x, T const* p, T const* own, T const* all, T factor, std::int64_t n,
                                    std::int64_t r, int count) {
  using F = lanes_for<T>;
  F sums[std::size_t{C}][std::size_t{V}];
  clear<C, V>(sums);
  add_products<C, V>(sums, own, n, p, 1, r, r, count);
  TRIREME_UNROLL
  for (int c = 0; c < C; ++c) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) {
      auto const at = c * n + v * F::width;
      fma(F::all(factor), F::load(x + at, count), F::all(-factor) * sums[c][v]).store(rest + at, count);
    }
  }
  clear<C, V>(sums);
  add_products<C, V>(sums, all, n, p, 1, r, r, count);
  TRIREME_UNROLL
  for (int c = 0; c < C; ++c) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) sums[c][v].store(x + c * n + v * F::width, count);
  }
}
template <int C, class T>
inline void rest_of_rows(T* rest, T* x, T const* p, T const* own, T const* all, T factor, std::int64_t n,
                         std::int64_t r) {
  using F = lanes_for<T>;
  std::int64_t j = 0;
  for (; j + 2 * F::width <= n; j += 2 * F::width)
    rest_of_rows_at<C, 2>(rest + j, x + j, p, own + j, all + j, factor, n, r, F::width);
  for (; j + F::width <= n; j += F::width)
    rest_of_rows_at<C, 1>(rest + j, x + j, p, own + j, all + j, factor, n, r, F::width);
  if (j < n) rest_of_rows_at<C, 1>(rest + j, x + j, p, own + j, all + j, factor, n, r, static_cast<int>(n - j));
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
