#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "trireme/core/arena.hpp"
#include "trireme/ops/host/detail/attention_scratch.hpp"
#include "trireme/ops/phantom/products.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Attention: allocates the same scratch memory as on<host>, and counts the operations that its mask leaves (without
/// masks from tokens, which are not read here).
template <class Space>
struct phantom_attention : phantom_products<Space> {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;
  template <class T>
  using output = std::type_identity_t<tensor_view<T, Space>>;
  using phantom_products<Space>::same, phantom_products<Space>::flops;

  template <class T>
  static void attention(view<T> y, output<accumulate_t<T>> lse, input<T> qkv, attention_shape shape,
                        arena<Space>& scratch, dropout_site_in<Space> const& drop, view<std::int32_t const> x = {}) {
    note_kernel<Space>("attention", y, lse, qkv, x, drop.samples);
    check_attention("attention", shape, qkv.size(), y.size(), lse.size());
    attend<accumulate_t<T>>(shape, scratch, false, pairs(shape));
  }
  template <class T>
  static void attention_backward(view<T> dqkv, input<T> dy, input<T> y, input<accumulate_t<T>> lse, input<T> qkv,
                                 attention_shape shape, arena<Space>& scratch, dropout_site_in<Space> const& drop,
                                 view<std::int32_t const> x = {}) {
    note_kernel<Space>("attention_backward", dqkv, dy, y, lse, qkv, x, drop.samples);
    check_attention("attention_backward", shape, qkv.size(), y.size(), lse.size());
    same("attention_backward", dqkv.size(), qkv.size());
    same("attention_backward", dy.size(), y.size());
    attend<accumulate_t<T>>(shape, scratch, true, pairs(shape));
  }
  template <class T>
  static void attend_block(output<accumulate_t<T>> y, output<accumulate_t<T>> lse, view<T> qkv, input<T> pairs,
                           attention_shape shape, attention_block at, arena<Space>& scratch,
                           dropout_site_in<Space> const& drop) {
    note_kernel<Space>("attend_block", y, lse, qkv, pairs, drop.samples);
    check_attention("attend_block", shape, qkv.size(), y.size(), lse.size());
    same("attend_block", pairs.size(), 2 * y.size());
    attend_part<accumulate_t<T>>(shape, at, scratch, false);
  }
  template <class T>
  static void attend_block_backward(output<accumulate_t<T>> dqueries, output<accumulate_t<T>> dpairs, view<T> dy,
                                    input<T> y, input<accumulate_t<T>> lse, input<T> qkv, input<T> pairs,
                                    attention_shape shape, attention_block at, arena<Space>& scratch,
                                    dropout_site_in<Space> const& drop) {
    note_kernel<Space>("attend_block_backward", dqueries, dpairs, dy, y, lse, qkv, pairs, drop.samples);
    check_attention("attend_block_backward", shape, qkv.size(), y.size(), lse.size());
    same("attend_block_backward", pairs.size(), 2 * y.size());
    same("attend_block_backward", dqueries.size(), y.size());
    same("attend_block_backward", dpairs.size(), pairs.size());
    same("attend_block_backward", dy.size(), y.size());
    attend_part<accumulate_t<T>>(shape, at, scratch, true);
  }
  static void visible_keys(view<std::int32_t> seen, view<std::int32_t const> tokens, token_mask const&) {
    note_kernel<Space>("visible_keys", seen, tokens);
    same("visible_keys", seen.size(), 2 * tokens.size());
  }
  template <class T>
  static void normalise_heads(view<T> y, output<accumulate_t<T>> rstd, input<T> x, input<T> query_gain,
                              input<T> key_gain, head_layout const& how, double) {
    note_kernel<Space>("normalise_heads", y, rstd, x, query_gain, key_gain);
    check_norms("normalise_heads", y.size(), rstd.size(), x.size(), query_gain.size(), key_gain.size(), how);
  }
  template <class T>
  static void normalise_heads_backward(view<T> dx, output<accumulate_t<T>> dquery_gain,
                                       output<accumulate_t<T>> dkey_gain, input<T> dy, input<T> x,
                                       input<accumulate_t<T>> rstd, input<T> query_gain, input<T> key_gain,
                                       head_layout const& how) {
    note_kernel<Space>("normalise_heads_backward", dx, dquery_gain, dkey_gain, dy, x, rstd, query_gain, key_gain);
    same("normalise_heads_backward", dy.size(), x.size());
    same("normalise_heads_backward", dquery_gain.size(), query_gain.size());
    same("normalise_heads_backward", dkey_gain.size(), key_gain.size());
    check_norms("normalise_heads_backward", dx.size(), rstd.size(), x.size(), query_gain.size(), key_gain.size(), how);
  }
  template <class A>
  static void rotations(view<A> table, std::int64_t, double, rotary_scaling const& = {}) {
    note_kernel<Space>("rotations", table);
    same("rotations", table.extent(1) % 2, 0);
  }
  template <class T>
  static void arrange_heads(view<T> qkv, input<T> x, input<accumulate_t<T>> table, head_layout const& how) {
    note_kernel<Space>("arrange_heads", qkv, x, table);
    check_heads("arrange_heads", x.size(), qkv.size(), table.size(), how);
  }
  template <class T>
  static void arrange_heads_backward(view<T> dx, input<T> dqkv, input<accumulate_t<T>> table, head_layout const& how) {
    note_kernel<Space>("arrange_heads_backward", dx, dqkv, table);
    check_heads("arrange_heads_backward", dx.size(), dqkv.size(), table.size(), how);
  }

 private:
  static void check_norms(std::string_view who, std::int64_t y, std::int64_t rstd, std::int64_t x,
                          std::int64_t query_gain, std::int64_t key_gain, head_layout const& how) {
    same(who, x % how.columns(), 0);
    same(who, y, x);
    same(who, rstd, x / how.columns() * (how.heads + how.key_heads));
    same(who, query_gain, how.width);
    same(who, key_gain, how.width);
  }
  static void check_heads(std::string_view who, std::int64_t x, std::int64_t qkv, std::int64_t table,
                          head_layout const& how) {
    same(who, x % how.columns(), 0);
    same(who, qkv, x / how.columns() * 3 * how.heads * how.width);
    if (table != 0) same(who, table, how.context * how.width);
  }
  // The number of pairs of a query and a key that it attends to.
  static double pairs(attention_shape const& shape) {
    auto const context = static_cast<double>(shape.context);
    auto const unseen =
        static_cast<double>(shape.mask.window > 0 ? std::max<std::int64_t>(0, shape.context - shape.mask.window) : 0);
    auto const all = context * context - unseen * unseen;
    return shape.mask.causal ? all / 2 : all;
  }
  // Two products forward, five backward.
  template <class Real>
  static void attend(attention_shape const& shape, arena<Space>& scratch, bool backward, double of_each) {
    if (shape.batch == 0 || shape.context == 0) return;
    auto const mark = scratch.mark();
    static_cast<void>(
        scratch.template take<Real>({detail::attention_scratch(shape.context, shape.head_channels(), backward)}));
    scratch.rewind(mark);
    flops() +=
        (backward ? 5 : 2) * static_cast<double>(shape.batch) * 2 * of_each * static_cast<double>(shape.channels);
  }
  template <class Real>
  static void attend_part(attention_shape shape, attention_block const& at, arena<Space>& scratch, bool backward) {
    shape.context = at.rows;
    auto const rows = static_cast<double>(at.rows);
    // Queries and keys at different positions: counted as a whole, regardless of the window.
    attend<Real>(shape, scratch, backward, at.first_query == at.first_key ? pairs(shape) : rows * rows);
  }
  static void check_attention(std::string_view who, attention_shape const& shape, std::int64_t qkv, std::int64_t y,
                              std::int64_t lse) {
    auto const rows = shape.batch * shape.context;
    same(who, qkv, rows * 3 * shape.channels);
    same(who, y, rows * shape.channels);
    same(who, lse, rows * shape.heads);
  }
};

}  // namespace trireme::ops
