#pragma once

#include <cstdint>
#include <string_view>

#include "trireme/core/arena.hpp"
#include "trireme/ops/host/detail/attention_scratch.hpp"
#include "trireme/ops/phantom/products.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Causal attention: takes the scratch memory that on<host> takes, and counts the operations of its unmasked half.
struct phantom_attention : phantom_products {
  template <class T>
  static void causal_attention(view<T> y, output<accumulate_t<T>> lse, input<T> qkv, attention_shape shape,
                               arena<phantom>& scratch, dropout_site const&) {
    check_attention("causal_attention", shape, qkv.size(), y.size(), lse.size());
    attend<accumulate_t<T>>(shape, scratch, false);
  }
  template <class T>
  static void causal_attention_backward(view<T> dqkv, input<T> dy, input<T> y, input<accumulate_t<T>> lse, input<T> qkv,
                                        attention_shape shape, arena<phantom>& scratch, dropout_site const&) {
    check_attention("causal_attention_backward", shape, qkv.size(), y.size(), lse.size());
    same("causal_attention_backward", dqkv.size(), qkv.size());
    same("causal_attention_backward", dy.size(), y.size());
    attend<accumulate_t<T>>(shape, scratch, true);
  }
  template <class T>
  static void attend_block(output<accumulate_t<T>> y, output<accumulate_t<T>> lse, view<T> qkv, input<T> pairs,
                           attention_shape shape, attention_block at, arena<phantom>& scratch, dropout_site const&) {
    check_attention("attend_block", shape, qkv.size(), y.size(), lse.size());
    same("attend_block", pairs.size(), 2 * y.size());
    attend_part<accumulate_t<T>>(shape, at, scratch, false);
  }
  template <class T>
  static void attend_block_backward(output<accumulate_t<T>> dqueries, output<accumulate_t<T>> dpairs, view<T> dy,
                                    input<T> y, input<accumulate_t<T>> lse, input<T> qkv, input<T> pairs,
                                    attention_shape shape, attention_block at, arena<phantom>& scratch,
                                    dropout_site const&) {
    check_attention("attend_block_backward", shape, qkv.size(), y.size(), lse.size());
    same("attend_block_backward", pairs.size(), 2 * y.size());
    same("attend_block_backward", dqueries.size(), y.size());
    same("attend_block_backward", dpairs.size(), pairs.size());
    same("attend_block_backward", dy.size(), y.size());
    attend_part<accumulate_t<T>>(shape, at, scratch, true);
  }
  template <class A>
  static void rotations(view<A> table, std::int64_t, double) {
    same("rotations", table.extent(1) % 2, 0);
  }
  template <class T>
  static void arrange_heads(view<T> qkv, input<T> x, input<accumulate_t<T>> table, head_layout const& how) {
    check_heads("arrange_heads", x.size(), qkv.size(), table.size(), how);
  }
  template <class T>
  static void arrange_heads_backward(view<T> dx, input<T> dqkv, input<accumulate_t<T>> table, head_layout const& how) {
    check_heads("arrange_heads_backward", dx.size(), dqkv.size(), table.size(), how);
  }

 private:
  static void check_heads(std::string_view who, std::int64_t x, std::int64_t qkv, std::int64_t table,
                          head_layout const& how) {
    same(who, x % how.columns(), 0);
    same(who, qkv, x / how.columns() * 3 * how.heads * how.width);
    if (table != 0) same(who, table, how.context * how.width);
  }
  // Two products forward, five backward, each of half the pairs of rows.
  template <class Real>
  static void attend(attention_shape const& shape, arena<phantom>& scratch, bool backward) {
    if (shape.batch == 0 || shape.context == 0) return;
    auto const mark = scratch.mark();
    static_cast<void>(
        scratch.template take<Real>({detail::attention_scratch(shape.context, shape.head_channels(), backward)}));
    scratch.rewind(mark);
    auto const rows = static_cast<double>(shape.batch) * static_cast<double>(shape.context);
    flops() += (backward ? 5 : 2) * rows * static_cast<double>(shape.context) * static_cast<double>(shape.channels);
  }
  template <class Real>
  static void attend_part(attention_shape shape, attention_block const& at, arena<phantom>& scratch, bool backward) {
    auto const before = flops();
    shape.context = at.rows;
    attend<Real>(shape, scratch, backward);
    if (at.first_query > at.first_key) flops() += flops() - before;  // nothing of it is masked
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
