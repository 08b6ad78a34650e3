#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "trireme/core/dialect.hpp"

namespace trireme::ops::detail {

/// The magnitude of a floating-point number as an integer with the same order; NaN is largest.
template <class G>
auto magnitude_bits(G x) {
  using bits = std::conditional_t<sizeof(G) == 8, std::uint64_t, std::uint32_t>;
  return static_cast<bits>(std::bit_cast<bits>(x) & (static_cast<bits>(~bits{0}) >> 1));
}

/// Indices of the k largest magnitudes, ascending. A histogram of the leading bits finds the bin of the k-th; only that
/// bin's elements are sorted.
template <class G>
void select_largest(G const* x, std::int64_t n, std::int32_t* indices, std::int64_t k) {
  if (k <= 0) return;
  if (k >= n) {
    for (std::int64_t i = 0; i < n; ++i) indices[i] = static_cast<std::int32_t>(i);
    return;
  }
  constexpr int shift = static_cast<int>(sizeof(G)) * 8 - 1 - 12;
  constexpr std::size_t bins = std::size_t{1} << 12;
  // Four histograms, because neighbours tend to fall into the same bin.
  thread_local std::array<std::array<std::int32_t, bins>, 4> histograms;
  for (auto& histogram : histograms) histogram.fill(0);
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) ++histograms[j][magnitude_bits(x[i + static_cast<std::int64_t>(j)]) >> shift];
  }
  for (; i < n; ++i) ++histograms[0][magnitude_bits(x[i]) >> shift];

  std::int64_t above = 0;  // elements in the bins above `bin`
  std::size_t bin = bins - 1;
  for (;; --bin) {
    std::int64_t const here =
        std::int64_t{histograms[0][bin]} + histograms[1][bin] + histograms[2][bin] + histograms[3][bin];
    if (above + here >= k) break;
    above += here;
  }

  thread_local std::vector<std::int32_t> edge;
  edge.clear();
  std::int64_t found = 0;
  for (i = 0; i < n; ++i) {
    auto const at = static_cast<std::size_t>(magnitude_bits(x[i]) >> shift);
    if (at < bin) continue;
    if (at > bin) {
      indices[found++] = static_cast<std::int32_t>(i);
    } else {
      edge.push_back(static_cast<std::int32_t>(i));
    }
  }
  auto const wanted = edge.begin() + (k - above);
  if (wanted != edge.end()) {
    std::nth_element(edge.begin(), wanted, edge.end(), [x](std::int32_t a, std::int32_t b) {
      auto const left = magnitude_bits(x[a]);
      auto const right = magnitude_bits(x[b]);
      return left != right ? left > right : a < b;
    });
    std::sort(edge.begin(), wanted);
  }
  // Merges two ascending lists in place, from the back.
  auto* to = indices + k;
  auto* first = indices + above;
  auto second = wanted;
  while (second != edge.begin()) {
    if (first != indices && *(first - 1) > *(second - 1)) {
      *--to = *--first;
    } else {
      *--to = *--second;
    }
  }
}

}  // namespace trireme::ops::detail
