#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "trireme/contract/communicator.hpp"

namespace trireme::comm::detail {

/// What values of T are combined in: float for bfloat16, which is rounded once at the end.
template <class T>
using combine_t = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

template <class T>
[[nodiscard]] constexpr T combined(reduction::sum, T a, T b) noexcept {
  return static_cast<T>(a + b);
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::max, T a, T b) noexcept {
  return a < b ? b : a;
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::min, T a, T b) noexcept {
  return b < a ? b : a;
}

/// outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this order. An output may be a term, but not overlap one
/// partly.
template <class Op, class T>
void combine(std::span<T* const> outputs, std::span<T const* const> terms, std::int64_t count) {
  using A = combine_t<T>;
  constexpr std::int64_t block = 1024;
  A sums[block];
  for (std::int64_t first = 0; first < count; first += block) {
    auto const n = std::min(block, count - first);
    T const* term = terms[0] + first;
    for (std::int64_t i = 0; i < n; ++i) sums[i] = static_cast<A>(term[i]);
    for (std::size_t t = 1; t < terms.size(); ++t) {
      term = terms[t] + first;
      for (std::int64_t i = 0; i < n; ++i) sums[i] = combined(Op{}, sums[i], static_cast<A>(term[i]));
    }
    T* const out = outputs[0] + first;
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sums[i]);
    for (std::size_t o = 1; o < outputs.size(); ++o)
      std::memcpy(outputs[o] + first, out, static_cast<std::size_t>(n) * sizeof(T));
  }
}

}  // namespace trireme::comm::detail
