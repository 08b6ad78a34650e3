#pragma once

#include <concepts>
#include <cstdint>

#include "trireme/core/arena.hpp"
#include "trireme/ops/sets/exchange.hpp"

namespace trireme::ops {

// The set of dense layers: products, norms, embeddings, attention, activations, dropout and losses. All layers of nn
// need it; with the set of heads it is what a GPT needs. M is the number of rows, B samples of T rows each, C channels.
//
//   products, with weights<T, Space> w: a matrix (K, N), or (N, K) for orientation::out_in, and copies of it
//     linear(y, x, w, {bias, act, before, residual})    y (M, N) = residual + act(x (M, K) w + bias)
//     linear_backward_input(dx, dy, w, {act, before, accumulate})   dx (M, K) (+)= (dy (M, N) w^T) * act'(before)
//     linear_backward_weight(dw, db, x, dy, orientation)  dw += x^T dy; db (N) += the sum of dy's rows, unless empty
//   norms of rows (M, C); mean, rstd (M); gain, bias (C)
//     layer_norm(y, mean, rstd, x, gain, bias, epsilon)    y = (x - mean) rstd gain + bias
//     layer_norm_backward(dx, dgain, dbias, dy, x, mean, rstd, gain, accumulate)   dx is written, or added to
//     rms_norm(y, rstd, x, gain, epsilon)                  y = x rstd gain
//     rms_norm_backward(dx, dgain, dy, x, rstd, gain, accumulate)
//   embeddings, tokens (B, T)
//     embed(y, tokens, table, positions, table_range)      y[b, t] = table[tokens[b, t]] + positions[t]; rows that are
//                                                          not in the range count as 0
//     embed_backward(dtable, dpositions, dy, tokens, table_range)   adds dy to both, in the order of rows
//     embed_segments(y, tokens, separator, table)          y[b, t] += table[separators before t]
//     embed_segments_backward(dtable, dy, tokens, separator)
//   attention, qkv (B*T, 3C), y (B*T, C), lse (B, H, T), seen (B, T, 2) or empty
//     attention(y, lse, qkv, shape, scratch, dropout, seen)   y = softmax(mask(q k^T / sqrt(D))) v
//     attention_backward(dqkv, dy, y, lse, qkv, shape, scratch, dropout, seen)   dqkv is written
//   elementwise
//     activate(y, x, act); activate_backward(dx, dy, x, act)   dx = dy act'(x)
//     elementwise_product(y, a, b)                         y = a b; y may be a or b
//     dropout(y, site)                                     y = 0 or y / (1 - p), by the numbers of the site
//     dropout_part(y, site, cut)                           that of a part of whole samples, as the cut says
//     copy_columns(y, to, x, from, columns)                y[row, to + c] = x[row, from + c], converted
//     copy_blocks(y, places, x, places, extents)           blocks of rows, from their places in x to those in y
//   losses of rows; dy or logits become `weight` times the gradient
//     cross_entropy(logits (n, V), targets (n), weight, gradient, terms) -> losses_in<Space>
//     squared_error(dy, y, targets, weight), binary_cross_entropy(dy, y, targets, weight) -> losses_in<Space>
//
// Numerics sums in the accumulate type; a row's result does not depend on the other rows, and sums over rows have their
//          order. Random numbers depend on the site alone.
// Bytes    attention keeps no (T, T) matrix.

namespace detail {

template <class K, class V, class Space>
concept multiplies = requires(typename V::y y, typename V::x x, typename V::gradient g,
                              weights<typename V::compute, Space>& w) {
  K::linear(y, x, w, linear_epilogue<typename V::compute, Space>{});
  K::linear_backward_input(y, x, w, input_epilogue<typename V::compute, Space>{});
  K::linear_backward_weight(g, g, y, x, orientation::in_out);
};
template <class K, class V, class Space>
concept attends = requires(typename V::y y, typename V::x x, typename V::sums s, attention_shape const& shape,
                           arena<Space>& scratch, dropout_site_in<Space> const& drop, typename V::tokens seen) {
  K::attention(y, s, x, shape, scratch, drop, seen);
  K::attention_backward(y, x, x, s, x, shape, scratch, drop, seen);
};
template <class K, class V>
concept normalises = requires(typename V::y y, typename V::x x, typename V::gradient g, typename V::sums s) {
  K::layer_norm(y, s, s, x, x, x, 1e-5);
  K::layer_norm_backward(y, g, g, x, x, s, s, x, false);
  K::rms_norm(y, s, x, x, 1e-5);
  K::rms_norm_backward(y, g, x, x, s, x, false);
};
template <class K, class V>
concept embeds = requires(typename V::y y, typename V::x x, typename V::gradient g, typename V::tokens tokens,
                          table_range part) {
  K::embed(y, tokens, x, x, part);
  K::embed_backward(g, g, y, tokens, part);
  K::embed_segments(y, tokens, std::int32_t{}, x);
  K::embed_segments_backward(g, y, tokens, std::int32_t{});
};
template <class K, class V, class Space>
concept activates = requires(typename V::y y, typename V::x x, dropout_site_in<Space> const& drop,
                             dropout_cut const& cut, block_places const& at, block_extents const& extents) {
  K::activate(y, x, activation::gelu);
  K::activate_backward(y, x, x, activation::gelu);
  K::elementwise_product(y, x, x);
  K::dropout(y, drop);
  K::dropout_part(y, drop, cut);
  K::copy_blocks(y, at, x, at, extents);
  K::copy_columns(y, std::int64_t{}, x, std::int64_t{}, std::int64_t{});
};
template <class K, class V, class Space>
concept scores = requires(typename V::y y, typename V::x x, typename V::tokens targets,
                          tensor_view<float const, Space> numbers, cross_entropy_terms const& terms) {
  { K::cross_entropy(y, targets, 1.0, true, terms) } -> std::same_as<losses_in<Space>>;
  { K::squared_error(y, x, numbers, 1.0) } -> std::same_as<losses_in<Space>>;
  { K::binary_cross_entropy(y, x, numbers, 1.0) } -> std::same_as<losses_in<Space>>;
};
template <class K, class V, class Space>
concept computes_layers = multiplies<K, V, Space> && attends<K, V, Space> && normalises<K, V> && embeds<K, V> &&
    activates<K, V, Space> && scores<K, V, Space>;

}  // namespace detail

/// Whether a memory space has the kernels of dense layers, besides those of an exchange.
template <class Space, class Env>
concept dense_kernels = complete_kernels<Space> ||
    (exchange_kernels<Space, Env>&& detail::computes_layers<on<Space>, detail::set_views<Space, Env>, Space>);

}  // namespace trireme::ops
