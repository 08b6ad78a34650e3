// Trireme 0.1.0: trireme/ops/latent_heads.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: c8f6d55b5d93d8038dc6b2e34564b44328f0cd162af79c9ec11b4161c93b2119
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/ops/latent_heads.hpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

namespace trireme::ops {

/// The widths of the parts of a head of latent attention.
struct latent_layout {
  std::int64_t context = 0;  ///< rows of a sample
  std::int64_t heads = 1;
  std::int64_t plain = 0;   ///< numbers of a query, and of a key, that are not rotated by positions,
  std::int64_t rotary = 0;  ///< and those that are rotated: an even number
  std::int64_t values = 0;  ///< numbers of a value

  [[nodiscard]] constexpr std::int64_t query() const noexcept { return plain + rotary; }
  [[nodiscard]] constexpr std::int64_t pair() const noexcept { return plain + values; }
  /// The width of queries, keys and values for attention: all have the same, padded with zeros.
  [[nodiscard]] constexpr std::int64_t width() const noexcept { return std::max(query(), values); }
};

/// The kernels of latent attention of one memory space, separate from ops::on, so that programs without it do not parse
/// them: they make queries, keys and values of one width, for attention, from the results of products.
///
/// Shapes   queries (B*T, H * query()): a head's plain numbers, then its rotary ones; pairs (B*T, H * pair()): a head's
///          plain key, then its value; key (B*T, rotary), shared by all heads; table (T, rotary): as rotations()
///          computes it; qkv (B*T, 3 H width()). Rotary numbers 2 i and 2 i + 1 are a pair.
/// Numerics computed in the accumulate type and rounded once; the key's gradient is a sum over heads in their order.
/// Queries are multiplied by sqrt(width() / query()), because attention divides scores by sqrt(width()).
/// Method   [DeepSeek-AI, "DeepSeek-V2", 2024], 2.1.
/// Threads  the calling one; thread-safe on different outputs.
/// Errors   assertion_error (light) if sizes do not fit.
template <class Space>
struct latent_heads_on;

namespace detail {

struct latent_checks {
 protected:
  template <class QKV, class Q, class P, class K, class A>
  static void check(std::string_view who, latent_layout const& how, QKV const& qkv, Q const& queries, P const& pairs,
                    K const& key, A const& table) {
    auto const rows = key.extent(0);
    bool const fits = qkv.size() == rows * 3 * how.heads * how.width() &&
                      queries.size() == rows * how.heads * how.query() &&
                      pairs.size() == rows * how.heads * how.pair() && key.size() == rows * how.rotary &&
                      how.rotary % 2 == 0 && table.size() == how.context * how.rotary;
    expects(assertion_level::light, fits, [&] {
      return text("trireme::ops::", who, ": ", how_many(rows, "row"), " of ", how_many(how.heads, "head"), " of ",
                  how.plain, " + ", how.rotary, " and ", how_many(how.values, "number"), ", and a table of ",
                  how_many(how.context, "position"), ", do not fit");
    });
  }
};

}  // namespace detail

template <>
struct latent_heads_on<host> : detail::latent_checks {
  template <class T>
  using view = tensor_view<T, host>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, host>>;
  template <class T>
  using angles = std::type_identity_t<tensor_view<accumulate_t<T> const, host>>;

  template <class T>
  static void arrange(view<T> qkv, input<T> queries, input<T> pairs, input<T> key, angles<T> table,
                      latent_layout const& how) {
    check("latent_heads", how, qkv, queries, pairs, key, table);
    auto const scale = query_scale<accumulate_t<T>>(how);
    auto const all = how.heads * how.width();
    for (std::int64_t row = 0; row < key.extent(0); ++row) {
      auto const* const turn = raw(table) + row % how.context * how.rotary;
      for (std::int64_t head = 0; head < how.heads; ++head) {
        auto const* const q = raw(queries) + (row * how.heads + head) * how.query();
        auto const* const p = raw(pairs) + (row * how.heads + head) * how.pair();
        auto* const to = raw(qkv) + 3 * row * all + head * how.width();
        for (std::int64_t i = 0; i < how.plain; ++i) to[i] = static_cast<T>(scale * as(q[i]));
        rotate(to + how.plain, q + how.plain, turn, how.rotary, scale);
        std::copy_n(p, how.plain, to + all);
        rotate(to + all + how.plain, raw(key) + row * how.rotary, turn, how.rotary, accumulate_t<T>{1});
        std::copy_n(p + how.plain, how.values, to + 2 * all);
        for (auto const third : {to + how.query(), to + all + how.query()})
          std::fill_n(third, how.width() - how.query(), T{});
        std::fill_n(to + 2 * all + how.values, how.width() - how.values, T{});
      }
    }
  }

  /// The gradients of arrange; all three are written.
  template <class T>
  static void arrange_backward(view<T> dqueries, view<T> dpairs, view<T> dkey, input<T> dqkv, angles<T> table,
                               latent_layout const& how) {
    using A = accumulate_t<T>;
    check("latent_heads_backward", how, dqkv, dqueries, dpairs, dkey, table);
    auto const scale = query_scale<A>(how);
    auto const all = how.heads * how.width();
    thread_local std::vector<A> sum;
    sum.resize(static_cast<std::size_t>(how.rotary));
    for (std::int64_t row = 0; row < dkey.extent(0); ++row) {
      auto const* const turn = raw(table) + row % how.context * how.rotary;
      std::fill(sum.begin(), sum.end(), A{0});
      for (std::int64_t head = 0; head < how.heads; ++head) {
        auto* const dq = raw(dqueries) + (row * how.heads + head) * how.query();
        auto* const dp = raw(dpairs) + (row * how.heads + head) * how.pair();
        auto const* const from = raw(dqkv) + 3 * row * all + head * how.width();
        for (std::int64_t i = 0; i < how.plain; ++i) dq[i] = static_cast<T>(scale * as(from[i]));
        rotate_back(dq + how.plain, from + how.plain, turn, how.rotary, scale);
        std::copy_n(from + all, how.plain, dp);
        std::copy_n(from + 2 * all, how.values, dp + how.plain);
        for (std::int64_t i = 0; i < how.rotary; ++i) sum[static_cast<std::size_t>(i)] += as(from[all + how.plain + i]);
      }
      rotate_back(raw(dkey) + row * how.rotary, sum.data(), turn, how.rotary, A{1});
    }
  }

 private:
  template <class T>
  static accumulate_t<T> as(T x) {
    return static_cast<accumulate_t<T>>(x);
  }
  template <class A>
  static A query_scale(latent_layout const& how) {
    return static_cast<A>(std::sqrt(static_cast<double>(how.width()) / static_cast<double>(how.query())));
  }
  // table: cosines of n / 2 pairs, then sines
  template <class T, class A>
  static void rotate(T* to, T const* from, A const* table, std::int64_t n, A scale) {
    for (std::int64_t i = 0; i < n / 2; ++i) {
      auto const a = as(from[2 * i]), b = as(from[2 * i + 1]), cosine = table[i], sine = table[n / 2 + i];
      to[2 * i] = static_cast<T>(scale * (a * cosine - b * sine));
      to[2 * i + 1] = static_cast<T>(scale * (a * sine + b * cosine));
    }
  }
  template <class T, class From, class A>
  static void rotate_back(T* to, From const* from, A const* table, std::int64_t n, A scale) {
    for (std::int64_t i = 0; i < n / 2; ++i) {
      auto const a = as(from[2 * i]), b = as(from[2 * i + 1]), cosine = table[i], sine = table[n / 2 + i];
      to[2 * i] = static_cast<T>(scale * (a * cosine + b * sine));
      to[2 * i + 1] = static_cast<T>(scale * (b * cosine - a * sine));
    }
  }
};

template <class Space>
requires without_elements<Space>
struct latent_heads_on<Space> : detail::latent_checks {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;
  template <class T>
  using angles = std::type_identity_t<tensor_view<accumulate_t<T> const, Space>>;

  template <class T>
  static void arrange(view<T> qkv, input<T> queries, input<T> pairs, input<T> key, angles<T> table,
                      latent_layout const& how) {
    note_kernel<Space>("arrange", qkv, queries, pairs, key, table);
    check("latent_heads", how, qkv, queries, pairs, key, table);
  }
  template <class T>
  static void arrange_backward(view<T> dqueries, view<T> dpairs, view<T> dkey, input<T> dqkv, angles<T> table,
                               latent_layout const& how) {
    note_kernel<Space>("arrange_backward", dqueries, dpairs, dkey, dqkv, table);
    check("latent_heads_backward", how, dqkv, dqueries, dpairs, dkey, table);
  }
};

}  // namespace trireme::ops
