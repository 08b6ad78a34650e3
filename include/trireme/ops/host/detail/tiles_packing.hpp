#pragma once

#include <cstdint>

#include "trireme/ops/host/detail/product_types.hpp"
#include "trireme/ops/host/simd.hpp"

// The vector code around products of tiles: packing and storing. Included by product_kernels.hpp, after the epilogues
// of AVX-512.
#if TRIREME_X86
TRIREME_TARGET_AVX512_BEGIN
namespace trireme::ops::detail::avx512 {

/// Two rows of at most 16 columns as words of two.
TRIREME_INLINE __m512i paired_columns(bfloat16 const* low, bfloat16 const* high, __mmask16 columns) {
  __m512i const rows = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi16(columns, low)),
                                          _mm256_maskz_loadu_epi16(columns, high), 1);
  __m512i const first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i const second = _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(16)), 16);
  return _mm512_permutexvar_epi16(_mm512_or_si512(first, second), rows);
}

/// Row i of x becomes column i.
TRIREME_INLINE void transpose_words(__m512i (&x)[16]) {
  __m512i y[16];
  TRIREME_UNROLL
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  TRIREME_UNROLL
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  TRIREME_UNROLL
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  TRIREME_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

inline void turn(turn_job const& job) {
  for (std::int64_t row = 0; row < job.padded_rows; row += 32) {
    for (std::int64_t column = 0; column < job.padded_columns; column += 16) {
      __mmask16 const columns = lanes::mask(static_cast<int>(job.columns - column < 16 ? job.columns - column : 16));
      __m512i words[16];
      TRIREME_UNROLL
      for (int i = 0; i < 16; ++i) {
        // A row that does not exist is not read, and no pointer to it is formed.
        auto const low = row + 2 * i < job.rows ? row + 2 * i : 0;
        auto const high = low + 1 < job.rows ? low + 1 : 0;
        words[i] =
            paired_columns(job.from + low * job.from_row + column, job.from + high * job.from_row + column, columns);
        if (row + 2 * i >= job.rows) words[i] = _mm512_setzero_si512();
        if (row + 2 * i + 1 >= job.rows) words[i] = _mm512_and_si512(words[i], _mm512_set1_epi32(0xffff));
      }
      transpose_words(words);
      bfloat16* const to = job.to + column * job.to_row + row;
      TRIREME_UNROLL
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * job.to_row, words[i]);
    }
  }
}

}  // namespace trireme::ops::detail::avx512
TRIREME_TARGET_END

TRIREME_TARGET_AVX512_BF16_BEGIN
namespace trireme::ops::detail::avx512_bf16 {

using avx512::lanes;

/// Multiplying by one adds both numbers of a word to the sum of their column.
inline void panel_of(panel_job const& job) {
  auto const columns = static_cast<int>(job.columns);
  __mmask16 const first = lanes::mask(columns);
  __mmask16 const second = lanes::mask(columns - lanes::width);
  __m512bh const ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
  __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  bfloat16 const* from = job.from;
  std::uint32_t* to = job.to;
  for (std::int64_t row = 0; row < job.rows; row += 2, from += 2 * job.ld, to += 32) {
    bool const both = row + 1 < job.rows;
    bfloat16 const* const next = both ? from + job.ld : from;
    __m512i words[2] = {avx512::paired_columns(from, next, first),
                        second == 0 ? _mm512_setzero_si512() : avx512::paired_columns(from + 16, next + 16, second)};
    TRIREME_UNROLL
    for (int v = 0; v < 2; ++v) {
      if (!both) words[v] = _mm512_and_si512(words[v], _mm512_set1_epi32(0xffff));
      sums[v] = _mm512_dpbf16_ps(sums[v], reinterpret_cast<__m512bh>(words[v]), ones);
      _mm512_storeu_si512(to + v * lanes::width, words[v]);
    }
  }
  for (auto step = (job.rows + 1) / 2; step < job.steps; ++step, to += 32) {
    _mm512_storeu_si512(to, _mm512_setzero_si512());
    _mm512_storeu_si512(to + lanes::width, _mm512_setzero_si512());
  }
  if (job.sums == nullptr) return;
  lanes{_mm512_add_ps(sums[0], _mm512_maskz_loadu_ps(first, job.sums))}.store(job.sums, columns < 16 ? columns : 16);
  if (columns <= 16) return;
  lanes{_mm512_add_ps(sums[1], _mm512_maskz_loadu_ps(second, job.sums + 16))}.store(job.sums + 16, columns - 16);
}

}  // namespace trireme::ops::detail::avx512_bf16
TRIREME_TARGET_END
#endif
