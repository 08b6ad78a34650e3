#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "trireme/core/arena.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/detail/attention_scratch.hpp"
#include "trireme/ops/host/detail/attention_span.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops::detail {

/// One head of one sample: the first of its columns in the rows of qkv and y, and its dropout.
struct attention_head {
  std::int64_t context;
  std::int64_t width;         ///< D, columns of this head
  std::int64_t padded_rows;   ///< context, rounded up to attention_rows
  std::int64_t padded_width;  ///< D, rounded up to 16
  std::int64_t qkv_stride;    ///< 3 C
  std::int64_t y_stride;      ///< C
  std::int64_t channels;      ///< C: keys begin C, values 2 C columns after the queries
  std::int64_t head;
  std::int64_t first_head;  ///< number of head 0 among all heads of the layer
  std::uint64_t sample;
  std::int64_t next_row;        ///< offset to the next head: rows, or -1 if there is none,
  std::int64_t next_column;     ///< and columns
  dropout_site const* dropout;  ///< nullptr if there is no dropout
  attention_sight sight;
};

}  // namespace trireme::ops::detail

namespace trireme::ops {

namespace detail {

/// Calls f(head, sample, scratch memory) for each head of each sample.
/// @param rows   rows of a sample that are processed at a time.
/// @param whole  all rows of a sample, for the random numbers of dropout.
template <class Real, class F>
void for_each_head(attention_shape const& shape, std::int64_t rows, std::int64_t whole, arena<host>& scratch,
                   dropout_site const& dropout, bool backward, F const& f) {
  if (shape.batch == 0 || rows == 0) return;
  auto const width = shape.head_channels();
  attention_head head{.context = whole,
                      .width = width,
                      .padded_rows = padded_rows(rows),
                      .padded_width = padded_width(width),
                      .qkv_stride = 3 * shape.channels,
                      .y_stride = shape.channels,
                      .channels = shape.channels,
                      .head = 0,
                      .first_head = shape.first_head,
                      .sample = 0,
                      .next_row = -1,
                      .next_column = 0,
                      .dropout = dropout.active() ? &dropout : nullptr,
                      .sight = {.mask = shape.mask, .rows = rows, .keys = rows}};
  auto const mark = scratch.mark();
  auto const memory = scratch.template take<Real>({attention_scratch(rows, width, backward)});
  for (std::int64_t sample = 0; sample < shape.batch; ++sample) {
    if (dropout.active()) head.sample = static_cast<std::uint64_t>(dropout.samples[static_cast<std::size_t>(sample)]);
    for (head.head = 0; head.head < shape.heads; ++head.head) f(head, sample, raw(memory));
  }
  scratch.rewind(mark);
}

template <class T, class A>
void attention_forward_head(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch);
template <class T, class A>
void attention_backward_head(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv, attention_head const& shape,
                             A* scratch);

}  // namespace detail

/// Self-attention with several heads.
///
/// No (T, T) matrix is stored: the forward pass processes 32 query rows at a time and saves the logarithm of each row's
/// sum of exponentials, from which the backward pass recomputes the probabilities. Blocks that are completely masked
/// are skipped. Method: [Dao et al., 2022], without its rescaling, as one block's scores fit in the L2 cache.
/// Shapes   qkv, dqkv (B*T, 3C): queries, keys, values, each of H heads of C/H columns; y, dy (B*T, C); lse (B, H, T);
///          seen (B, T, 2): the first key that a row may attend to and one past the last, if the mask allows it; empty:
///          all. Neither decreases from row to row (visible_keys computes them).
/// A row that attends to no key has a result of 0 and contributes and gets no gradient; its lse is minus infinity.
/// Bytes    scratch: 2 (forward) or 4 (backward) matrices (T, C/H) of the accumulate type, and 128 T numbers in the
///          forward pass.
/// Numerics softmax, sums and products in the accumulate type; with AVX512-BF16 or tiles, products of bfloat16 use
///          probabilities and their gradients rounded to bfloat16. A sample's result does not depend on the others.
/// Threads  one caller per arena.
/// Errors   assertion_error (light) if the sizes do not fit.
struct host_attention {
  template <class T>
  using view = tensor_view<T, host>;

  /// y = softmax(mask(q k^T / sqrt(D))) v. Dropout, if any, applies to the probabilities; the number at (head, row,
  /// col) of a sample has the position (head * T + row) * T + col.
  template <class T>
  static void attention(view<T> y, detail::output<accumulate_t<T>> lse, detail::input<T> qkv, attention_shape shape,
                        arena<host>& scratch, dropout_site const& dropout, view<std::int32_t const> seen = {}) {
    check("attention", shape, qkv.size(), y.size(), lse.size(), seen.size(), dropout);
    each_head<accumulate_t<T>>(shape, scratch, dropout, seen, false,
                               [&](detail::attention_head const& head, std::int64_t sample, accumulate_t<T>* memory) {
                                 auto const row = sample * shape.context;
                                 auto const column = head.head * head.width;
                                 detail::attention_forward_head(
                                     raw(y) + row * shape.channels + column,
                                     raw(lse) + (sample * shape.heads + head.head) * shape.context,
                                     raw(qkv) + row * 3 * shape.channels + column, head, memory);
                               });
  }

  /// The gradient of attention: dqkv is written. y and lse are the results of the forward pass.
  template <class T>
  static void attention_backward(view<T> dqkv, detail::input<T> dy, detail::input<T> y,
                                 detail::input<accumulate_t<T>> lse, detail::input<T> qkv, attention_shape shape,
                                 arena<host>& scratch, dropout_site const& dropout,
                                 view<std::int32_t const> seen = {}) {
    check("attention_backward", shape, qkv.size(), y.size(), lse.size(), seen.size(), dropout);
    detail::same_size("attention_backward", dqkv.size(), qkv.size());
    detail::same_size("attention_backward", dy.size(), y.size());
    each_head<accumulate_t<T>>(shape, scratch, dropout, seen, true,
                               [&](detail::attention_head const& head, std::int64_t sample, accumulate_t<T>* memory) {
                                 auto const row = sample * shape.context;
                                 auto const column = head.head * head.width;
                                 auto const wide = row * 3 * shape.channels + column;
                                 auto const narrow = row * shape.channels + column;
                                 detail::attention_backward_head(
                                     raw(dqkv) + wide, raw(dy) + narrow, raw(y) + narrow,
                                     raw(lse) + (sample * shape.heads + head.head) * shape.context, raw(qkv) + wide,
                                     head, memory);
                               });
  }

 private:
  static void check(char const* who, attention_shape const& shape, std::int64_t qkv, std::int64_t y, std::int64_t lse,
                    std::int64_t seen, dropout_site const& dropout) {
    auto const rows = shape.batch * shape.context;
    detail::same_size(who, qkv, rows * 3 * shape.channels);
    detail::same_size(who, y, rows * shape.channels);
    detail::same_size(who, lse, rows * shape.heads);
    if (seen != 0) detail::same_size(who, seen, 2 * rows);
    expects(assertion_level::light, shape.heads > 0 && shape.channels % shape.heads == 0, [&] {
      return text("trireme::ops::", who, ": ", how_many(shape.channels, "channel"),
                  agreeing(shape.channels, " does", " do"), " not divide into ", how_many(shape.heads, "head"));
    });
    if (dropout.active()) {
      detail::same_size(who, static_cast<std::int64_t>(dropout.samples.size()), shape.batch);
    }
  }

  template <class Real, class Body>
  static void each_head(attention_shape const& shape, arena<host>& scratch, dropout_site const& dropout,
                        view<std::int32_t const> seen, bool backward, Body const& body) {
    detail::for_each_head<Real>(shape, shape.context, shape.context, scratch, dropout, backward,
                                [&](detail::attention_head& head, std::int64_t sample, Real* memory) {
                                  bool const turns = head.head + 1 == shape.heads;
                                  head.next_row = !turns ? 0 : sample + 1 < shape.batch ? shape.context : -1;
                                  if (!seen.empty()) head.sight.seen = raw(seen) + 2 * sample * shape.context;
                                  head.next_column = turns ? head.width - shape.channels : head.width;
                                  body(head, sample, memory);
                                });
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/attention.ipp"
#endif
