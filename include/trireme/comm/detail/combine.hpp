#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/extremes.hpp"
#include "trireme/ops/host/reductions.hpp"

namespace trireme::comm::detail {

/// The type in which values of T are combined: sums of bfloat16 and float16 in float, rounded once at the end.
template <class Op, class T>
using combine_t =
    std::conditional_t<storage_float<T> && !std::is_same_v<Op, reduction::max> && !std::is_same_v<Op, reduction::min>,
                       float, T>;

template <class T>
[[nodiscard]] constexpr T combined(reduction::sum, T a, T b) noexcept {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));  // wraps
  else
    return a + b;
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::mean, T a, T b) noexcept {
  return a + b;
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::max, T a, T b) noexcept {
  return extreme_of<true>(a, b);
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::min, T a, T b) noexcept {
  return extreme_of<false>(a, b);
}

/// combine() for a user's reduction, whose values need not be aligned.
template <class Op, class T>
void combine_own(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count) {
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
  auto const at = [](void const* values, std::int64_t i) {
    T value;
    std::memcpy(&value, static_cast<std::byte const*>(values) + i * bytes, sizeof(T));
    return value;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    T total = at(terms[0], i);
    for (auto const* term : terms.subspan(1)) total = Op{}(total, at(term, i));
    for (auto* output : outputs) std::memcpy(static_cast<std::byte*>(output) + i * bytes, &total, sizeof(T));
  }
}

/// outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this order (pairwise: in the tree over them); a mean is then
/// divided by `divisor`. An output may be one of the terms, but must not overlap a term partly.
template <class Op, class T>
void combine(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count,
             [[maybe_unused]] int divisor) {
  if constexpr (std::is_base_of_v<reduction::own, Op>) {
    combine_own<Op, T>(outputs, terms, count);
  } else {
    [[maybe_unused]] constexpr bool mean = std::is_same_v<Op, reduction::mean>;
    if constexpr (!std::is_same_v<Op, reduction::pairwise>) {
      if (count * static_cast<std::int64_t>(sizeof(T)) <= 64) {  // too few for a kernel
        for (std::int64_t i = 0; i < count; ++i) {
          auto total = static_cast<combine_t<Op, T>>(static_cast<T const*>(terms[0])[i]);
          for (auto const* term : terms.subspan(1))
            total = combined(Op{}, total, static_cast<combine_t<Op, T>>(static_cast<T const*>(term)[i]));
          if constexpr (mean) total /= static_cast<combine_t<Op, T>>(divisor);
          for (auto* output : outputs) static_cast<T*>(output)[i] = static_cast<T>(total);
        }
        return;
      }
    }
    ops::host_reductions::reduce<T, Op>(outputs, terms, count, Op{}, divisor);
  }
}

}  // namespace trireme::comm::detail
