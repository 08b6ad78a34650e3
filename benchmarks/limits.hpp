#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "trireme/ops/host/simd.hpp"

// The measured limits of one core of this machine: products in registers, and copies of memory.

#if TRIREME_X86
// Twelve independent sums, each in its own register.
#define TRIREME_TWELVE_PRODUCTS(instruction, kind) \
  TRIREME_PRODUCT_(instruction, kind, 0)           \
  TRIREME_PRODUCT_(instruction, kind, 1)           \
  TRIREME_PRODUCT_(instruction, kind, 2)           \
  TRIREME_PRODUCT_(instruction, kind, 3)           \
  TRIREME_PRODUCT_(instruction, kind, 4)           \
  TRIREME_PRODUCT_(instruction, kind, 5)           \
  TRIREME_PRODUCT_(instruction, kind, 6)           \
  TRIREME_PRODUCT_(instruction, kind, 7)           \
  TRIREME_PRODUCT_(instruction, kind, 8)           \
  TRIREME_PRODUCT_(instruction, kind, 9)           \
  TRIREME_PRODUCT_(instruction, kind, 10)          \
  TRIREME_PRODUCT_(instruction, kind, 11)
#define TRIREME_PRODUCT_(instruction, kind, n) instruction " %%" kind "15, %%" kind "15, %%" kind #n "\n\t"
#define TRIREME_SUM_REGISTERS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm15"

inline void float_products_avx2(std::int64_t rounds) {
  asm volatile("vzeroall" : : : TRIREME_SUM_REGISTERS, "xmm12", "xmm13", "xmm14");
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(TRIREME_TWELVE_PRODUCTS("vfmadd231ps", "ymm") : : : TRIREME_SUM_REGISTERS);
  }
  asm volatile("vzeroupper");
}
inline void float_products_avx512(std::int64_t rounds) {
  asm volatile("vzeroall" : : : TRIREME_SUM_REGISTERS, "xmm12", "xmm13", "xmm14");
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(TRIREME_TWELVE_PRODUCTS("vfmadd231ps", "zmm") : : : TRIREME_SUM_REGISTERS);
  }
  asm volatile("vzeroupper");
}
inline void pair_products_avx512(std::int64_t rounds) {
  asm volatile("vzeroall" : : : TRIREME_SUM_REGISTERS, "xmm12", "xmm13", "xmm14");
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(TRIREME_TWELVE_PRODUCTS("vdpbf16ps", "zmm") : : : TRIREME_SUM_REGISTERS);
  }
  asm volatile("vzeroupper");
}
inline void tile_products(std::int64_t rounds) {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t unused[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } static constexpr shapes;
  asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
        "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
        "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
        "tdpbf16ps %%tmm7, %%tmm5, %%tmm3"
        :
        :);
  }
  asm volatile("tilerelease");
}
#endif

/// The best of `rounds` rounds, per second: each does `amount` of work.
template <class Body>
double best_rate(int rounds, double amount, Body const& body) {
  double seconds = 1e9;
  for (int round = 0; round < rounds; ++round) {
    auto const start = std::chrono::steady_clock::now();
    body();
    seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return amount / seconds;
}

/// GFLOP/s of one core in products at a CPU level; 0 if it is not known.
inline double product_limit([[maybe_unused]] trireme::ops::cpu_level level, [[maybe_unused]] bool bf16) {
#if TRIREME_X86
  using trireme::ops::cpu_level;
  constexpr std::int64_t rounds = 1 << 14;  // short, so that some run undisturbed
  auto const rate = [&](double flops, auto const& kernel) {
    return best_rate(200, flops * static_cast<double>(rounds), [&] { kernel(rounds); }) * 1e-9;
  };
  if (bf16 && level == cpu_level::amx) return rate(4.0 * 2 * 16 * 16 * 32, tile_products);
  if (bf16 && level == cpu_level::avx512_bf16) return rate(12.0 * 2 * 32, pair_products_avx512);
  if (level >= cpu_level::avx512) return rate(12.0 * 2 * 16, float_products_avx512);
  if (level == cpu_level::avx2) return rate(12.0 * 2 * 8, float_products_avx2);
#endif
  return 0;
}

/// GB/s of one core that copies memory far larger than its caches, counting bytes read and written.
inline double memory_limit() {
  std::vector<char> from(std::size_t{256} << 20, 1);
  std::vector<char> to(from.size(), 2);
  return best_rate(9, 2.0 * static_cast<double>(from.size()),
                   [&] {
                     std::memcpy(to.data(), from.data(), from.size());
                     asm volatile("" : : "r"(to.data()) : "memory");
                   }) *
         1e-9;
}
