#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/extremes.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/summation_tree.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

template <class Op, class T>
void reduce_elements(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n, int divisor);
template <class G>
void squares_of_blocks(G const* x, std::int64_t n, std::int64_t block, double* sums);
template <class Bits>
bool all_finite(Bits const* x, std::int64_t n, Bits exponent);
template <class Bits>
std::uint64_t hash_bits(Bits const* x, std::int64_t n, std::uint64_t name, std::uint64_t first_index);
/// Indices of the k largest magnitudes, ascending.
template <class G>
void select_largest(G const* x, std::int64_t n, std::int32_t* indices, std::int64_t k);

}  // namespace detail

/// Kernels that reduce many numbers, each in a fixed order.
/// Threads  thread-safe on different outputs.   Errors   assertion_error (light) if the sizes differ.
struct host_reductions {
  template <class T>
  using view = tensor_view<T, host>;

  /// outputs[...][i] = terms[0][i] op terms[1][i] op ..., in this order (reduction::pairwise: in the fixed tree over
  /// the terms), each output written in the same pass.
  ///
  /// Shapes   all views (n). An output may be one of the terms, at the same elements.
  /// Numerics bfloat16 and float16 are summed in float and rounded once; integers wrap. A mean is the sum divided by
  ///          `divisor` before rounding. max and min give NaN if a term is NaN, and -0 < +0 (core/extremes.hpp).
  template <class T, class Op = reduction::sum>
  static void reduce(std::span<view<T> const> outputs, std::type_identity_t<std::span<view<T const> const>> terms,
                     Op = {}, int divisor = 1) {
    if (outputs.empty() || terms.empty()) return;
    for (auto const& output : outputs) detail::same_size("reduce", output.size(), outputs[0].size());
    for (auto const& term : terms) detail::same_size("reduce", term.size(), outputs[0].size());
    thread_local std::vector<void*> to;
    thread_local std::vector<void const*> from;
    to.clear();
    from.clear();
    for (auto const& output : outputs) to.push_back(raw(output));
    for (auto const& term : terms) from.push_back(raw(term));
    detail::reduce_elements<Op, T>(to, from, outputs[0].size(), divisor);
  }
  /// The same on raw addresses of n elements of T each, for communicators.
  template <class T, class Op>
  static void reduce(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n, Op = {},
                     int divisor = 1) {
    detail::reduce_elements<Op, T>(outputs, terms, n, divisor);
  }

  /// Adds the sum of squares of each block of 1024 elements to `total`. The first block starts at the view's first
  /// element.
  /// Numerics squares and their sum in double, in an order that is the same at every CPU level.
  template <class G>
  static void sum_of_squares(view<G> x, exact_sum& total) {
    constexpr std::int64_t block = 1024;
    constexpr std::int64_t several = 16;
    double sums[several];
    for (std::int64_t at = 0; at < x.size(); at += several * block) {
      std::remove_const_t<G> const* const from = raw(x) + at;
      auto const count = std::min(several * block, x.size() - at);
      detail::squares_of_blocks(from, count, block, sums);
      for (std::int64_t b = 0; b * block < count; ++b) total.add(sums[b]);
    }
  }

  /// Whether no element is infinite or NaN.
  template <class T>
  [[nodiscard]] static bool finite(view<T> x) {
    using element = std::remove_const_t<T>;
    using bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
    static_assert(detail::arithmetic_lanes<element>,
                  "trireme::ops::finite: the elements are not floating-point numbers");
    // Only infinity and NaN have all exponent bits set.
    auto const exponent = std::bit_cast<bits>(static_cast<element>(std::numeric_limits<float>::infinity()));
    return detail::all_finite(reinterpret_cast<bits const*>(raw(x)), x.size(), exponent);
  }

  /// The wrapping sum of hash_element(name, first_index + i, bits of element i), zero-extended to 64.
  template <class T>
  [[nodiscard]] static std::uint64_t hash(view<T> x, std::uint64_t name, std::int64_t first_index) {
    using bits =
        std::conditional_t<sizeof(T) == 8, std::uint64_t,
                           std::conditional_t<sizeof(T) == 4, std::uint32_t,
                                              std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;
    return detail::hash_bits(reinterpret_cast<bits const*>(raw(x)), x.size(), name,
                             static_cast<std::uint64_t>(first_index));
  }

  /// The k elements of largest magnitude, k = indices.size(); of equal magnitudes the smaller index is taken; indices
  /// ascend.
  /// Allocates scratch memory once per thread.
  template <class G>
  static void select_largest(view<G> x, view<std::int32_t> indices, detail::output<std::remove_const_t<G>> values) {
    detail::same_size("select_largest", indices.size(), values.size());
    expects(assertion_level::light, indices.size() <= x.size(), [&] {
      return text("trireme::ops::select_largest: ", indices.size(), " of ", how_many(x.size(), "element"),
                  " asked for");
    });
    std::remove_const_t<G> const* const from = raw(x);
    detail::select_largest(from, x.size(), raw(indices), indices.size());
    for (std::int64_t i = 0; i < indices.size(); ++i) raw(values)[i] = from[raw(indices)[i]];
  }

  /// y[indices[i]] = or += values[i], in order.
  template <class G>
  static void scatter(view<G> y, view<std::int32_t const> indices, detail::input<G> values, bool add) {
    detail::same_size("scatter", indices.size(), values.size());
    G* const to = raw(y);
    for (std::int64_t i = 0; i < indices.size(); ++i) {
      auto const at = indices[i];
      expects(assertion_level::normal, at >= 0 && at < y.size(), [&] {
        return text("trireme::ops::scatter: index ", at, " is outside of ", how_many(y.size(), "element"));
      });
      to[at] = add ? static_cast<G>(to[at] + values[i]) : values[i];
    }
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/reductions.ipp"
#endif
