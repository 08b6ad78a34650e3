// Trireme 0.1.0: trireme/core/float8.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: fd5a5085d9cf92c6f52d53899a8bbfffce394c398e0ca70a701bac9b7f958ad3
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/core/float8.hpp
#include <bit>
#include <cstdint>
#include <limits>

namespace trireme {

/// An 8-bit floating-point number: a sign, an exponent and so many bits behind the point. Storage only; arithmetic
/// happens in float.
///
/// Numerics  converts from float by rounding to nearest, ties to even; subnormals are kept. With infinities (E5M2,
///           as in IEEE 754) larger numbers become infinite; without (E4M3 of [Micikevicius et al., 2022]: exponent 15
///           has numbers, too, and a NaN) they become NaN. saturated() makes them the largest number. All codes, and
///           all numbers halfway between two, are as in the package ml-dtypes.
template <int Fraction, int Bias, bool Infinities>
struct float8 {
  std::uint8_t bits = 0;

  static constexpr std::uint32_t largest_bits = Infinities ? (0x7fU - (1U << Fraction)) : 0x7eU;
  static constexpr std::uint32_t nan_bits = Infinities ? 0x7eU : 0x7fU;

  float8() = default;
  constexpr explicit float8(float value) noexcept {
    auto const raw = std::bit_cast<std::uint32_t>(value);
    auto const size = raw & 0x7fff'ffffU;
    std::uint32_t code = nan_bits;
    if (size <= 0x7f80'0000U) {
      code = rounded(size);
      if (code > largest_bits) code = Infinities ? largest_bits + 1 : nan_bits;
    }
    bits = static_cast<std::uint8_t>((raw >> 24 & 0x80U) | code);
  }
  /// The nearest number; the largest one of its sign for larger ones and infinities.
  [[nodiscard]] static constexpr float8 saturated(float value) noexcept {
    auto const raw = std::bit_cast<std::uint32_t>(value);
    auto const size = raw & 0x7fff'ffffU;
    float8 out(value);
    if (size <= 0x7f80'0000U && (out.bits & 0x7fU) > largest_bits)
      out.bits = static_cast<std::uint8_t>((raw >> 24 & 0x80U) | largest_bits);
    return out;
  }
  /// The largest number.
  [[nodiscard]] static constexpr float8 max() noexcept {
    float8 out;
    out.bits = static_cast<std::uint8_t>(largest_bits);
    return out;
  }

  constexpr explicit operator float() const noexcept {
    std::uint32_t const size = bits & 0x7fU;
    float out = 0;
    if (size > largest_bits) {
      out = Infinities && size == largest_bits + 1 ? std::numeric_limits<float>::infinity()
                                                   : std::numeric_limits<float>::quiet_NaN();
    } else if (size >= 1U << Fraction) {
      out = std::bit_cast<float>((size << (23 - Fraction)) + (static_cast<std::uint32_t>(127 - Bias) << 23));
    } else {
      out = static_cast<float>(size) * least;
    }
    return (bits & 0x80U) != 0 ? -out : out;
  }
  constexpr explicit operator double() const noexcept { return static_cast<float>(*this); }
  friend constexpr bool operator==(float8 a, float8 b) noexcept {
    return exactly_equal(static_cast<float>(a), static_cast<float>(b));
  }

 private:
  // The spacing of the subnormals, which is the smallest of them.
  static constexpr float least = std::bit_cast<float>(static_cast<std::uint32_t>(128 - Bias - Fraction) << 23);

  // Of a number that is not NaN; without a limit above.
  static constexpr std::uint32_t rounded(std::uint32_t size) noexcept {
    constexpr int shift = 23 - Fraction;
    if (size >= static_cast<std::uint32_t>(128 - Bias) << 23) {  // normal
      auto const code = size - (static_cast<std::uint32_t>(127 - Bias) << 23);
      return (code + (1U << (shift - 1)) - 1 + (code >> shift & 1U)) >> shift;
    }
    constexpr float spaced = least * 0x1p23F;  // next to it, a float has the spacing of the subnormals
    return std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + spaced) - std::bit_cast<std::uint32_t>(spaced);
  }
};

/// 4 bits of exponent, 3 behind the point: up to 448, no infinities.
using float8_e4m3 = float8<3, 7, false>;
/// 5 bits of exponent, 2 behind the point: up to 57344.
using float8_e5m2 = float8<2, 15, true>;

}  // namespace trireme
