// The products of attention; included once for each CPU level (see simd.hpp). F are the lanes of the sums, Factor those
// of the operands: the same, or words of two bfloat16 that are neighbours along the depth.
namespace trireme::ops::detail::TRIREME_LEVEL {

// c (Rows, Vectors * width) = or += a b, with a[m * a_row + k * a_depth] and b[k * b_row + n].
template <class F, class Factor, int Rows, int Vectors, class Real, class Word>
inline void tile_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                         Word const* b, std::int64_t b_row, std::int64_t depth, bool accumulate) {
  F sums[std::size_t{Rows}][std::size_t{Vectors}];
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v] = accumulate ? F::load(c + m * c_row + v * F::width) : F::all(0);
  }
  for (std::int64_t k = 0; k < depth; ++k, a += a_depth, b += b_row) {
    Factor right[std::size_t{Vectors}];
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) right[v] = Factor::load(b + v * F::width);
    TRIREME_UNROLL
    for (int m = 0; m < Rows; ++m) {
      Factor const left = Factor::all(a[m * a_row]);
      TRIREME_UNROLL
      for (int v = 0; v < Vectors; ++v) sums[m][v] = fma(left, right[v], sums[m][v]);
    }
  }
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v].store(c + m * c_row + v * F::width);
  }
}

// The same for any number of columns, in multiples of the lanes, and rows, in multiples of 16.
template <class F, class Factor = F, class Real, class Word>
inline void block_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                          Word const* b, std::int64_t b_row, std::int64_t rows, std::int64_t columns,
                          std::int64_t depth, bool accumulate) {
  constexpr int pair = F::width == 16 ? 8 : 4;  // rows of a tile of two vectors: half of the registers, or a quarter
  std::int64_t n = 0;
  for (; n + 2 * F::width <= columns; n += 2 * F::width) {
    for (std::int64_t m = 0; m < rows; m += pair) {
      tile_product<F, Factor, pair, 2>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                       accumulate);
    }
  }
  for (; n < columns; n += F::width) {
    for (std::int64_t m = 0; m < rows; m += 2 * pair) {
      tile_product<F, Factor, 2 * pair, 1>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                           accumulate);
    }
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
