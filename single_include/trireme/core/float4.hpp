// Trireme 0.1.0: trireme/core/float4.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: a3726d95bb1eac1d8886dc8d90d40a281551457b3d8161496a1b0f096bdeb9eb
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/core/float4.hpp
#include <bit>
#include <cstdint>
#include <limits>

namespace trireme {

/// A 4-bit floating-point number, E2M1 of the Microscaling formats: a sign and 0, 0.5, 1, 1.5, 2, 3, 4 or 6, in the low
/// bits of a byte. Storage only; arithmetic happens in float.
///
/// Numerics  converts from float by rounding to nearest, ties to even; larger numbers and infinities become 6, and NaN
///           becomes a zero, because the format has neither. All codes, and all numbers halfway between two, are as in
///           the package ml-dtypes.
struct float4_e2m1 {
  std::uint8_t bits = 0;

  float4_e2m1() = default;
  constexpr explicit float4_e2m1(float value) noexcept {
    auto const raw = std::bit_cast<std::uint32_t>(value);
    auto const size = raw & 0x7fff'ffffU;
    if (size > 0x7f80'0000U) {
      bits = raw >> 31 == 0 ? 8 : 0;
      return;
    }
    // The ties, of which each second one rounds down: to the even code.
    constexpr float ties[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5};
    auto const x = std::bit_cast<float>(size);
    std::uint32_t code = 0;
    for (std::uint32_t i = 0; i < 7; ++i) code += (i % 2 == 0 ? x > ties[i] : x >= ties[i]) ? 1U : 0U;
    bits = static_cast<std::uint8_t>((raw >> 28 & 8U) | code);
  }
  /// The largest number.
  [[nodiscard]] static constexpr float4_e2m1 max() noexcept {
    float4_e2m1 out;
    out.bits = 7;
    return out;
  }

  constexpr explicit operator float() const noexcept {
    constexpr float numbers[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    auto const size = numbers[bits & 7U];
    return (bits & 8U) != 0 ? -size : size;
  }
  friend constexpr bool operator==(float4_e2m1 a, float4_e2m1 b) noexcept {
    return exactly_equal(static_cast<float>(a), static_cast<float>(b));
  }
};

/// An 8-bit scale, E8M0 of the Microscaling formats: a power of two from 2^-127 to 2^127, or NaN. Storage only.
struct float8_e8m0 {
  std::uint8_t bits = 127;

  float8_e8m0() = default;
  /// 2^exponent, at most 2^127 and at least 2^-127.
  [[nodiscard]] static constexpr float8_e8m0 power(int exponent) noexcept {
    float8_e8m0 out;
    out.bits = static_cast<std::uint8_t>(exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127);
    return out;
  }
  constexpr explicit operator float() const noexcept {
    if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(bits == 0 ? 0x0040'0000U : static_cast<std::uint32_t>(bits) << 23);
  }
};

}  // namespace trireme
