// Trireme 0.1.0: trireme/formats/crc32c.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 085ab5c1ae22089578829da7c56f47e59513bf9a2008bd29c2881b5bb2e8a832
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/crc32c.hpp
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace trireme::formats {

namespace detail {

inline constexpr auto crc32c_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    auto c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0x82F63B78U : c >> 1;
    table[i] = c;
  }
  return table;
}();

/// One byte at a time, for any CPU.
inline std::uint32_t crc32c_plain(std::uint32_t crc, std::span<std::byte const> bytes) noexcept {
  for (auto const byte : bytes) crc = crc >> 8 ^ crc32c_table[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  return crc;
}

#if defined(__x86_64__)

/// Eight bytes at a time with the instruction of SSE4.2.
__attribute__((target("sse4.2"))) inline std::uint32_t crc32c_hardware(std::uint32_t crc,
                                                                       std::span<std::byte const> bytes) noexcept {
  std::uint64_t wide = crc;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    unsigned long long word = 0;
    std::memcpy(&word, bytes.data(), 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<std::uint32_t>(wide);
  for (auto const byte : bytes) crc = __builtin_ia32_crc32qi(crc, std::to_integer<unsigned char>(byte));
  return crc;
}

inline bool crc32c_has_hardware() noexcept {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 20)) != 0;
}

#else

inline bool crc32c_has_hardware() noexcept { return false; }
inline std::uint32_t crc32c_hardware(std::uint32_t crc, std::span<std::byte const> bytes) noexcept {
  return crc32c_plain(crc, bytes);
}

#endif

}  // namespace detail

/// The CRC-32C (Castagnoli) of some bytes; `before` is the CRC of the bytes before them.
[[nodiscard]] inline std::uint32_t crc32c(std::span<std::byte const> bytes, std::uint32_t before = 0) noexcept {
  static bool const hardware = detail::crc32c_has_hardware();
  return ~(hardware ? detail::crc32c_hardware(~before, bytes) : detail::crc32c_plain(~before, bytes));
}

}  // namespace trireme::formats
