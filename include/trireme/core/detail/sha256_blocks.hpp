#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "trireme/core/dialect.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace trireme::detail {

using sha256_state = std::array<std::uint32_t, 8>;

inline constexpr sha256_state sha256_start{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

alignas(16) inline constexpr std::array<std::uint32_t, 64> sha256_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/// The compression function over `count` blocks of 64 bytes, on any machine.
inline void sha256_blocks_plain(sha256_state& state, std::byte const* data, std::size_t count) noexcept {
  for (; count > 0; --count, data += 64) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) {
      std::uint32_t word = 0;
      for (std::size_t b = 0; b < 4; ++b) word = word << 8 | static_cast<std::uint32_t>(data[4 * i + b]);
      w[i] = word;
    }
    for (std::size_t i = 16; i < 64; ++i) {
      auto const s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      auto const s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
      auto const s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      auto const t1 = h + s1 + ((e & f) ^ (~e & g)) + sha256_constants[i] + w[i];
      auto const s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      auto const t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    sha256_state const add{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
  }
}

#if defined(__x86_64__)

// Compiler builtins and vector types instead of <immintrin.h>: that header costs half a second of compile time.
using sha256_words = int __attribute__((vector_size(16)));

__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_words sha256_load(void const* from) noexcept {
  sha256_words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_words sha256_load_swapped(
    std::byte const* from) noexcept {
  char __attribute__((vector_size(16))) bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return reinterpret_cast<sha256_words>(
      __builtin_shufflevector(bytes, bytes, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12));
}

/// Wrapping addition: lanes of the builtins' signed type would overflow.
__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_words sha256_add(sha256_words a,
                                                                                    sha256_words b) noexcept {
  using wrapping = unsigned __attribute__((vector_size(16)));
  return reinterpret_cast<sha256_words>(reinterpret_cast<wrapping>(a) + reinterpret_cast<wrapping>(b));
}

/// Four rounds.
__attribute__((target("sha,sse4.1"), always_inline)) inline void sha256_rounds(sha256_words& abef, sha256_words& cdgh,
                                                                               sha256_words message,
                                                                               std::uint32_t const* k) noexcept {
  auto const keyed = sha256_add(message, sha256_load(k));
  cdgh = __builtin_ia32_sha256rnds2(cdgh, abef, keyed);
  abef = __builtin_ia32_sha256rnds2(abef, cdgh, __builtin_shufflevector(keyed, keyed, 2, 3, 0, 1));
}

/// The four message words that replace m0, from all sixteen before.
__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_words sha256_schedule(sha256_words m0,
                                                                                         sha256_words m1,
                                                                                         sha256_words m2,
                                                                                         sha256_words m3) noexcept {
  auto const sum = sha256_add(__builtin_ia32_sha256msg1(m0, m1), __builtin_shufflevector(m2, m3, 1, 2, 3, 4));
  return __builtin_ia32_sha256msg2(sum, m3);
}

/// The same with the SHA instructions.
__attribute__((target("sha,sse4.1"))) inline void sha256_blocks_hardware(sha256_state& state, std::byte const* data,
                                                                         std::size_t count) noexcept {
  auto const abcd = sha256_load(state.data());
  auto const efgh = sha256_load(state.data() + 4);
  auto abef = __builtin_shufflevector(abcd, efgh, 5, 4, 1, 0);
  auto cdgh = __builtin_shufflevector(abcd, efgh, 7, 6, 3, 2);
  for (; count > 0; --count, data += 64) {
    auto const abef_before = abef;
    auto const cdgh_before = cdgh;
    auto m0 = sha256_load_swapped(data);
    auto m1 = sha256_load_swapped(data + 16);
    auto m2 = sha256_load_swapped(data + 32);
    auto m3 = sha256_load_swapped(data + 48);
    auto const* k = sha256_constants.data();
    for (int sixteen = 0; sixteen < 3; ++sixteen, k += 16) {
      sha256_rounds(abef, cdgh, m0, k);
      m0 = sha256_schedule(m0, m1, m2, m3);
      sha256_rounds(abef, cdgh, m1, k + 4);
      m1 = sha256_schedule(m1, m2, m3, m0);
      sha256_rounds(abef, cdgh, m2, k + 8);
      m2 = sha256_schedule(m2, m3, m0, m1);
      sha256_rounds(abef, cdgh, m3, k + 12);
      m3 = sha256_schedule(m3, m0, m1, m2);
    }
    sha256_rounds(abef, cdgh, m0, k);
    sha256_rounds(abef, cdgh, m1, k + 4);
    sha256_rounds(abef, cdgh, m2, k + 8);
    sha256_rounds(abef, cdgh, m3, k + 12);
    abef = sha256_add(abef, abef_before);
    cdgh = sha256_add(cdgh, cdgh_before);
  }
  auto const first = __builtin_shufflevector(abef, cdgh, 3, 2, 7, 6);
  auto const second = __builtin_shufflevector(abef, cdgh, 1, 0, 5, 4);
  std::memcpy(state.data(), &first, 16);
  std::memcpy(state.data() + 4, &second, 16);
}

/// Whether this machine has the SHA instructions. (`__builtin_cpu_supports` of GCC 12 does not know "sha".)
inline bool sha256_has_hardware() noexcept {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  bool const vectors = (c & (1U << 9)) != 0 && (c & (1U << 19)) != 0;  // SSSE3 and SSE4.1
  return vectors && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1U << 29)) != 0;
}

#else

inline bool sha256_has_hardware() noexcept { return false; }
inline void sha256_blocks_hardware(sha256_state& state, std::byte const* data, std::size_t count) noexcept {
  sha256_blocks_plain(state, data, count);
}

#endif

/// Uses the SHA instructions if this machine has them.
inline void sha256_blocks(sha256_state& state, std::byte const* data, std::size_t count) noexcept {
  static bool const hardware = sha256_has_hardware();
  hardware ? sha256_blocks_hardware(state, data, count) : sha256_blocks_plain(state, data, count);
}

}  // namespace trireme::detail
