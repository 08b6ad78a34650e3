#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/core/compiled.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

void rotation_table(float* table, std::int64_t positions, std::int64_t first, std::int64_t width, double base,
                    rotary_scaling const& scaling);
void rotation_table(double* table, std::int64_t positions, std::int64_t first, std::int64_t width, double base,
                    rotary_scaling const& scaling);
template <class T, class A>
void arrange_rows(T* qkv, T const* x, A const* table, head_layout const& how, std::int64_t rows);
template <class T, class A>
void arrange_backward_rows(T* dx, T const* dqkv, A const* table, head_layout const& how, std::int64_t rows);
template <class T, class A>
void normalise_head_rows(T* y, A* rstd, T const* x, T const* query_gain, T const* key_gain, head_layout const& how,
                         std::int64_t rows, double epsilon);
template <class T, class A>
void normalise_backward_head_rows(T* dx, A* dquery_gain, A* dkey_gain, T const* dy, T const* x, A const* rstd,
                                  T const* query_gain, T const* key_gain, head_layout const& how, std::int64_t rows);

}  // namespace detail

/// Converts queries, keys and values from the order of products to that of attention: a key and a value for each query,
/// rotated by their positions.
///
/// Shapes   x, dx (B*T, (H + 2 K) D), in the order of head_layout; qkv, dqkv (B*T, 3 H D): all queries, keys and
///          values; table (T, D): cosines, then sines, or empty: no rotation; gains (D); rstd (B*T, H + K).
/// Numerics computed in the accumulate type and rounded once, sums over the queries of a key in their order; a row's
///          result does not depend on the other rows. Angles are computed in double.
/// Method   [Su et al., "RoFormer", 2021], numbers i and i + D/2 of a head being a pair; [Ainslie et al., "GQA", 2023];
///          norms of heads [Henry et al., "Query-key normalization", 2020], as RMS norms; angles of longer samples
///          [Chen et al., "Positional interpolation", 2023], [Grattafiori et al., "The Llama 3 herd", 2024].
/// Threads  thread-safe on different outputs.
/// Errors   assertion_error (light) if the sizes do not fit, or a head's width is odd.
struct host_heads {
  template <class T>
  using view = tensor_view<T, host>;

  /// The angles for as many positions as the table has rows, from `first` on: position / base^(2 i / D) for pair i,
  /// reduced according to `scaling`.
  template <class A>
  static void rotations(view<A> table, std::int64_t first, double base, rotary_scaling const& scaling = {}) {
    detail::same_size("rotations", table.extent(1) % 2, 0);
    detail::rotation_table(raw(table), table.extent(0), first, table.extent(1), base, scaling);
  }
  /// qkv may be x if there are as many keys as queries.
  template <class T>
  static void arrange_heads(view<T> qkv, detail::input<T> x, detail::input<accumulate_t<T>> table,
                            head_layout const& how) {
    detail::arrange_rows(raw(qkv), raw(x), raw(table), how, rows("arrange_heads", how, x, qkv, table));
  }
  /// The gradient of arrange_heads: dx is written, and may be dqkv if there are as many keys as queries.
  template <class T>
  static void arrange_heads_backward(view<T> dx, detail::input<T> dqkv, detail::input<accumulate_t<T>> table,
                                     head_layout const& how) {
    detail::arrange_backward_rows(raw(dx), raw(dqkv), raw(table), how,
                                  rows("arrange_heads_backward", how, dx, dqkv, table));
  }

  /// y = x with an RMS norm of each query and each key: see rms_norm. rstd: those of a row's queries, then of its keys.
  /// y may be x.
  template <class T>
  static void normalise_heads(view<T> y, detail::output<accumulate_t<T>> rstd, detail::input<T> x,
                              detail::input<T> query_gain, detail::input<T> key_gain, head_layout const& how,
                              double epsilon) {
    auto const n = normalised("normalise_heads", how, y.size(), rstd.size(), x.size());
    detail::same_size("normalise_heads", query_gain.size(), how.width);
    detail::same_size("normalise_heads", key_gain.size(), how.width);
    detail::normalise_head_rows(raw(y), raw(rstd), raw(x), raw(query_gain), raw(key_gain), how, n, epsilon);
  }
  /// The gradients of normalise_heads: dx is written, and may be dy; those of the gains are added to.
  template <class T>
  static void normalise_heads_backward(view<T> dx, detail::output<accumulate_t<T>> dquery_gain,
                                       detail::output<accumulate_t<T>> dkey_gain, detail::input<T> dy,
                                       detail::input<T> x, detail::input<accumulate_t<T>> rstd,
                                       detail::input<T> query_gain, detail::input<T> key_gain, head_layout const& how) {
    auto const n = normalised("normalise_heads_backward", how, dx.size(), rstd.size(), x.size());
    detail::same_size("normalise_heads_backward", dy.size(), x.size());
    for (auto const size : {query_gain.size(), key_gain.size(), dquery_gain.size(), dkey_gain.size()})
      detail::same_size("normalise_heads_backward", size, how.width);
    detail::normalise_backward_head_rows(raw(dx), raw(dquery_gain), raw(dkey_gain), raw(dy), raw(x), raw(rstd),
                                         raw(query_gain), raw(key_gain), how, n);
  }

 private:
  static std::int64_t normalised(char const* who, head_layout const& how, std::int64_t y, std::int64_t rstd,
                                 std::int64_t x) {
    auto const rows = x / how.columns();
    detail::same_size(who, x, rows * how.columns());
    detail::same_size(who, y, x);
    detail::same_size(who, rstd, rows * (how.heads + how.key_heads));
    return rows;
  }
  template <class X, class P, class A>
  static std::int64_t rows(char const* who, head_layout const& how, X const& x, P const& qkv, A const& table) {
    auto const rows = x.size() / how.columns();
    detail::same_size(who, x.size(), rows * how.columns());
    detail::same_size(who, qkv.size(), rows * 3 * how.heads * how.width);
    if (!table.empty()) detail::same_size(who, table.size(), how.context * how.width);
    return rows;
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/heads.ipp"
#endif
