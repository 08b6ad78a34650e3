#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// A 64-bit finaliser with good avalanche (splitmix64).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// The hash of a name (FNV-1a, then mixed).
[[nodiscard]] constexpr std::uint64_t hash_name(std::string_view name) noexcept {
  std::uint64_t h = 0xCBF29CE484222325ULL;
  for (char const c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return mix(h);
}

/// The contribution of one element to a state hash. The state hash is the wrapping sum of this over all elements, so it
/// does not depend on how the state is split or in which order it is visited.
[[nodiscard]] constexpr std::uint64_t hash_element(std::uint64_t name, std::uint64_t index,
                                                   std::uint64_t bits) noexcept {
  return mix(name ^ mix(index ^ mix(bits)));
}

/// 16 hexadecimal digits.
[[nodiscard]] inline std::string hexadecimal(std::uint64_t value) {
  std::string out(16, '0');
  for (int digit = 15; digit >= 0; --digit, value >>= 4)
    out[static_cast<std::size_t>(digit)] = "0123456789abcdef"[value & 15];
  return out;
}

}  // namespace trireme
