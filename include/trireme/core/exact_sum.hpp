#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// A sum of doubles without rounding: the state has the same bits whatever the order of the terms, and whichever ranks
/// added them.
///
/// Why: a norm over shards must not depend on the number of ranks. The state is an array of integers; ranks add theirs
/// by an int64 all-reduce over `state()`, and `value()` rounds once, to nearest even.
/// Numerics exact for every finite double. Up to 2^31 terms may be added to one state (each limb holds 32 bits of the
///          sum and 31 of carries). A term that is not finite makes the value NaN.
/// Bytes    544. About 5 ns a term: add sums of blocks, not single numbers.
class exact_sum {
 public:
  /// Limb i counts units of 2^(32 i - 1074); the last number counts the terms that were not finite.
  static constexpr std::size_t limbs = 67;

  /// What a term adds to three neighbouring numbers of the state, from number `limb` on.
  struct parts {
    std::size_t limb;
    std::int64_t values[3];
  };
  [[nodiscard]] static constexpr parts parts_of(double term) noexcept {
    auto const bits = std::bit_cast<std::uint64_t>(term);
    auto const exponent = static_cast<unsigned>(bits >> 52) & 0x7ffU;
    if (exponent == 0x7ffU) return {limbs - 2, {0, 0, 1}};
    std::uint64_t const fraction = bits & 0xf'ffff'ffff'ffffULL;
    std::uint64_t const mantissa = exponent == 0 ? fraction : fraction | 1ULL << 52;
    unsigned const shift = exponent == 0 ? 0 : exponent - 1;
    // 53 bits, shifted by at most 31, fit in three limbs.
    std::uint64_t const low = (mantissa & 0xffff'ffffU) << (shift % 32);
    std::uint64_t const high = (mantissa >> 32) << (shift % 32);
    std::int64_t const sign = (bits >> 63) != 0 ? -1 : 1;
    return {shift / 32,
            {sign * static_cast<std::int64_t>(low & 0xffff'ffffU),
             sign * static_cast<std::int64_t>((low >> 32) + (high & 0xffff'ffffU)),
             sign * static_cast<std::int64_t>(high >> 32)}};
  }

  constexpr void add(double term) noexcept {
    auto const more = parts_of(term);
    state_[more.limb] += more.values[0];
    state_[more.limb + 1] += more.values[1];
    state_[more.limb + 2] += more.values[2];
  }

  constexpr void add(exact_sum const& other) noexcept {
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += other.state_[i];
  }

  /// The integers to be summed over ranks.
  [[nodiscard]] constexpr std::span<std::int64_t, limbs + 1> state() noexcept { return state_; }
  [[nodiscard]] constexpr std::span<std::int64_t const, limbs + 1> state() const noexcept { return state_; }

  /// How many terms were not finite.
  [[nodiscard]] constexpr std::int64_t non_finite() const noexcept { return state_[limbs]; }

  /// The sum, rounded once; infinity beyond the largest double, NaN if a term was not finite.
  [[nodiscard]] double value() const noexcept {
    if (non_finite() != 0) return std::numeric_limits<double>::quiet_NaN();
    auto digits = state_;
    bool const negative = carry(digits) < 0;
    if (negative) {
      digits = state_;
      for (auto& digit : digits) digit = -digit;
      carry(digits);
    }
    std::size_t top = limbs;
    while (top > 0 && digits[top] == 0) --top;
    int const width = 64 - std::countl_zero(static_cast<std::uint64_t>(digits[top]));
    auto const bit_length = static_cast<std::int64_t>(top) * 32 + width;
    // the top 53 bits; the bits below decide the rounding.
    auto const lowest = bit_length > 53 ? bit_length - 53 : 0;
    std::uint64_t mantissa = 0;
    for (auto position = bit_length - 1; position >= lowest; --position)
      mantissa = mantissa << 1 | bit(digits, position);
    if (lowest > 0 && bit(digits, lowest - 1) != 0) {
      bool sticky = false;
      for (auto position = lowest - 2; position >= 0 && !sticky; --position) sticky = bit(digits, position) != 0;
      if (sticky || (mantissa & 1U) != 0) ++mantissa;
    }
    double const magnitude = std::ldexp(static_cast<double>(mantissa), static_cast<int>(lowest - 1074));
    return negative ? -magnitude : magnitude;
  }

  friend constexpr bool operator==(exact_sum const&, exact_sum const&) = default;

 private:
  using digits_type = std::array<std::int64_t, limbs + 1>;

  // Moves what exceeds 32 bits upwards (the last number keeps the rest); negative if the whole number is.
  static constexpr std::int64_t carry(digits_type& digits) noexcept {
    std::int64_t over = 0;
    for (std::size_t i = 0; i < limbs; ++i) {
      over += digits[i];
      digits[i] = over & 0xffff'ffff;
      over >>= 32;
    }
    return digits[limbs] = over;
  }
  static constexpr std::uint64_t bit(digits_type const& digits, std::int64_t position) noexcept {
    // The last number may exceed 32 bits, so it is not cut.
    auto const limb = std::min<std::size_t>(static_cast<std::size_t>(position / 32), limbs);
    return static_cast<std::uint64_t>(digits[limb]) >> (position - static_cast<std::int64_t>(limb) * 32) & 1U;
  }

  digits_type state_{};
};

}  // namespace trireme
