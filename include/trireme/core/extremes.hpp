#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "trireme/core/dtype.hpp"

namespace trireme {

/// Defines reduction::max and reduction::min for floating-point numbers: they are compared as signed integers that
/// order their bits, with -0 below +0. NaN is above all numbers for max and below all for min, so it wins in both. The
/// order is total: results depend neither on the order of the terms nor on the engine, nor on an element's position in
/// a vector. (Which of several NaNs wins is fixed, but has no meaning.)
template <class T>
struct extreme_order {
  static_assert(std::is_floating_point_v<T> || storage_float<T>);
  using key =
      std::conditional_t<sizeof(T) == 8, std::int64_t, std::conditional_t<sizeof(T) == 4, std::int32_t, std::int16_t>>;
  using bits = std::make_unsigned_t<key>;

  static constexpr int sign_shift = static_cast<int>(8 * sizeof(T)) - 1;
  static constexpr key magnitude = std::numeric_limits<key>::max();
  static constexpr int mantissa_bits = sizeof(T) == 8 ? 52 : sizeof(T) == 4 ? 23 : std::is_same_v<T, bfloat16> ? 7 : 10;
  /// The number of NaN values of either sign. Keys wrap around by it, so that NaNs of both signs are on one side.
  static constexpr bits nans = (bits{1} << mantissa_bits) - 1;

  /// Negative numbers descend as their bits ascend, so their bits are inverted. Its own inverse.
  [[nodiscard]] static constexpr key turned(key x) noexcept {
    return static_cast<key>(x ^ ((x >> sign_shift) & magnitude));
  }
  /// The key of a number, for the largest of several (`Largest`) or the smallest.
  template <bool Largest>
  [[nodiscard]] static constexpr key key_of(T x) noexcept {
    auto const turned_bits = static_cast<bits>(turned(std::bit_cast<key>(x)));
    return static_cast<key>(static_cast<bits>(Largest ? turned_bits - nans : turned_bits + nans));
  }
  template <bool Largest>
  [[nodiscard]] static constexpr T number_of(key x) noexcept {
    auto const back = static_cast<bits>(Largest ? static_cast<bits>(x) + nans : static_cast<bits>(x) - nans);
    return std::bit_cast<T>(turned(static_cast<key>(back)));
  }
};

/// The larger (or smaller) of two elements, integers or floating-point numbers.
template <bool Largest, class T>
[[nodiscard]] constexpr T extreme_of(T a, T b) noexcept {
  if constexpr (std::is_integral_v<T>) {
    return Largest == (a < b) ? b : a;
  } else {
    using order = extreme_order<T>;
    return Largest == (order::template key_of<Largest>(a) < order::template key_of<Largest>(b)) ? b : a;
  }
}

}  // namespace trireme
