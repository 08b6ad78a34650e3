// Trireme 0.1.0: trireme/ops/host/integer_products.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 2567bd6a3d21b0e94b8681071c46cf20638ca2be62b1efa558172fa89807dd71
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/ops/host/integer_products.hpp
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#ifndef TRIREME_OPS_HOST_DETAIL_INTEGER_KERNELS_INCLUDED
#define TRIREME_OPS_HOST_DETAIL_INTEGER_KERNELS_INCLUDED

// ---- trireme/ops/host/detail/integer_kernels.hpp
#include <bit>
#include <vector>

// Kernels of products of integers. A row of the left operand is cut into blocks, and each block becomes 8-bit integers
// times a scale; so does each block of a column of the weight. Sums within a block are exact, and blocks are added in
// order with one rounding each, so results are equal on all CPU levels and do not depend on which rows are computed
// together.
//
// The instructions multiply signed by unsigned numbers: weights are stored as w + 128, and a sum begins with -128 times
// the sum of the row's integers.
namespace trireme::ops::detail {

/// Elements along k that are packed together, and columns of a strip.
inline constexpr std::int64_t integer_chunk = 64;
inline constexpr std::int64_t integer_strip = 32;
/// Bytes of a strip's chunk: in each of 16 steps 32 columns with 4 elements each.
inline constexpr std::int64_t integer_chunk_bytes = integer_chunk * integer_strip;
/// Bytes of a strip's scales of one block.
inline constexpr std::int64_t integer_scale_bytes = integer_strip * std::int64_t{sizeof(float)};

/// One row of a left operand as integers.
template <class T>
struct integer_row_job {
  std::int8_t* to;      // whole chunks, zeros behind k
  float* scales;        // one a block; NaN if the block is not finite
  std::int32_t* begin;  // one a block: what its sums begin with
  T const* from;
  std::int64_t k;
  std::int64_t block;  // elements of a block: whole chunks
};

/// c (rows, 32) = x w for rows of integers and one strip of columns.
struct integer_job {
  std::int8_t const* x;
  std::int64_t x_row;  // bytes
  float const* scales;
  std::int32_t const* begin;
  std::int64_t blocks;  // numbers of a row of `scales` and of `begin`
  std::uint8_t const* w;
  std::int64_t chunks;           // of the whole sum
  std::int64_t chunks_in_block;  // the last block may have fewer
  float* c;                      // 32 numbers a row
};

/// The kernels of a CPU level.
struct integer_kernels {
  char const* name;
  cpu_level level;  // from which on they are used
  void (*float_row)(integer_row_job<float> const&);
  void (*bfloat16_row)(integer_row_job<bfloat16> const&);
  std::int64_t rows;  // of `tile`; four() and one() compute those that are left
  bool pads;          // `tile` also computes fewer rows, with others behind them that do not matter
  void (*tile)(integer_job const&);
  void (*four)(integer_job const&);
  void (*one)(integer_job const&);
  void (*unpack)(std::uint8_t* to, std::uint8_t const* from);  // a strip's chunk of 4 bits a number to 8
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

/// The scale of a block whose largest magnitude has these bits; NaN if it is not finite.
[[nodiscard]] inline float integer_scale(std::int32_t largest_bits) noexcept {
  constexpr std::int32_t infinity = 0x7f800000;
  if (largest_bits >= infinity) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(largest_bits) / 127;
}
/// What a number is multiplied by before it is rounded; 0 for a block of zeros, or one that is not finite.
[[nodiscard]] inline float integer_inverse(std::int32_t largest_bits) noexcept {
  constexpr std::int32_t infinity = 0x7f800000;
  constexpr std::int32_t least = 0x01800000;  // 2^-124: the inverse of anything smaller is not finite
  if (largest_bits >= infinity || largest_bits < least) return 0;
  return 127 / std::bit_cast<float>(largest_bits);
}

namespace baseline {

template <class T>
void integer_row(integer_row_job<T> const& job) {
  auto const padded = (job.k + integer_chunk - 1) / integer_chunk * integer_chunk;
  for (std::int64_t first = 0, b = 0; first < job.k; first += job.block, ++b) {
    auto const end = std::min(job.k, first + job.block);
    std::int32_t largest = 0;
    for (auto i = first; i < end; ++i) {
      auto const bits = std::bit_cast<std::int32_t>(static_cast<float>(job.from[i])) & 0x7fffffff;
      largest = std::max(largest, bits);
    }
    auto const inverse = integer_inverse(largest);
    std::int32_t sum = 0;
    for (auto i = first; i < end; ++i) {
      auto const x = static_cast<float>(job.from[i]);
      auto const q = inverse > 0 ? static_cast<std::int32_t>(std::nearbyint(x * inverse)) : 0;
      job.to[i] = static_cast<std::int8_t>(q);
      sum += q;
    }
    job.scales[b] = integer_scale(largest);
    job.begin[b] = -128 * sum;
  }
  std::fill(job.to + job.k, job.to + padded, std::int8_t{0});
}

template <int Rows>
void integer_tile(integer_job const& job) {
  for (int r = 0; r < Rows; ++r) {
    float* const c = job.c + r * integer_strip;
    std::fill_n(c, integer_strip, 0.0F);
    auto const* w = job.w;
    for (std::int64_t chunk = 0, b = 0; chunk < job.chunks; chunk += job.chunks_in_block, ++b) {
      auto const here = std::min(job.chunks_in_block, job.chunks - chunk);
      auto const* const scales = elements_at<float>(w);
      w += integer_scale_bytes;
      std::array<std::int32_t, integer_strip> sums;
      sums.fill(job.begin[r * job.blocks + b]);
      auto const* x = job.x + r * job.x_row + chunk * integer_chunk;
      for (std::int64_t step = 0; step < here * (integer_chunk / 4); ++step, x += 4) {
        for (auto& sum : sums) {
          for (int i = 0; i < 4; ++i) sum += std::int32_t{x[i]} * std::int32_t{w[i]};
          w += 4;
        }
      }
      auto const scale = job.scales[r * job.blocks + b];
      for (std::size_t j = 0; j < integer_strip; ++j)
        c[j] = std::fma(static_cast<float>(sums[j]), scale * scales[j], c[j]);
    }
  }
}

inline void integer_unpack(std::uint8_t* to, std::uint8_t const* from) {
  constexpr auto half = integer_chunk_bytes / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    to[i] = static_cast<std::uint8_t>((from[i] & 15) + 120);
    to[half + i] = static_cast<std::uint8_t>((from[i] >> 4) + 120);
  }
}

}  // namespace baseline
}  // namespace trireme::ops::detail

#if TRIREME_X86

/// A tile, `Vectors` vectors of Width columns at a time, so that all sums of a block are in registers.
#define TRIREME_INTEGER_TILE(Rows, Vectors, Width, zero, set, load, add_products, add_scaled)                   \
  for (std::int64_t column = 0; column < integer_strip; column += Vectors * Width) {                            \
    auto const* w = job.w;                                                                                      \
    for (std::int64_t chunk = 0, b = 0; chunk < job.chunks; chunk += job.chunks_in_block, ++b) {                \
      auto const here = std::min(job.chunks_in_block, job.chunks - chunk);                                      \
      auto const* const scales = elements_at<float>(w) + column;                                                \
      w += integer_scale_bytes + 4 * column;                                                                    \
      decltype(set(0)) sum[std::size_t{Rows}][Vectors];                                                         \
      TRIREME_UNROLL                                                                                            \
      for (int r = 0; r < Rows; ++r) {                                                                          \
        TRIREME_UNROLL                                                                                          \
        for (int v = 0; v < Vectors; ++v) sum[r][v] = zero(job.begin[r * job.blocks + b]);                      \
      }                                                                                                         \
      auto const* x = job.x + chunk * integer_chunk;                                                            \
      for (auto step = here * (integer_chunk / 4); step > 0; --step, x += 4, w += 4 * integer_strip) {          \
        decltype(set(0)) of[Vectors];                                                                           \
        TRIREME_UNROLL                                                                                          \
        for (int v = 0; v < Vectors; ++v) of[v] = load(w + 4 * v * Width);                                      \
        auto const* row = x;                                                                                    \
        TRIREME_UNROLL                                                                                          \
        for (int r = 0; r < Rows; ++r, row += job.x_row) {                                                      \
          auto const four = set(word_at(elements_at<char>(row)));                                               \
          TRIREME_UNROLL                                                                                        \
          for (int v = 0; v < Vectors; ++v) sum[r][v] = add_products(sum[r][v], of[v], four);                   \
        }                                                                                                       \
      }                                                                                                         \
      w -= 4 * column;                                                                                          \
      TRIREME_UNROLL                                                                                            \
      for (int r = 0; r < Rows; ++r) {                                                                          \
        TRIREME_UNROLL                                                                                          \
        for (int v = 0; v < Vectors; ++v) {                                                                     \
          add_scaled(job.c + r * integer_strip + column + v * Width, sum[r][v], job.scales[r * job.blocks + b], \
                     scales + v * Width, b == 0);                                                               \
        }                                                                                                       \
      }                                                                                                         \
    }                                                                                                           \
  }

TRIREME_TARGET_AVX2_BEGIN
namespace trireme::ops::detail::avx2 {

template <class T>
inline void integer_row(integer_row_job<T> const& job) {
  auto const padded = (job.k + integer_chunk - 1) / integer_chunk * integer_chunk;
  for (std::int64_t first = 0, b = 0; first < job.k; first += job.block, ++b) {
    auto const end = std::min(job.k, first + job.block);
    __m256i most = _mm256_setzero_si256();
    for (auto i = first; i < end; i += 8) {
      __m256i const bits =
          _mm256_castps_si256(lanes::load(job.from + i, static_cast<int>(std::min<std::int64_t>(8, end - i))).v);
      most = _mm256_max_epi32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    alignas(32) std::int32_t each[8];
    _mm256_store_si256(m256i_at(each), most);
    std::int32_t largest = 0;
    for (auto const one : each) largest = one > largest ? one : largest;
    auto const inverse = integer_inverse(largest);
    __m256 const by = _mm256_set1_ps(inverse);
    __m256i sum = _mm256_setzero_si256();
    auto i = first;
    for (; i < end; i += 8) {
      __m256 const x = lanes::load(job.from + i, static_cast<int>(std::min<std::int64_t>(8, end - i))).v;
      __m256i const q = inverse > 0 ? _mm256_cvtps_epi32(_mm256_mul_ps(x, by)) : _mm256_setzero_si256();
      sum = _mm256_add_epi32(sum, q);
      __m128i const words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
      _mm_storel_epi64(m128i_at(job.to + i), _mm_packs_epi16(words, words));
    }
    _mm256_store_si256(m256i_at(each), sum);
    std::int32_t all = 0;
    for (auto const one : each) all += one;
    job.scales[b] = integer_scale(largest);
    job.begin[b] = -128 * all;
    if (end == job.k) {
      for (; i < padded; i += 8) _mm_storel_epi64(m128i_at(job.to + i), _mm_setzero_si128());
    }
  }
}

inline void integer_unpack(std::uint8_t* to, std::uint8_t const* from) {
  constexpr auto half = integer_chunk_bytes / 2;
  __m256i const low = _mm256_set1_epi8(15), less = _mm256_set1_epi8(120);
  for (std::int64_t i = 0; i < half; i += 32) {
    __m256i const both = _mm256_loadu_si256(m256i_at(from + i));
    __m256i const high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    _mm256_storeu_si256(m256i_at(to + i), _mm256_add_epi8(_mm256_and_si256(both, low), less));
    _mm256_storeu_si256(m256i_at(to + half + i), _mm256_add_epi8(high, less));
  }
}

TRIREME_INLINE __m256i integer_begin(std::int32_t begin) { return _mm256_set1_epi32(begin); }
TRIREME_INLINE __m256i integer_none(std::int32_t) { return _mm256_setzero_si256(); }
TRIREME_INLINE __m256i integer_all(int word) { return _mm256_set1_epi32(word); }
TRIREME_INLINE __m256i integer_load(std::uint8_t const* at) { return _mm256_loadu_si256(m256i_at(at)); }
TRIREME_INLINE __m256i integer_load_signed(std::uint8_t const* at) {
  return _mm256_xor_si256(integer_load(at), _mm256_set1_epi8(-128));
}
/// Of numbers from -127 to 127, so that no sum of two products is above 32767.
TRIREME_INLINE __m256i integer_products(__m256i sum, __m256i w, __m256i x) {
  __m256i const pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
TRIREME_INLINE void integer_scaled(float* c, __m256i sum, float x_scale, float const* scales, bool first) {
  __m256 const by = _mm256_mul_ps(_mm256_set1_ps(x_scale), _mm256_loadu_ps(scales));
  __m256 const before = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c);
  _mm256_storeu_ps(c, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), by, before));
}
template <int Rows>
inline void integer_tile(integer_job const& job) {
  TRIREME_INTEGER_TILE(Rows, 2, 8, integer_none, integer_all, integer_load_signed, integer_products, integer_scaled)
}

}  // namespace trireme::ops::detail::avx2
TRIREME_TARGET_END

TRIREME_TARGET_BEGIN_("avx2,fma,f16c,bmi,bmi2,avxvnni")
namespace trireme::ops::detail::avx_vnni {

/// The intrinsic, but with g++ always in a register of its own: g++ 12 otherwise copies and stores sums in each step,
/// and products take more than twice the time.
TRIREME_INLINE __m256i integer_products(__m256i sum, __m256i w, __m256i x) {
#if defined(__clang__)
  return _mm256_dpbusd_avx_epi32(sum, w, x);
#else
  asm("{%{vex%} vpdpbusd\t%2, %1, %0|%{vex%} vpdpbusd\t%0, %1, %2}" : "+x"(sum) : "x"(w), "x"(x));
  return sum;
#endif
}
template <int Rows>
inline void integer_tile(integer_job const& job) {
  TRIREME_INTEGER_TILE(Rows, 2, 8, avx2::integer_begin, avx2::integer_all, avx2::integer_load, integer_products,
                       avx2::integer_scaled)
}

}  // namespace trireme::ops::detail::avx_vnni
TRIREME_TARGET_END

TRIREME_TARGET_BEGIN_(TRIREME_WIDE_ "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vnni")
namespace trireme::ops::detail::avx512_vnni {

/// A whole block of 16 Vectors elements, which stay in registers.
template <int Vectors, class T>
TRIREME_INLINE void integer_block(integer_row_job<T> const& job, std::int64_t first, std::int64_t b) {
  __m512 x[static_cast<std::size_t>(Vectors)];
  __m512i most = _mm512_setzero_si512(), sum = most;
  TRIREME_UNROLL
  for (int v = 0; v < Vectors; ++v) {
    x[v] = avx512::lanes::load(job.from + first + 16 * v).v;
    most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(x[v]), _mm512_set1_epi32(0x7fffffff)));
  }
  auto const largest = _mm512_reduce_max_epi32(most);
  auto const inverse = integer_inverse(largest);
  __mmask16 const some = inverse > 0 ? __mmask16{0xffff} : __mmask16{0};
  __m512 const by = _mm512_set1_ps(inverse);
  TRIREME_UNROLL
  for (int v = 0; v < Vectors; ++v) {
    __m512i const q = _mm512_maskz_cvtps_epi32(some, _mm512_mul_ps(x[v], by));
    sum = _mm512_add_epi32(sum, q);
    _mm_storeu_si128(m128i_at(job.to + first + 16 * v), _mm512_cvtepi32_epi8(q));
  }
  job.scales[b] = integer_scale(largest);
  job.begin[b] = -128 * _mm512_reduce_add_epi32(sum);
}

template <class T>
inline void integer_row(integer_row_job<T> const& job) {
  auto const padded = (job.k + integer_chunk - 1) / integer_chunk * integer_chunk;
  auto const whole = job.k / job.block * job.block;
  std::int64_t first = 0, b = 0;
  for (; first < whole && job.block == 128; first += 128, ++b) integer_block<8>(job, first, b);
  for (; first < whole && job.block == 64; first += 64, ++b) integer_block<4>(job, first, b);
  for (; first < job.k; first += job.block, ++b) {
    auto const end = std::min(job.k, first + job.block);
    __m512i most = _mm512_setzero_si512();
    for (auto i = first; i < end; i += 16) {
      __m512i const bits = _mm512_castps_si512(
          avx512::lanes::load(job.from + i, static_cast<int>(std::min<std::int64_t>(16, end - i))).v);
      most = _mm512_max_epi32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    auto const largest = _mm512_reduce_max_epi32(most);
    auto const inverse = integer_inverse(largest);
    __m512 const by = _mm512_set1_ps(inverse);
    __m512i sum = _mm512_setzero_si512();
    auto i = first;
    for (; i < end; i += 16) {
      __m512 const x = avx512::lanes::load(job.from + i, static_cast<int>(std::min<std::int64_t>(16, end - i))).v;
      __m512i const q = inverse > 0 ? _mm512_cvtps_epi32(_mm512_mul_ps(x, by)) : _mm512_setzero_si512();
      sum = _mm512_add_epi32(sum, q);
      _mm_storeu_si128(m128i_at(job.to + i), _mm512_cvtepi32_epi8(q));
    }
    job.scales[b] = integer_scale(largest);
    job.begin[b] = -128 * _mm512_reduce_add_epi32(sum);
    if (end == job.k) {
      for (; i < padded; i += 16) _mm_storeu_si128(m128i_at(job.to + i), _mm_setzero_si128());
    }
  }
}

TRIREME_INLINE __m512i integer_all(int word) { return _mm512_set1_epi32(word); }
TRIREME_INLINE __m512i integer_load(std::uint8_t const* at) { return _mm512_loadu_si512(at); }
TRIREME_INLINE __m512i integer_products(__m512i sum, __m512i w, __m512i x) {
#if defined(__clang__)
  return _mm512_dpbusd_epi32(sum, w, x);
#else
  asm("{vpdpbusd\t%2, %1, %0|vpdpbusd\t%0, %1, %2}" : "+v"(sum) : "v"(w), "v"(x));
  return sum;
#endif
}
TRIREME_INLINE void integer_scaled(float* c, __m512i sum, float x_scale, float const* scales, bool first) {
  __m512 const by = _mm512_mul_ps(_mm512_set1_ps(x_scale), _mm512_loadu_ps(scales));
  __m512 const before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
  _mm512_storeu_ps(c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), by, before));
}
template <int Rows>
inline void integer_tile(integer_job const& job) {
  TRIREME_INTEGER_TILE(Rows, 2, 16, integer_all, integer_all, integer_load, integer_products, integer_scaled)
}

/// 32 rows on the tile registers; operands as in tiles.hpp, with four integers in a word.
template <class Tiles>
inline void integer_tiles(integer_job const& job) {
  constexpr std::ptrdiff_t right_row = 4 * integer_strip, sums_row = integer_strip * 4;
  alignas(64) std::int32_t sums[32 * integer_strip];
  auto const* w = job.w;
  auto const* const lower = job.x + tile_extent * job.x_row;
  for (std::int64_t chunk = 0, b = 0; chunk < job.chunks; chunk += job.chunks_in_block, ++b) {
    auto const here = std::min(job.chunks_in_block, job.chunks - chunk);
    auto const* const scales = elements_at<float>(w);
    w += integer_scale_bytes;
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
    for (auto at = chunk; at < chunk + here; ++at, w += integer_chunk_bytes) {
      Tiles::template load<4>(job.x + at * integer_chunk, job.x_row);
      Tiles::template load<6>(w, right_row);
      Tiles::template multiply_integers<0, 4, 6>();
      Tiles::template load<7>(w + right_row / 2, right_row);
      Tiles::template multiply_integers<1, 4, 7>();
      Tiles::template load<5>(lower + at * integer_chunk, job.x_row);
      Tiles::template multiply_integers<2, 5, 6>();
      Tiles::template multiply_integers<3, 5, 7>();
    }
    Tiles::template store<0>(sums, sums_row);
    Tiles::template store<1>(sums + tile_extent, sums_row);
    Tiles::template store<2>(sums + tile_extent * integer_strip, sums_row);
    Tiles::template store<3>(sums + tile_extent * integer_strip + tile_extent, sums_row);
    for (int r = 0; r < 2 * tile_extent; ++r) {
      __m512i const begin = integer_all(job.begin[r * job.blocks + b]);
      for (int v = 0; v < 2; ++v) {
        auto const at = r * integer_strip + v * tile_extent;
        integer_scaled(job.c + at, _mm512_add_epi32(begin, _mm512_load_si512(sums + at)),
                       job.scales[r * job.blocks + b], scales + v * tile_extent, b == 0);
      }
    }
  }
}

}  // namespace trireme::ops::detail::avx512_vnni
TRIREME_TARGET_END

namespace trireme::ops::detail {
/// tile_registers, and their products of integers: signed ones of the left operand, unsigned ones of the right one.
struct integer_tile_registers : tile_registers {
  template <int Sums, int Left, int Right>
  static TRIREME_INLINE void multiply_integers() noexcept {
    asm volatile("{tdpbsud\t%%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbsud\ttmm%c0, tmm%c1, tmm%c2}"
                 :
                 : "i"(Sums), "i"(Left), "i"(Right));
  }
};
}  // namespace trireme::ops::detail
#undef TRIREME_INTEGER_TILE
#endif

namespace trireme::ops::detail {

/// The kernels that this CPU has, slowest first.
[[nodiscard]] inline std::vector<integer_kernels> const& all_integer_kernels() {
  static std::vector<integer_kernels> const all = [] {
    std::vector<integer_kernels> found{
        {"baseline", cpu_level::baseline, baseline::integer_row<float>, baseline::integer_row<bfloat16>, 4, false,
         baseline::integer_tile<4>, baseline::integer_tile<4>, baseline::integer_tile<1>, baseline::integer_unpack}};
#if TRIREME_X86
    auto const most = available();
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (most < cpu_level::avx2) return found;
    found.push_back({"avx2", cpu_level::avx2, avx2::integer_row<float>, avx2::integer_row<bfloat16>, 4, false,
                     avx2::integer_tile<4>, avx2::integer_tile<4>, avx2::integer_tile<1>, avx2::integer_unpack});
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 4)) != 0) {
      found.push_back({"avx_vnni", cpu_level::avx2, avx2::integer_row<float>, avx2::integer_row<bfloat16>, 6, false,
                       avx_vnni::integer_tile<6>, avx_vnni::integer_tile<4>, avx_vnni::integer_tile<1>,
                       avx2::integer_unpack});
    }
    if (most < cpu_level::avx512 || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
    if ((c & (1U << 11)) == 0) return found;
    found.push_back({"avx512_vnni", cpu_level::avx512, avx512_vnni::integer_row<float>,
                     avx512_vnni::integer_row<bfloat16>, 12, false, avx512_vnni::integer_tile<12>,
                     avx512_vnni::integer_tile<4>, avx512_vnni::integer_tile<1>, avx2::integer_unpack});
    if (most < cpu_level::amx || (d & (1U << 25)) == 0) return found;
    found.push_back({"amx_int8", cpu_level::amx, avx512_vnni::integer_row<float>, avx512_vnni::integer_row<bfloat16>,
                     32, true, avx512_vnni::integer_tiles<integer_tile_registers>, avx512_vnni::integer_tile<4>,
                     avx512_vnni::integer_tile<1>, avx2::integer_unpack, tile_registers::begin, tile_registers::end});
#endif
    return found;
  }();
  return all;
}

/// Those of the active level.
[[nodiscard]] inline integer_kernels const& active_integer_kernels() {
  auto const& all = all_integer_kernels();
  auto best = all.begin();
  for (auto each = all.begin(); each != all.end(); ++each) {
    if (each->level <= detected()) best = each;
  }
  return *best;
}

}  // namespace trireme::ops::detail

#endif  // TRIREME_OPS_HOST_DETAIL_INTEGER_KERNELS_INCLUDED

// ---- trireme/ops/host/integer_products.hpp (goes on)
#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/integer_store.inl
// Stores the sums of a product of integers by a rule that most have; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <bool Bias, bool Residual, class T>
inline void store_with(store_job<T> const& job) {
  using F = lanes_for<T>;
  auto const row = job.rule->ld, first = job.row * row + job.column, columns = job.columns;
  T* y = job.rule->y + first;
  T const* residual = Residual ? job.rule->residual + first : nullptr;
  T const* const bias = Bias ? job.rule->bias + job.column : nullptr;
  auto const* sums = job.sums;
  for (auto left = job.rows; left > 0; --left, y += row, sums += job.sums_row) {
    TRIREME_FOR_LANES(F, columns, j, count, {
      F value = F::load(sums + j, count);
      if constexpr (Bias) value = value + F::load(bias + j, count);
      if constexpr (Residual) value = value + F::load(residual + j, count);
      value.store(y + j, count);
    })
    if constexpr (Residual) residual += row;
  }
}

/// As store_sums(), with fewer questions in its loops.
template <class T>
inline void store_integer_sums(store_job<T> const& job) {
  auto const& rule = *job.rule;
  bool const usual =
      rule.act == activation::none && rule.keep == nullptr && rule.slope_at == nullptr && !rule.accumulate;
  if (!usual) return store_sums(job);
  if (rule.bias == nullptr && rule.residual == nullptr) return store_with<false, false>(job);
  if (rule.bias == nullptr) return store_with<false, true>(job);
  if (rule.residual == nullptr) return store_with<true, false>(job);
  store_with<true, true>(job);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/integer_products.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/integer_store.inl
// Stores the sums of a product of integers by a rule that most have; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <bool Bias, bool Residual, class T>
inline void store_with(store_job<T> const& job) {
  using F = lanes_for<T>;
  auto const row = job.rule->ld, first = job.row * row + job.column, columns = job.columns;
  T* y = job.rule->y + first;
  T const* residual = Residual ? job.rule->residual + first : nullptr;
  T const* const bias = Bias ? job.rule->bias + job.column : nullptr;
  auto const* sums = job.sums;
  for (auto left = job.rows; left > 0; --left, y += row, sums += job.sums_row) {
    TRIREME_FOR_LANES(F, columns, j, count, {
      F value = F::load(sums + j, count);
      if constexpr (Bias) value = value + F::load(bias + j, count);
      if constexpr (Residual) value = value + F::load(residual + j, count);
      value.store(y + j, count);
    })
    if constexpr (Residual) residual += row;
  }
}

/// As store_sums(), with fewer questions in its loops.
template <class T>
inline void store_integer_sums(store_job<T> const& job) {
  auto const& rule = *job.rule;
  bool const usual =
      rule.act == activation::none && rule.keep == nullptr && rule.slope_at == nullptr && !rule.accumulate;
  if (!usual) return store_sums(job);
  if (rule.bias == nullptr && rule.residual == nullptr) return store_with<false, false>(job);
  if (rule.bias == nullptr) return store_with<false, true>(job);
  if (rule.residual == nullptr) return store_with<true, false>(job);
  store_with<true, true>(job);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/integer_products.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/integer_store.inl
// Stores the sums of a product of integers by a rule that most have; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <bool Bias, bool Residual, class T>
inline void store_with(store_job<T> const& job) {
  using F = lanes_for<T>;
  auto const row = job.rule->ld, first = job.row * row + job.column, columns = job.columns;
  T* y = job.rule->y + first;
  T const* residual = Residual ? job.rule->residual + first : nullptr;
  T const* const bias = Bias ? job.rule->bias + job.column : nullptr;
  auto const* sums = job.sums;
  for (auto left = job.rows; left > 0; --left, y += row, sums += job.sums_row) {
    TRIREME_FOR_LANES(F, columns, j, count, {
      F value = F::load(sums + j, count);
      if constexpr (Bias) value = value + F::load(bias + j, count);
      if constexpr (Residual) value = value + F::load(residual + j, count);
      value.store(y + j, count);
    })
    if constexpr (Residual) residual += row;
  }
}

/// As store_sums(), with fewer questions in its loops.
template <class T>
inline void store_integer_sums(store_job<T> const& job) {
  auto const& rule = *job.rule;
  bool const usual =
      rule.act == activation::none && rule.keep == nullptr && rule.slope_at == nullptr && !rule.accumulate;
  if (!usual) return store_sums(job);
  if (rule.bias == nullptr && rule.residual == nullptr) return store_with<false, false>(job);
  if (rule.bias == nullptr) return store_with<false, true>(job);
  if (rule.residual == nullptr) return store_with<true, false>(job);
  store_with<true, true>(job);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/integer_products.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

/// What weights are rounded to for products of integers.
enum class weight_form {
  int8,  ///< 8 bits, a scale for each output and 128 inputs
  int4,  ///< 4 bits, a scale for each output and 64 inputs; tables of words (orientation::out_in) have int8
};
[[nodiscard]] constexpr std::string_view name_of(weight_form form) noexcept {
  return form == weight_form::int8 ? "int8" : "int4";
}
/// Errors   config_error for another name.
[[nodiscard]] inline weight_form weight_form_of(std::string_view name) {
  for (auto const form : {weight_form::int8, weight_form::int4}) {
    if (name == name_of(form)) return form;
  }
  throw config_error(text("trireme::ops::weight_form: \"", name, "\" is unknown; take int8 or int4"));
}

namespace detail {

/// The sizes of a weight (k, n) in strips of 32 columns: of each block of a strip first the scales, then the integers.
struct integer_layout {
  weight_form form = weight_form::int8;
  std::int64_t k = 0, n = 0;

  [[nodiscard]] std::int64_t chunks_in_block() const noexcept { return form == weight_form::int8 ? 2 : 1; }
  [[nodiscard]] std::int64_t block() const noexcept { return chunks_in_block() * integer_chunk; }
  [[nodiscard]] std::int64_t chunks() const noexcept { return (k + integer_chunk - 1) / integer_chunk; }
  [[nodiscard]] std::int64_t blocks() const noexcept { return (k + block() - 1) / block(); }
  [[nodiscard]] std::int64_t strips() const noexcept { return (n + integer_strip - 1) / integer_strip; }
  [[nodiscard]] std::int64_t chunk_bytes() const noexcept {
    return form == weight_form::int8 ? integer_chunk_bytes : integer_chunk_bytes / 2;
  }
  [[nodiscard]] std::int64_t strip_bytes() const noexcept {
    return chunks() * chunk_bytes() + blocks() * integer_scale_bytes;
  }
  /// Bytes of a strip as the kernels read it: with 8 bits a number.
  [[nodiscard]] std::int64_t unpacked_bytes() const noexcept {
    return chunks() * integer_chunk_bytes + blocks() * integer_scale_bytes;
  }
  [[nodiscard]] std::int64_t bytes() const noexcept { return strips() * strip_bytes(); }
};

/// A block of one column of a weight as integers from -127 to 127, or -8 to 7, and their scale.
template <std::size_t Most>
float integers_of(std::array<std::int8_t, Most>& to, std::array<float, Most> const& from, std::int64_t count,
                  weight_form form) {
  float most = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    auto const x = from[static_cast<std::size_t>(i)];
    finite = finite && std::isfinite(x);
    if (std::abs(x) > std::abs(most)) most = x;
  }
  to.fill(0);
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  if (std::abs(most) < 0x1p-120F) return 0;
  // The largest one of 4 bits becomes -8, the end that has one more.
  float const scale = form == weight_form::int8 ? std::abs(most) / 127 : most / -8;
  float const low = form == weight_form::int8 ? -127 : -8, high = form == weight_form::int8 ? 127 : 7;
  for (std::int64_t i = 0; i < count; ++i) {
    auto const x = from[static_cast<std::size_t>(i)] / scale;
    to[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(std::clamp(std::nearbyint(x), low, high));
  }
  return scale;
}

/// Writes a weight, (n, k) if `transposed` and else (k, n), as integers.
template <class T>
void pack_integers(std::uint8_t* to, T const* from, bool transposed, integer_layout const& layout) {
  std::array<float, 2 * std::size_t{integer_chunk}> column;
  std::array<std::int8_t, 2 * std::size_t{integer_chunk}> integers{};
  auto const k = layout.k, n = layout.n;
  for (std::int64_t strip = 0; strip < layout.strips(); ++strip) {
    for (std::int64_t first = 0; first < k; first += layout.block()) {
      auto const count = std::min(layout.block(), k - first);
      auto const chunks = (count + integer_chunk - 1) / integer_chunk;
      auto* const scales = elements_at<float>(to);
      to += integer_scale_bytes;
      for (std::int64_t j = 0; j < integer_strip; ++j) {
        auto const at = strip * integer_strip + j;
        scales[j] = 0;
        integers.fill(0);
        if (at < n) {
          for (std::int64_t i = 0; i < count; ++i) {
            column[static_cast<std::size_t>(i)] =
                static_cast<float>(transposed ? from[at * k + first + i] : from[(first + i) * n + at]);
          }
          scales[j] = integers_of(integers, column, count, layout.form);
        }
        for (std::int64_t i = 0; i < chunks * integer_chunk; ++i) {
          auto const place = (i / 4 * integer_strip + j) * 4 + i % 4;  // of a byte
          auto const q = integers[static_cast<std::size_t>(i)];
          if (layout.form == weight_form::int8) {
            to[place] = static_cast<std::uint8_t>(q + 128);
          } else {  // two halves of a chunk in the two halves of its bytes
            auto const half = integer_chunk_bytes / 2;
            auto const in_chunk = place % integer_chunk_bytes;
            auto& byte = to[place / integer_chunk_bytes * half + in_chunk % half];
            byte = static_cast<std::uint8_t>(in_chunk < half ? q + 8 : byte | (q + 8) << 4);
          }
        }
      }
      to += chunks * layout.chunk_bytes();
    }
  }
}

/// A strip of 4 bits a number as one of 8.
inline void unpack_strip(integer_kernels const& chosen, std::uint8_t* to, std::uint8_t const* from,
                         integer_layout const& layout) {
  for (std::int64_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    if (chunk % layout.chunks_in_block() == 0) {
      std::memcpy(to, from, static_cast<std::size_t>(integer_scale_bytes));
      to += integer_scale_bytes;
      from += integer_scale_bytes;
    }
    chosen.unpack(to, from);
    to += integer_chunk_bytes;
    from += layout.chunk_bytes();
  }
}

/// Stores sums by a rule, with the kernels of the active level.
template <class T>
void store_integer_sums(store_job<T> const& job) {
  TRIREME_DISPATCH(true, store_integer_sums(job));
}

/// y (m, n) = rule(x (m, k) w) with the kernels `chosen`.
template <class T>
void multiply_integers(integer_kernels const& chosen, store_rule<T> const& rule, T const* x, std::uint8_t const* packed,
                       std::int64_t m, integer_layout const& layout) {
  thread_local growing_buffer rows_buffer, scales_buffer, begin_buffer, strip_buffer;
  alignas(64) float sums[32 * integer_strip];
  auto const tiles = (m + chosen.rows - 1) / chosen.rows;
  auto const rows = tiles * chosen.rows;  // some are padding
  auto const row = layout.chunks() * integer_chunk, blocks = layout.blocks();
  auto* const integers = rows_buffer.take<std::int8_t>(rows * row);
  auto* const scales = scales_buffer.take<float>(rows * blocks);
  auto* const begin = begin_buffer.take<std::int32_t>(rows * blocks);
  for (std::int64_t r = 0; r < m; ++r) {
    integer_row_job<T> const job{integers + r * row, scales + r * blocks, begin + r * blocks, x + r * layout.k,
                                 layout.k,           layout.block()};
    if constexpr (std::is_same_v<T, float>)
      chosen.float_row(job);
    else
      chosen.bfloat16_row(job);
  }
  std::fill(integers + m * row, integers + rows * row, std::int8_t{0});
  std::fill(scales + m * blocks, scales + rows * blocks, 0.0F);
  std::fill(begin + m * blocks, begin + rows * blocks, 0);

  if (chosen.begin != nullptr) chosen.begin();
  for (std::int64_t strip = 0; strip < layout.strips(); ++strip, packed += layout.strip_bytes()) {
    auto const* w = packed;
    if (layout.form == weight_form::int4) {
      auto* const unpacked = strip_buffer.take<std::uint8_t>(layout.unpacked_bytes());
      unpack_strip(chosen, unpacked, packed, layout);
      w = unpacked;
    }
    for (std::int64_t r = 0; r < m;) {
      auto const left = m - r;
      integer_job const job{
          integers + r * row,       row, scales + r * blocks, begin + r * blocks, blocks, w, layout.chunks(),
          layout.chunks_in_block(), sums};
      std::int64_t count = 1;
      if (left >= chosen.rows || (chosen.pads && left > 8)) {
        chosen.tile(job);
        count = std::min(left, chosen.rows);
      } else if (left >= 4) {
        chosen.four(job);
        count = 4;
      } else {
        chosen.one(job);
      }
      auto const column = strip * integer_strip;
      store_integer_sums<T>({&rule, sums, integer_strip, r, column, count, std::min(integer_strip, layout.n - column)});
      r += count;
    }
  }
  if (chosen.end != nullptr) chosen.end();
}

/// Weights as integers, and rows of the left operand as integers when they come.
class products_of_integers final : public other_products {
 public:
  explicit products_of_integers(weight_form form) : form_(form) {}
  void multiply(store_rule<float> const& rule, float const* x, float const* values, growing_buffer& copy, bool valid,
                bool transposed, std::int64_t m, std::int64_t n, std::int64_t k) const override {
    compute(rule, x, values, copy, valid, transposed, m, n, k);
  }
  void multiply(store_rule<bfloat16> const& rule, bfloat16 const* x, bfloat16 const* values, growing_buffer& copy,
                bool valid, bool transposed, std::int64_t m, std::int64_t n, std::int64_t k) const override {
    compute(rule, x, values, copy, valid, transposed, m, n, k);
  }

 private:
  template <class T>
  void compute(store_rule<T> const& rule, T const* x, T const* values, growing_buffer& copy, bool valid,
               bool transposed, std::int64_t m, std::int64_t n, std::int64_t k) const {
    integer_layout const layout{transposed ? weight_form::int8 : form_, k, n};
    auto* const packed = copy.template take<std::uint8_t>(layout.bytes());
    if (!valid) pack_integers(packed, values, transposed, layout);
    multiply_integers(active_integer_kernels(), rule, x, packed, m, layout);
  }
  weight_form form_;
};

}  // namespace detail

/// While it lives, the models that this thread makes have products of integers: forward products with a weight matrix,
/// in fp32 and bf16. For predictions: gradients are those of the weights themselves.
///
///     ops::integer_products const int8(ops::weight_form::int8);
///     auto trainer = make_trainer(model, ...);  // in the thread that computes it first
///
/// A weight is rounded when it is first used, and again when it has changed: each output and each block of inputs has
/// a scale. A row of activations is rounded when it comes, to 8 bits with a scale for each block. Embeddings, norms,
/// attention and sums stay in floats.
///
/// Bytes    k n (int8) or k n / 2 (int4) in place of the packed copy, and 4 for each block; the values themselves stay.
/// Numerics integers of a block are summed exactly, blocks in order with one rounding each: the same bits at all CPU
///          levels (but for an activation function), and in a row regardless of the rows that are computed with it. A
///          row or a column with NaN or infinity becomes NaN.
/// Method   as Dettmers et al., "LLM.int8()", 2022, but with scales of blocks in place of columns of outliers.
/// Threads  one in a thread at a time; it ends where it began.
class integer_products {
 public:
  explicit integer_products(weight_form form) : before_(detail::products_of_new_weights()) {
    static detail::products_of_integers const int8(weight_form::int8), int4(weight_form::int4);
    detail::products_of_new_weights() = form == weight_form::int8 ? &int8 : &int4;
  }
  ~integer_products() { detail::products_of_new_weights() = before_; }
  integer_products(integer_products const&) = delete;
  integer_products& operator=(integer_products const&) = delete;

 private:
  detail::other_products const* before_;
};

/// The instructions that multiply integers here: avx512_vnni, avx_vnni, amx_int8; avx2 and baseline have none for it.
[[nodiscard]] inline std::string_view integer_instructions() { return detail::active_integer_kernels().name; }

}  // namespace trireme::ops
