#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trireme/ops/host/detail/product_types.hpp"
#include "trireme/ops/host/simd.hpp"

// Packing for the vector kernels: a panel holds `width` columns of a matrix, step after step, so that a kernel reads it
// front to back. A step is one float per column or (for bfloat16 products) a pair of neighbours along k in one word.
// SSE2, which every x86-64 has, is sufficient: packing is bound by memory.
namespace trireme::ops::detail {

#if TRIREME_X86
/// Packs a panel without edges.
template <int Width>
TRIREME_INLINE void copy_rows(float* panel, float const* source, std::int64_t ld, std::int64_t k) {
  for (std::int64_t step = 0; step < k; ++step, panel += Width, source += ld) {
    TRIREME_UNROLL
    for (int j = 0; j < Width; j += 4) _mm_storeu_ps(panel + j, _mm_loadu_ps(source + j));
  }
}
#endif

/// Columns of a row-major matrix whose rows are the steps: panel (k, width) from source (k, ld), `columns` wide.
inline void pack_across(float* panel, float const* source, std::int64_t ld, std::int64_t k, int width, int columns) {
#if TRIREME_X86
  if (columns == width && width == 32) return copy_rows<32>(panel, source, ld, k);
  if (columns == width && width == 16) return copy_rows<16>(panel, source, ld, k);
  if (columns == width && width == 8) return copy_rows<8>(panel, source, ld, k);
#endif
  auto const bytes = static_cast<std::size_t>(columns) * sizeof(float);
  for (std::int64_t step = 0; step < k; ++step, panel += width, source += ld) {
    std::memcpy(panel, source, bytes);
    for (int j = columns; j < width; ++j) panel[j] = 0;
  }
}
inline void pack_across(float* panel, bfloat16 const* source, std::int64_t ld, std::int64_t k, int width, int columns) {
  for (std::int64_t step = 0; step < k; ++step, panel += width, source += ld) {
    int j = 0;
#if TRIREME_X86
    for (; j + 8 <= columns; j += 8) {
      __m128i const bits = _mm_loadu_si128(m128i_at(source + j));
      __m128i const zero = _mm_setzero_si128();
      _mm_storeu_si128(m128i_at(panel + j), _mm_unpacklo_epi16(zero, bits));
      _mm_storeu_si128(m128i_at(panel + j + 4), _mm_unpackhi_epi16(zero, bits));
    }
#endif
    for (; j < columns; ++j) panel[j] = static_cast<float>(source[j]);
    for (; j < width; ++j) panel[j] = 0;
  }
}

[[nodiscard]] inline std::uint32_t bfloat16_pair(bfloat16 low, bfloat16 high) noexcept {
  return static_cast<std::uint32_t>(low.bits) | (static_cast<std::uint32_t>(high.bits) << 16);
}

/// The same in pairs: step s of the panel holds rows 2 s and 2 s + 1; an odd last row is paired with zeros.
inline void pack_across(std::uint32_t* panel, bfloat16 const* source, std::int64_t ld, std::int64_t k, int width,
                        int columns) {
  for (std::int64_t row = 0; row < k; row += 2, panel += width) {
    bfloat16 const* const low = source + row * ld;
    bfloat16 const* const high = low + ld;
    bool const both = row + 1 < k;
    int j = 0;
#if TRIREME_X86
    for (; j + 8 <= columns; j += 8) {
      __m128i const a = _mm_loadu_si128(m128i_at(low + j));
      __m128i const b = both ? _mm_loadu_si128(m128i_at(high + j)) : _mm_setzero_si128();
      _mm_storeu_si128(m128i_at(panel + j), _mm_unpacklo_epi16(a, b));
      _mm_storeu_si128(m128i_at(panel + j + 4), _mm_unpackhi_epi16(a, b));
    }
#endif
    for (; j < columns; ++j) panel[j] = bfloat16_pair(low[j], both ? high[j] : bfloat16{});
    for (; j < width; ++j) panel[j] = 0;
  }
}

/// One word of a panel from row-major data whose rows are the columns of the panel.
inline float word_along(float const* row, std::int64_t step, std::int64_t, float*) { return row[step]; }
inline float word_along(bfloat16 const* row, std::int64_t step, std::int64_t, float*) {
  return static_cast<float>(row[step]);
}
inline std::uint32_t word_along(bfloat16 const* row, std::int64_t step, std::int64_t k, std::uint32_t*) {
  return bfloat16_pair(row[2 * step], 2 * step + 1 < k ? row[2 * step + 1] : bfloat16{});
}

#if TRIREME_X86
/// Four steps of one row as floats or words.
inline __m128 words_along(float const* row, std::int64_t step, float*) { return _mm_loadu_ps(row + step); }
inline __m128 words_along(bfloat16 const* row, std::int64_t step, float*) {
  __m128i const bits = _mm_loadl_epi64(m128i_at(row + step));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
}
inline __m128 words_along(bfloat16 const* row, std::int64_t step, std::uint32_t*) {
  return _mm_castsi128_ps(_mm_loadu_si128(m128i_at(row + 2 * step)));
}
#endif

/// Columns of a transposed matrix: panel (k, width) from source (columns, ld), whose rows are the panel's columns.
template <class Word, class T>
void pack_along(Word* panel, T const* source, std::int64_t ld, std::int64_t k, int width, int columns) {
  constexpr std::int64_t elements = sizeof(Word) / sizeof(T) == 2 && !std::is_same_v<Word, float> ? 2 : 1;
  auto const steps = (k + elements - 1) / elements;
  auto const whole = k / elements / 4 * 4;
  Word* const type = nullptr;
  for (int j = 0; j < width; j += j + 4 <= columns ? 4 : 1) {
    std::int64_t step = 0;
    if (j >= columns) {
      for (; step < steps; ++step) panel[step * width + j] = 0;
      continue;
    }
    T const* const row = source + j * ld;
    if (j + 4 > columns) {
      for (; step < steps; ++step) panel[step * width + j] = word_along(row, step, k, type);
      continue;
    }
#if TRIREME_X86
    for (; step < whole; step += 4) {
      __m128 a = words_along(row, step, type);
      __m128 b = words_along(row + ld, step, type);
      __m128 c = words_along(row + 2 * ld, step, type);
      __m128 d = words_along(row + 3 * ld, step, type);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      auto* const to = reinterpret_cast<float*>(panel + step * width + j);
      _mm_storeu_ps(to, a);
      _mm_storeu_ps(to + width, b);
      _mm_storeu_ps(to + 2 * width, c);
      _mm_storeu_ps(to + 3 * width, d);
    }
#endif
    for (; step < steps; ++step) {
      for (int i = 0; i < 4; ++i) panel[step * width + j + i] = word_along(row + i * ld, step, k, type);
    }
  }
}

/// sums[j] += the sum of column j of a panel, whose width is 8, 16 or 32.
template <class Word>
void add_panel_columns(float* sums, Word const* panel, std::int64_t steps, int width, int columns) {
  alignas(16) float total[32] = {};
#if TRIREME_X86
  for (int j = 0; j < width; j += 8) {
    __m128 low = _mm_setzero_ps();
    __m128 high = _mm_setzero_ps();
    for (std::int64_t step = 0; step < steps; ++step) {
      auto const* const from = m128i_at(panel + step * width + j);
      __m128i const a = _mm_loadu_si128(from);
      __m128i const b = _mm_loadu_si128(from + 1);
      if constexpr (std::is_same_v<Word, float>) {
        low = _mm_add_ps(low, _mm_castsi128_ps(a));
        high = _mm_add_ps(high, _mm_castsi128_ps(b));
      } else {  // a pair of bfloat16: the first in the lower half
        __m128i const upper = _mm_set1_epi32(static_cast<int>(0xffff0000U));
        low = _mm_add_ps(
            low, _mm_add_ps(_mm_castsi128_ps(_mm_slli_epi32(a, 16)), _mm_castsi128_ps(_mm_and_si128(a, upper))));
        high = _mm_add_ps(
            high, _mm_add_ps(_mm_castsi128_ps(_mm_slli_epi32(b, 16)), _mm_castsi128_ps(_mm_and_si128(b, upper))));
      }
    }
    _mm_store_ps(total + j, low);
    _mm_store_ps(total + j + 4, high);
  }
#endif
  for (int j = 0; j < columns; ++j) sums[j] += total[j];
}

}  // namespace trireme::ops::detail
