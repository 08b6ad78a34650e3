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
#include "trireme/core/rng.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/detail/attention_scratch.hpp"
#include "trireme/ops/host/detail/product_packing.hpp"
#include "trireme/ops/host/detail/tiles.hpp"
#include "trireme/ops/host/detail/tiles_packing.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/simd.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops::detail {

/// Keys that are worked on together, among those that a block of query rows sees.
struct attention_part {
  std::int64_t key;
  std::int64_t keys;
  std::int64_t skipped;  ///< rows of the block, the first ones, that see none of these keys
  [[nodiscard]] constexpr attention_part next(std::int64_t row) const noexcept;
};

/// How many keys the lanes at `lane` see of a block that begins at `row`: up to the diagonal, in halves of a block.
[[nodiscard]] constexpr std::int64_t keys_seen(std::int64_t row, std::int64_t lane) noexcept {
  constexpr auto half = attention_rows / 2;
  return row + (lane / half + 1) * half;
}

/// The part that begins with `key`; without keys after the last.
[[nodiscard]] constexpr attention_part attention_keys_from(std::int64_t row, std::int64_t key) noexcept {
  constexpr auto half = attention_rows / 2;
  auto const skipped = key < keys_seen(row, 0) ? 0 : half;
  return {key, std::min(attention_keys, keys_seen(row, skipped) - key), skipped};
}
constexpr attention_part attention_part::next(std::int64_t row) const noexcept {
  return attention_keys_from(row, key + keys);
}

/// One head of one sample: where its columns begin in the rows of qkv and y, and what is dropped in it.
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
  std::int64_t next_row;        ///< where the next head begins, from here: rows, or -1 if there is none,
  std::int64_t next_column;     ///< and columns
  dropout_site const* dropout;  ///< nullptr if nothing is dropped
};

}  // namespace trireme::ops::detail

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/attention_tiles.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BF16_BEGIN
#define TRIREME_LEVEL avx512_bf16
#include "trireme/ops/host/detail/attention_pairs.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

/// Calls f(head, sample, scratch memory) for each head of each sample.
/// @param rows   of a sample that are worked on at a time.
/// @param whole  all rows of a sample, which dropout counts.
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
                      .dropout = dropout.active() ? &dropout : nullptr};
  auto const mark = scratch.mark();
  auto const memory = scratch.template take<Real>({attention_scratch(rows, width, backward)});
  for (std::int64_t sample = 0; sample < shape.batch; ++sample) {
    if (dropout.active()) head.sample = static_cast<std::uint64_t>(dropout.samples[static_cast<std::size_t>(sample)]);
    for (head.head = 0; head.head < shape.heads; ++head.head) f(head, sample, raw(memory));
  }
  scratch.rewind(mark);
}

template <class T, class A>
void attention_forward_head(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
#if TRIREME_X86
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (detected() >= cpu_level::amx) {
      return avx512::attention_tiles_forward<tile_registers>(y, lse, qkv, shape, scratch, avx512::turn);
    }
    if (detected() >= cpu_level::avx512_bf16) return avx512_bf16::attention_forward(y, lse, qkv, shape, scratch);
  }
#endif
  TRIREME_DISPATCH(fits_float<T>, attention_forward(y, lse, qkv, shape, scratch));
}
template <class T, class A>
void attention_backward_head(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv, attention_head const& shape,
                             A* scratch) {
#if TRIREME_X86
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (detected() >= cpu_level::amx) {
      return avx512::attention_tiles_backward<tile_registers>(dqkv, dy, y, lse, qkv, shape, scratch, avx512::turn);
    }
    if (detected() >= cpu_level::avx512_bf16) {
      return avx512_bf16::attention_backward(dqkv, dy, y, lse, qkv, shape, scratch);
    }
  }
#endif
  TRIREME_DISPATCH(fits_float<T>, attention_backward(dqkv, dy, y, lse, qkv, shape, scratch));
}

}  // namespace detail

/// Causal self-attention of several heads.
///
/// No (T, T) matrix is kept: the forward pass works on 32 query rows at a time and saves the log of each row's sum of
/// exponentials, from which the backward pass makes the probabilities again. The masked half is skipped.
/// Method: [Dao et al., 2022], without its rescaling, as one block's scores fit the second-level cache.
/// Shapes   qkv, dqkv (B*T, 3C): queries, keys, values, each of H heads of C/H columns; y, dy (B*T, C); lse (B, H, T).
/// Bytes    scratch: 2 (forward) or 4 (backward) matrices (T, C/H) of the accumulate type, and 128 T in the forward
/// pass.
/// Numerics softmax and sums in the accumulate type, and products too; but with AVX512-BF16 or tiles those of bfloat16
///          take probabilities and their gradients rounded to it. A sample's result does not depend on the others.
/// Threads  one caller an arena.
/// Errors   assertion_error (light) if the sizes do not fit.
struct host_attention {
  template <class T>
  using view = tensor_view<T, host>;

  /// y = softmax(mask(q k^T / sqrt(D))) v; dropout, if any, applies to the probabilities, a number at (head, row, col)
  /// of a sample having the position (head * T + row) * T + col.
  template <class T>
  static void causal_attention(view<T> y, detail::output<accumulate_t<T>> lse, detail::input<T> qkv,
                               attention_shape shape, arena<host>& scratch, dropout_site const& dropout) {
    check("causal_attention", shape, qkv.size(), y.size(), lse.size(), dropout);
    each_head<accumulate_t<T>>(shape, scratch, dropout, false,
                               [&](detail::attention_head const& head, std::int64_t sample, accumulate_t<T>* memory) {
                                 auto const row = sample * shape.context;
                                 auto const column = head.head * head.width;
                                 detail::attention_forward_head(
                                     raw(y) + row * shape.channels + column,
                                     raw(lse) + (sample * shape.heads + head.head) * shape.context,
                                     raw(qkv) + row * 3 * shape.channels + column, head, memory);
                               });
  }

  /// The gradient of causal_attention: dqkv is written. y and lse are what the forward pass gave.
  template <class T>
  static void causal_attention_backward(view<T> dqkv, detail::input<T> dy, detail::input<T> y,
                                        detail::input<accumulate_t<T>> lse, detail::input<T> qkv, attention_shape shape,
                                        arena<host>& scratch, dropout_site const& dropout) {
    check("causal_attention_backward", shape, qkv.size(), y.size(), lse.size(), dropout);
    detail::same_size("causal_attention_backward", dqkv.size(), qkv.size());
    detail::same_size("causal_attention_backward", dy.size(), y.size());
    each_head<accumulate_t<T>>(shape, scratch, dropout, true,
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
                    dropout_site const& dropout) {
    auto const rows = shape.batch * shape.context;
    detail::same_size(who, qkv, rows * 3 * shape.channels);
    detail::same_size(who, y, rows * shape.channels);
    detail::same_size(who, lse, rows * shape.heads);
    expects(assertion_level::light, shape.heads > 0 && shape.channels % shape.heads == 0, [&] {
      return text("trireme::ops::", who, ": ", shape.channels, " channels do not divide into ", shape.heads, " heads");
    });
    if (dropout.active()) {
      detail::same_size(who, static_cast<std::int64_t>(dropout.samples.size()), shape.batch);
    }
  }

  template <class Real, class Body>
  static void each_head(attention_shape const& shape, arena<host>& scratch, dropout_site const& dropout, bool backward,
                        Body const& body) {
    detail::for_each_head<Real>(shape, shape.context, shape.context, scratch, dropout, backward,
                                [&](detail::attention_head& head, std::int64_t sample, Real* memory) {
                                  bool const turns = head.head + 1 == shape.heads;
                                  head.next_row = !turns ? 0 : sample + 1 < shape.batch ? shape.context : -1;
                                  head.next_column = turns ? head.width - shape.channels : head.width;
                                  body(head, sample, memory);
                                });
  }
};

}  // namespace trireme::ops
