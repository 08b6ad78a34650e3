#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

template <class T>
void embed_rows(T* y, std::int32_t const* tokens, T const* table, T const* positions, std::int64_t rows,
                std::int64_t context, std::int64_t channels, std::int64_t first, std::int64_t words);

void tokens_within(char const* who, tensor_view<std::int32_t const, host> tokens, std::int64_t vocabulary);

}  // namespace detail

/// Lookup of rows of a table by tokens.
/// Errors   assertion_error (light) if the sizes do not fit; config_error (normal) for a token outside the table.
struct host_embedding {
  template <class T>
  using view = tensor_view<T, host>;

  /// y[b, t] = table[tokens[b, t]] + positions[t]; rows of the table that another rank holds count as 0.
  /// Shapes   y (B, T, C) or (B*T, C); tokens (B, T); table (V, C); positions (P, C) with P >= T, or empty.
  template <class T>
  static void embed(view<T> y, view<std::int32_t const> tokens, detail::input<T> table, detail::input<T> positions,
                    table_range part = {}) {
    auto const channels = table.extent(1);
    auto const context = tokens.extent(tokens.rank() - 1);
    detail::same_size("embed", y.size(), tokens.size() * channels);
    expects(assertion_level::light, positions.empty() || positions.size() >= context * channels, [&] {
      return text("trireme::ops::embed: ", how_many(context, "position"), " needed, but only ", positions.extent(0),
                  " in the table");
    });
    detail::tokens_within("embed", tokens, part.whole > 0 ? part.whole : table.extent(0));
    detail::embed_rows(raw(y), raw(tokens), raw(table), positions.empty() ? nullptr : raw(positions), tokens.size(),
                       context, channels, part.first, table.extent(0));
  }

  /// dtable[tokens[b, t]] += dy[b, t]; dpositions[t] += dy[b, t]: in the order of rows.
  /// Shapes   as embed's; dpositions may be empty.
  template <class G, class T>
  static void embed_backward(view<G> dtable, detail::output<G> dpositions, view<T> dy, view<std::int32_t const> tokens,
                             table_range part = {}) {
    auto const channels = dtable.extent(1);
    auto const context = tokens.extent(tokens.rank() - 1);
    detail::same_size("embed_backward", dy.size(), tokens.size() * channels);
    expects(assertion_level::light, dpositions.empty() || dpositions.size() >= context * channels, [&] {
      return text("trireme::ops::embed_backward: ", how_many(context, "position"), " needed, but only ",
                  dpositions.extent(0), " in the table");
    });
    detail::tokens_within("embed_backward", tokens, part.whole > 0 ? part.whole : dtable.extent(0));
    for (std::int64_t row = 0; row < tokens.size(); ++row) {
      std::remove_const_t<T> const* const slope = raw(dy) + row * channels;
      auto const word = tokens[row] - part.first;
      if (word >= 0 && word < dtable.extent(0)) {
        detail::accumulate_elements(raw(dtable) + word * channels, slope, channels, 1.0);
      }
      if (dpositions.empty()) continue;
      detail::accumulate_elements(raw(dpositions) + row % context * channels, slope, channels, 1.0);
    }
  }

  /// y[b, t] += table[s], where s is the number of separators before t in the sample, at most the index of the last
  /// row.
  /// Shapes   y (B, T, C) or (B*T, C); tokens (B, T); table (S, C).
  template <class T>
  static void embed_segments(view<T> y, view<std::int32_t const> tokens, std::int32_t separator,
                             detail::input<T> table) {
    detail::same_size("embed_segments", y.size(), tokens.size() * table.extent(1));
    for_each_segment(tokens, separator, table.extent(0), [&](std::int64_t row, std::int64_t segment) {
      auto const channels = table.extent(1);
      detail::accumulate_elements(raw(y) + row * channels, raw(table) + segment * channels, channels, 1.0);
    });
  }
  /// dtable[s] += dy[b, t], in the order of rows.
  template <class G, class T>
  static void embed_segments_backward(view<G> dtable, view<T> dy, view<std::int32_t const> tokens,
                                      std::int32_t separator) {
    auto const channels = dtable.extent(1);
    detail::same_size("embed_segments_backward", dy.size(), tokens.size() * channels);
    std::remove_const_t<T> const* const slopes = raw(dy);
    for_each_segment(tokens, separator, dtable.extent(0), [&](std::int64_t row, std::int64_t segment) {
      detail::accumulate_elements(raw(dtable) + segment * channels, slopes + row * channels, channels, 1.0);
    });
  }

 private:
  // Calls f(row, segment) for each token.
  template <class F>
  static void for_each_segment(view<std::int32_t const> tokens, std::int32_t separator, std::int64_t segments,
                               F const& f) {
    auto const context = tokens.extent(tokens.rank() - 1);
    std::int64_t segment = 0;
    for (std::int64_t row = 0; row < tokens.size(); ++row) {
      if (row % context == 0) segment = 0;
      f(row, segment);
      if (tokens[row] == separator && segment + 1 < segments) ++segment;
    }
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/embedding.ipp"
#endif
