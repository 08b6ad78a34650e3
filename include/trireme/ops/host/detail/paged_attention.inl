// Attention of one row over the pages of its sequence; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

// scores of a page's positions, for one query: scale * (q . k), the keys lying number by number.
template <class F, class T, class Real>
TRIREME_INLINE void score_page(Real* scores, T const* query, T const* keys, std::int64_t width, Real scale) {
  constexpr int page = 16, vectors = page / F::width;
  F sums[std::size_t{vectors}];
  TRIREME_UNROLL
  for (int v = 0; v < vectors; ++v) sums[v] = F::all(0);
  for (std::int64_t i = 0; i < width; ++i, keys += page) {
    F const one = F::all(static_cast<Real>(query[i]));
    TRIREME_UNROLL
    for (int v = 0; v < vectors; ++v) sums[v] = fma(one, F::load(keys + v * F::width), sums[v]);
  }
  TRIREME_UNROLL
  for (int v = 0; v < vectors; ++v) (sums[v] * F::all(scale)).store(scores + v * F::width);
}

// weights[0, n) = exp(weights - their maximum); returns their sum.
template <class F, class Real>
TRIREME_INLINE Real exponentials(Real* weights, std::int64_t n) {
  Real most = weights[0];
  for (std::int64_t j = 1; j < n; ++j) most = weights[j] > most ? weights[j] : most;
  F const peak = F::all(most);
  F sums = F::all(0);
  TRIREME_FOR_LANES(F, n, j, count, {
    F const each = exp(F::load(weights + j, count) - peak);
    each.store(weights + j, count);
    sums = sums + first(count, each, F::all(0));
  })
  return sum(sums);
}

template <class T, class Real>
inline void attend_pages(T* y, T const* kept, T const* query, std::int32_t const* pages, paged_heads const& how,
                         std::int64_t position, Real* weights) {
  using F = lanes_for<T>;
  constexpr std::int64_t page = paged_rows::page;
  auto const width = how.width, each = how.heads / how.key_heads;
  auto const from = how.window > 0 && how.window <= position ? position + 1 - how.window : 0;
  auto const first_page = from / page, end_page = position / page + 1;
  auto const most = (end_page - first_page) * page;  // scores of a query
  auto const skipped = from - first_page * page, seen = position + 1 - from;
  auto const scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(width)));
  for (std::int64_t head = 0; head < how.key_heads; ++head) {
    T const* const keys = kept + head * 2 * page * width;
    for (std::int64_t p = first_page; p < end_page; ++p) {
      T const* const here = keys + pages[p] * how.page_size();
      for (std::int64_t q = 0; q < each; ++q)
        score_page<F>(weights + q * most + (p - first_page) * page, query + (head * each + q) * width, here, width,
                      scale);
    }
    for (std::int64_t q = 0; q < each; ++q) {
      Real* const own = weights + q * most + skipped;
      Real const all = exponentials<F>(own, seen);
      F const share = F::all(Real(1) / all);
      T* const to = y + (head * each + q) * width;
      TRIREME_FOR_LANES(F, width, i, count, {
        F sums = F::all(0);
        for (std::int64_t p = first_page; p < end_page; ++p) {
          T const* const values = keys + pages[p] * how.page_size() + page * width + i;
          auto const begin = p == first_page ? skipped : 0;
          auto const end = p + 1 == end_page ? position % page + 1 : page;
          Real const* const some = weights + q * most + (p - first_page) * page;
          for (std::int64_t j = begin; j < end; ++j)
            sums = fma(F::all(some[j]), F::load(values + j * width, count), sums);
        }
        (sums * share).store(to + i, count);
      })
    }
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
