#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "trireme/core/arena.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/attention.hpp"
#include "trireme/ops/host/detail/attention_scratch.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

template <class T, class A>
void attend_block_head(A* y, A* lse, T const* queries, T const* pairs, attention_head const& shape,
                       attention_block const& at, A* scratch);
template <class T, class A>
void attend_block_backward_head(A* dqueries, A* dpairs, T const* dy, T const* y, A const* lse, T const* queries,
                                T const* pairs, attention_head const& shape, attention_block const& at, A* scratch);

}  // namespace detail

/// Attention of one block at a time: some queries of each sample over some of its keys. Blocks with the same queries
/// are merged using the logarithms of their sums of exponentials, in any order, and give the same result as one call of
/// attention.
///
/// Shapes   with T the rows of each sample on this rank (shape.context): qkv (B*T, 3C), of which the queries are read;
///          pairs (B*T, 2C): keys and values; y, dy (B*T, C); lse (B, H, T).
/// Bytes    scratch: as for attention of a sample of at.rows rows.
/// Numerics all sums in the accumulate type, at every CPU level.
/// Threads  one caller per arena.
/// Errors   assertion_error (light) if the sizes do not fit.
struct host_attention_block {
  template <class T>
  using view = tensor_view<T, host>;

  /// Updates y and lse to include these keys. They start as 0 and minus infinity.
  template <class T>
  static void attend_block(detail::output<accumulate_t<T>> y, detail::output<accumulate_t<T>> lse, view<T> qkv,
                           detail::input<T> pairs, attention_shape shape, attention_block at, arena<host>& scratch,
                           dropout_site const& dropout) {
    check("attend_block", shape, at, qkv.size(), pairs.size(), y.size(), lse.size());
    each_head<accumulate_t<T>>(
        shape, at, scratch, dropout, false, [&](detail::attention_head const& head, places to, auto* memory) {
          detail::attend_block_head(raw(y) + to.query * shape.channels + to.column, raw(lse) + to.lse,
                                    static_cast<T const*>(raw(qkv)) + 3 * to.query * shape.channels + to.column,
                                    raw(pairs) + 2 * to.key * shape.channels + to.column, head, at, memory);
        });
  }

  /// Adds the gradients between these queries and keys to dqueries (B*T, C) and dpairs (B*T, 2C). y and lse are those
  /// over all keys.
  template <class T>
  static void attend_block_backward(detail::output<accumulate_t<T>> dqueries, detail::output<accumulate_t<T>> dpairs,
                                    view<T> dy, detail::input<T> y, detail::input<accumulate_t<T>> lse,
                                    detail::input<T> qkv, detail::input<T> pairs, attention_shape shape,
                                    attention_block at, arena<host>& scratch, dropout_site const& dropout) {
    check("attend_block_backward", shape, at, qkv.size(), pairs.size(), y.size(), lse.size());
    detail::same_size("attend_block_backward", dqueries.size(), y.size());
    detail::same_size("attend_block_backward", dpairs.size(), pairs.size());
    detail::same_size("attend_block_backward", dy.size(), y.size());
    each_head<accumulate_t<T>>(
        shape, at, scratch, dropout, true, [&](detail::attention_head const& head, places to, auto* memory) {
          auto const narrow = to.query * shape.channels + to.column;
          auto const pair = 2 * to.key * shape.channels + to.column;
          detail::attend_block_backward_head(raw(dqueries) + narrow, raw(dpairs) + pair,
                                             static_cast<T const*>(raw(dy)) + narrow, raw(y) + narrow,
                                             raw(lse) + to.lse, raw(qkv) + 3 * to.query * shape.channels + to.column,
                                             raw(pairs) + pair, head, at, memory);
        });
  }

 private:
  // The start of one head's and sample's block: its rows of queries and keys, its column, and its index in lse.
  struct places {
    std::int64_t query, key, column, lse;
  };

  static void check(char const* who, attention_shape const& shape, attention_block const& at, std::int64_t qkv,
                    std::int64_t pairs, std::int64_t y, std::int64_t lse) {
    auto const rows = shape.batch * shape.context;
    detail::same_size(who, qkv, rows * 3 * shape.channels);
    detail::same_size(who, pairs, rows * 2 * shape.channels);
    detail::same_size(who, y, rows * shape.channels);
    detail::same_size(who, lse, rows * shape.heads);
    expects(assertion_level::light, at.query_row + at.rows <= shape.context && at.key_row + at.rows <= shape.context,
            [&] {
              return text("trireme::ops::", who, ": ", how_many(at.rows, "query"), " from position ", at.first_query,
                          " on, over keys from ", at.first_key, agreeing(at.rows, " on, does", " on, do"), " not fit ",
                          how_many(shape.context, "row"));
            });
  }

  template <class Real, class Body>
  static void each_head(attention_shape const& shape, attention_block const& at, arena<host>& scratch,
                        dropout_site const& dropout, bool backward, Body const& body) {
    detail::for_each_head<Real>(shape, at.rows, at.whole, scratch, dropout, backward,
                                [&](detail::attention_head& head, std::int64_t sample, Real* memory) {
                                  auto const row = sample * shape.context;
                                  head.sight.ahead = at.first_query - at.first_key;
                                  body(head,
                                       places{row + at.query_row, row + at.key_row, head.head * head.width,
                                              (sample * shape.heads + head.head) * shape.context + at.query_row},
                                       memory);
                                });
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/attention_block.ipp"
#endif
