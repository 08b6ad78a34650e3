#pragma once

#include <cmath>

#include "trireme/ops/host/simd.hpp"
#include "trireme/ops/paged_attention.hpp"

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
template <class T>
void attend_paged_row(T* y, T const* kept, T const* query, paged_rows const& rows, paged_heads const& how,
                      paged_rows::place const& at, accumulate_t<T>* weights) {
  std::int32_t const* const pages = rows.pages.data() + at.first_page;
  TRIREME_DISPATCH(fits_float<T>, attend_pages(y, kept, query, pages, how, at.position, weights));
}
template <class T>
void attend_paged_rows(T* y, T* kept, T const* qkv, paged_rows const& rows, paged_heads const& how,
                       accumulate_t<T>* weights) {
  auto const channels = how.channels();
  for (std::int64_t i = 0; i < rows.count(); ++i) keep_paged_row(kept, qkv + 3 * i * channels, rows, how, rows.row(i));
  for (std::int64_t i = 0; i < rows.count(); ++i)
    attend_paged_row(y + i * channels, kept, qkv + 3 * i * channels, rows, how, rows.row(i), weights);
}

}  // namespace trireme::ops::detail
