#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "trireme/contract/paged_rows.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/compiled.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// The heads of attention over pages.
struct paged_heads {
  std::int64_t heads = 1, key_heads = 1;  ///< heads are a multiple of key_heads
  std::int64_t width = 0;                 ///< of a head
  std::int64_t window = 0;                ///< how many positions back are seen, its own included; 0: all

  [[nodiscard]] constexpr std::int64_t channels() const noexcept { return heads * width; }
  /// Numbers of a page: for each key head the keys of all positions, number by number, then their values.
  [[nodiscard]] constexpr std::int64_t page_size() const noexcept { return 2 * paged_rows::page * key_heads * width; }
};

namespace detail {

template <class T>
void attend_paged_rows(T* y, T* kept, T const* qkv, paged_rows const& rows, paged_heads const& how,
                       accumulate_t<T>* scratch);

/// Rows of one sequence that are computed together at most: so many that they have some twelve queries of a key head.
[[nodiscard]] constexpr std::int64_t paged_tile_rows(paged_heads const& how) noexcept {
  return std::clamp<std::int64_t>(12 / (how.heads / how.key_heads), 1, 4);
}

}  // namespace detail

/// Attention of rows of many sequences, for memory spaces that have it.
template <class Space>
struct paged_attention_on {};

/// Writes the keys and values of some rows into their pages; then each row attends to the positions of its sequence up
/// to its own.
///
/// Shapes   y (N, C), qkv (N, 3C): queries, keys and values as arrange_heads makes them, where the queries of a key
///          head have equal keys; kept (pages_in_all, page_size).
/// Bytes    scratch: for up to 12 queries, or heads / key_heads if these are more, a number of the accumulate type for
///          each position of the longest sequence.
/// Numerics as attention's, softmax and sums in the accumulate type. A row's result has the same bits regardless of
///          which rows and sequences are computed with it.
/// Threads  one caller per arena.
/// Errors   assertion_error (light) if the sizes do not fit.
template <>
struct paged_attention_on<host> {
  template <class T>
  static void attend_paged(tensor_view<T, host> y, tensor_view<T, host> kept, detail::input<T> qkv,
                           paged_rows const& rows, paged_heads const& how, arena<host>& scratch) {
    detail::same_size("attend_paged", y.size(), rows.count() * how.channels());
    detail::same_size("attend_paged", qkv.size(), 3 * y.size());
    detail::same_size("attend_paged", kept.size(), rows.pages_in_all * how.page_size());
    auto const most = paged_rows::pages_for(rows.end()) * paged_rows::page;
    auto const mark = scratch.mark();
    auto const queries = how.heads / how.key_heads * detail::paged_tile_rows(how);
    auto* const numbers = raw(scratch.template take<accumulate_t<T>>({queries * (most + 2 * how.width)}));
    detail::attend_paged_rows(raw(y), raw(kept), raw(qkv), rows, how, numbers);
    scratch.rewind(mark);
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/paged_attention.ipp"
#endif
