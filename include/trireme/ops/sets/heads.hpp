#pragma once

#include <cstdint>

#include "trireme/ops/sets/dense.hpp"

namespace trireme::ops {

// The set of heads: queries, keys and values as products give them, and as attention takes them (nn::attend). With H
// queries and K keys of D numbers a row has (H + 2 K) D numbers, in the order of head_layout.
//
//   rotations(table, first, base, scaling)       table (T, D): cosines, then sines, of the positions from `first` on
//   arrange_heads(qkv, x, table, layout)         qkv (B*T, 3 H D): a key and a value for each query, rotated by the
//                                                table; an empty table: no rotation
//   arrange_heads_backward(dx, dqkv, table, layout)
//   normalise_heads(y, rstd, x, query_gain, key_gain, layout, epsilon)   an RMS norm of each query and key; rstd
//                                                (B*T, H + K), gains (D)
//   normalise_heads_backward(dx, dquery_gain, dkey_gain, dy, x, rstd, query_gain, key_gain, layout)
//   visible_keys(seen, tokens, mask)             seen (B, T, 2): the first key that a row may attend to, and one past
//                                                the last; none of the padding, and none of another document
//
// Numerics in the accumulate type, rounded once; angles in double.

namespace detail {

template <class K, class V>
concept arranges = requires(typename V::y y, typename V::x x, typename V::gradient g, typename V::sums s,
                            typename V::numbers seen, typename V::tokens tokens, head_layout const& layout,
                            rotary_scaling const& scaling, token_mask const& mask) {
  K::rotations(s, std::int64_t{}, 1e4, scaling);
  K::arrange_heads(y, x, s, layout);
  K::arrange_heads_backward(y, x, s, layout);
  K::normalise_heads(y, s, x, x, x, layout, 1e-5);
  K::normalise_heads_backward(y, g, g, x, x, s, x, x, layout);
  K::visible_keys(seen, tokens, mask);
};

}  // namespace detail

/// Whether a memory space has the kernels of nn::attend: those of heads, and of dense layers.
template <class Space, class Env>
concept heads_kernels = complete_kernels<Space> ||
    (dense_kernels<Space, Env>&& detail::arranges<on<Space>, detail::set_views<Space, Env>>);

}  // namespace trireme::ops
