#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/ops/host/simd.hpp"
#include "trireme/ops/paged_attention.hpp"

namespace trireme::ops::detail {

/// Pages of one sequence, those that rows of it see.
struct paged_tile {
  std::int32_t const* pages;
  std::int64_t page_size, width;
  std::int64_t positions;  // of all these pages
};
/// Calls f(q, N) for queries from q on, N at a time: 4, then those that are left.
template <class F>
TRIREME_INLINE void for_few(std::int64_t count, F&& f) {
  std::int64_t q = 0;
  for (; q + 4 <= count; q += 4) f(q, std::integral_constant<int, 4>());
  if (count - q == 3) return f(q, std::integral_constant<int, 3>());
  if (count - q == 2) return f(q, std::integral_constant<int, 2>());
  if (count - q == 1) return f(q, std::integral_constant<int, 1>());
}

}  // namespace trireme::ops::detail

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/paged_attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/paged_attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/paged_attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

// The keys and values of a row, into its page: keys number by number, so that the scores of a page's positions are
// formed side by side.
template <class T>
void keep_paged_row(T* kept, T const* qkv, paged_rows const& rows, paged_heads const& how,
                    paged_rows::place const& at) {
  constexpr auto page = paged_rows::page;
  auto const slot = at.position % page, each = how.heads / how.key_heads;
  T* to = kept + rows.page_of(at, at.position) * how.page_size();
  for (std::int64_t head = 0; head < how.key_heads; ++head, to += 2 * page * how.width) {
    T const* const key = qkv + how.channels() + head * each * how.width;
    T const* const value = key + how.channels();
    for (std::int64_t i = 0; i < how.width; ++i) to[i * page + slot] = key[i];
    for (std::int64_t i = 0; i < how.width; ++i) to[(page + slot) * how.width + i] = value[i];
  }
}
/// From row i on, how many rows are computed together: they follow each other in one sequence.
inline std::int64_t rows_together(paged_rows const& rows, paged_heads const& how, std::int64_t i) {
  auto const& first = rows.row(i);
  auto const most = paged_tile_rows(how);
  std::int64_t n = 1;
  while (n < most && i + n < rows.count() && rows.row(i + n).first_page == first.first_page &&
         rows.row(i + n).position == first.position + n && (how.window == 0 || first.position + n < how.window))
    ++n;
  return n;
}
template <class T>
void attend_paged_tile(T* y, T const* kept, T const* qkv, std::int32_t const* pages, paged_heads const& how,
                       std::int64_t position, std::int64_t rows, accumulate_t<T>* scratch) {
  TRIREME_DISPATCH(fits_float<T>, attend_pages(y, kept, qkv, pages, how, position, rows, scratch));
}
template <class T>
void attend_paged_rows(T* y, T* kept, T const* qkv, paged_rows const& rows, paged_heads const& how,
                       accumulate_t<T>* scratch) {
  auto const channels = how.channels();
  for (std::int64_t i = 0; i < rows.count(); ++i) keep_paged_row(kept, qkv + 3 * i * channels, rows, how, rows.row(i));
  for (std::int64_t i = 0; i < rows.count();) {
    auto const& at = rows.row(i);
    auto const together = rows_together(rows, how, i);
    attend_paged_tile(y + i * channels, kept, qkv + 3 * i * channels, rows.pages.data() + at.first_page, how,
                      at.position, together, scratch);
    i += together;
  }
}

}  // namespace trireme::ops::detail
