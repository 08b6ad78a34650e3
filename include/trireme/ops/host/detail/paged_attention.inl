// Attention of rows over the pages of their sequence; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

// sums[n][v] += a[n * a_row + k] * (vector v at step k), over `count` steps in order.
template <class F, std::size_t N, std::size_t V, class T, class Real>
TRIREME_INLINE void add_products(F (&sums)[N][V], Real const* a, std::int64_t a_row, T const* const (&vectors)[V],
                                 std::int64_t step, std::int64_t count, int lanes) {
  for (std::int64_t k = 0; k < count; ++k) {
    F of[V];
    TRIREME_UNROLL
    for (std::size_t v = 0; v < V; ++v)
      of[v] = V > 1 ? F::load(vectors[v] + k * step) : F::load(vectors[v] + k * step, lanes);
    TRIREME_UNROLL
    for (std::size_t n = 0; n < N; ++n) {
      F const one = F::all(a[static_cast<std::int64_t>(n) * a_row + k]);
      TRIREME_UNROLL
      for (std::size_t v = 0; v < V; ++v) sums[n][v] = fma(one, of[v], sums[n][v]);
    }
  }
}

// Scores of the positions of V vectors, from `vector` on, for N queries: scale * (q . k), the keys lying number by
// number.
template <class F, int N, int V, class T, class Real>
TRIREME_INLINE void score_vectors(Real* scores, Real const* queries, T const* keys, paged_tile const& tile,
                                  std::int64_t vector) {
  constexpr std::int64_t page = paged_rows::page, in_page = page / F::width;
  constexpr std::size_t rows = N, columns = V;
  T const* vectors[columns];
  F sums[rows][columns];
  TRIREME_UNROLL
  for (int v = 0; v < V; ++v) {
    vectors[v] = keys + tile.pages[(vector + v) / in_page] * tile.page_size + (vector + v) % in_page * F::width;
    TRIREME_UNROLL
    for (int n = 0; n < N; ++n) sums[n][v] = F::all(0);
  }
  add_products<F>(sums, queries, tile.width, vectors, page, tile.width, F::width);
  F const scale = F::all(static_cast<Real>(1 / std::sqrt(static_cast<double>(tile.width))));
  TRIREME_UNROLL
  for (int n = 0; n < N; ++n) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) (sums[n][v] * scale).store(scores + n * tile.positions + (vector + v) * F::width);
  }
}
template <class F, int N, class T, class Real>
inline void score_queries(Real* scores, Real const* queries, T const* keys, paged_tile const& tile) {
  constexpr int together = F::width >= 16 || F::width == 1 ? 4 : 2;
  auto const vectors = tile.positions / F::width;
  std::int64_t v = 0;
  for (; v + together <= vectors; v += together) score_vectors<F, N, together>(scores, queries, keys, tile, v);
  for (; v < vectors; ++v) score_vectors<F, N, 1>(scores, queries, keys, tile, v);
}

// weights[0, n) = exp(weights - their maximum); returns their sum.
template <class F, class Real>
TRIREME_INLINE Real exponentials(Real* weights, std::int64_t n) {
  F most = F::all(weights[0]);
  TRIREME_FOR_LANES(F, n, j, count, { most = max(most, first(count, F::load(weights + j, count), most)); })
  F const peak = F::all(largest(most));
  F sums = F::all(0);
  TRIREME_FOR_LANES(F, n, j, count, {
    F const each = exp(F::load(weights + j, count) - peak);
    each.store(weights + j, count);
    sums = sums + first(count, each, F::all(0));
  })
  return sum(sums);
}

// sums (N, width) += weights (N, positions) values, over the positions [begin, end) of the tile's pages in order.
template <class F, int N, int V, class T, class Real>
TRIREME_INLINE void add_vectors(Real* sums, Real const* weights, T const* values, paged_tile const& tile,
                                std::int64_t begin, std::int64_t end, std::int64_t column, int lanes) {
  constexpr std::int64_t page = paged_rows::page;
  constexpr std::size_t rows = N, columns = V;
  F now[rows][columns];
  TRIREME_UNROLL
  for (int n = 0; n < N; ++n) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) now[n][v] = F::load(sums + n * tile.width + column + v * F::width, lanes);
  }
  for (auto j = begin; j < end;) {
    auto const count = (j / page + 1) * page < end ? (j / page + 1) * page - j : end - j;
    T const* const from = values + tile.pages[j / page] * tile.page_size + j % page * tile.width + column;
    T const* vectors[columns];
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) vectors[v] = from + v * F::width;
    add_products<F>(now, weights + j, tile.positions, vectors, tile.width, count, lanes);
    j += count;
  }
  TRIREME_UNROLL
  for (int n = 0; n < N; ++n) {
    TRIREME_UNROLL
    for (int v = 0; v < V; ++v) now[n][v].store(sums + n * tile.width + column + v * F::width, lanes);
  }
}
template <class F, int N, class T, class Real>
inline void add_values(Real* sums, Real const* weights, T const* values, paged_tile const& tile, std::int64_t begin,
                       std::int64_t end) {
  constexpr int together = F::width >= 16 || F::width == 1 ? 4 : 2;
  std::int64_t i = 0;
  for (; i + together * F::width <= tile.width; i += together * F::width)
    add_vectors<F, N, together>(sums, weights, values, tile, begin, end, i, F::width);
  for (; i < tile.width; i += F::width) {
    auto const left = tile.width - i;
    add_vectors<F, N, 1>(sums, weights, values, tile, begin, end, i,
                         left < F::width ? static_cast<int>(left) : F::width);
  }
}

// Rows of one sequence that follow each other. `scratch`: (queries, positions + 2 width) numbers. Each query's sums are
// added in the order of positions, whichever others are computed with it.
template <class T, class Real>
inline void attend_pages(T* y, T const* kept, T const* qkv, std::int32_t const* pages, paged_heads const& how,
                         std::int64_t position, std::int64_t rows, Real* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t page = paged_rows::page;
  auto const width = how.width, each = how.heads / how.key_heads, channels = how.channels(), count = rows * each;
  // With a window of fewer positions there is one row.
  auto const from = how.window > 0 && how.window <= position ? position + 1 - how.window : 0;
  auto const first_page = from / page, end_page = (position + rows - 1) / page + 1;
  paged_tile const tile{pages + first_page, how.page_size(), width, (end_page - first_page) * page};
  auto const skipped = from - first_page * page, seen = position + 1 - from;  // of the first row
  Real* const queries = scratch;
  Real* const sums = queries + count * width;
  Real* const weights = sums + count * width;
  for (std::int64_t head = 0; head < how.key_heads; ++head) {
    T const* const keys = kept + head * 2 * page * width;
    for (std::int64_t q = 0; q < count; ++q) {
      T const* const query = qkv + q / each * 3 * channels + (head * each + q % each) * width;
      TRIREME_FOR_LANES(F, width, i, lanes, {
        F::load(query + i, lanes).store(queries + q * width + i, lanes);
        F::all(0).store(sums + q * width + i, lanes);
      })
    }
    for_few(count, [&]<int N>(std::int64_t q, std::integral_constant<int, N>) {
      Real* const own = weights + q * tile.positions;
      score_queries<F, N>(own, queries + q * width, keys, tile);
      Real all[static_cast<std::size_t>(N)];
      for (int n = 0; n < N; ++n) all[n] = exponentials<F>(own + n * tile.positions + skipped, seen + (q + n) / each);
      T const* const values = keys + page * width;
      add_values<F, N>(sums + q * width, own, values, tile, skipped, skipped + seen);
      for (int n = 0; n < N; ++n) {
        auto const at = q + n, row = at / each;
        if (row > 0) {  // which sees more than the first one
          add_values<F, 1>(sums + at * width, own + n * tile.positions, values, tile, skipped + seen,
                           skipped + seen + row);
        }
        F const share = F::all(Real(1) / all[n]);
        T* const to = y + row * channels + (head * each + at % each) * width;
        TRIREME_FOR_LANES(F, width, i, lanes, { (F::load(sums + at * width + i, lanes) * share).store(to + i, lanes); })
      }
    });
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
