// Attention of one head of one sample in bfloat16, with the instruction that multiplies pairs; included for the CPU
// level that has it (see simd.hpp). The method is that of attention.inl.
//
// The instruction takes two neighbours along the depth of a product at once, so every operand is stored in words of two
// numbers: neighbours in a row if the depth runs along rows, and the same column of two rows if it runs across them.
// Probabilities and their gradients are rounded to bfloat16 for the products; sums, softmax and lse stay in float.
#include "trireme/ops/host/detail/attention_products.inl"

namespace trireme::ops::detail::TRIREME_LEVEL {
#if TRIREME_X86

/// 16 words of two bfloat16, which are multiplied into 16 float lanes.
struct word_lanes {
  __m512i v;
  static TRIREME_INLINE word_lanes all(std::uint32_t word) { return {_mm512_set1_epi32(static_cast<int>(word))}; }
  static TRIREME_INLINE word_lanes load(std::uint32_t const* p) { return {_mm512_loadu_si512(p)}; }
};
TRIREME_INLINE avx512::lanes fma(word_lanes a, word_lanes b, avx512::lanes c) {
  return {_mm512_dpbf16_ps(c.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}

/// 2^x with error 2e-7 for x below 128; 0 far below, NaN stays NaN. Rounding to bfloat16 hides the error.
TRIREME_INLINE avx512::lanes exponential_of_two(avx512::lanes x) {
  using F = avx512::lanes;
  x = max(F::all(-200.0F), x);
  F const n = round(x);
  F const r = x - n;
  F p = F::all(1.339086336e-3F);
  p = fma(p, r, F::all(9.676031918e-3F));
  p = fma(p, r, F::all(5.550357114e-2F));
  p = fma(p, r, F::all(2.402210749e-1F));
  p = fma(p, r, F::all(6.931471880e-1F));
  p = fma(p, r, F::all(1.0F));
  return {_mm512_scalef_ps(p.v, n.v)};
}

/// The lanes of two rows in bfloat16: all of the first, then all of the second.
TRIREME_INLINE __m512i rounded_rows(avx512::lanes first, avx512::lanes second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v));
}
TRIREME_INLINE void store_rows(std::uint32_t* to, std::int64_t stride, __m512i rows) {
  _mm256_storeu_si256(m256i_at(to), _mm512_castsi512_si256(rows));
  _mm256_storeu_si256(m256i_at(to + stride), _mm512_extracti64x4_epi64(rows, 1));
}
/// The words of two numbers, one from each of such rows.
TRIREME_INLINE __m512i paired_rows(__m512i rows) {
  __m512i const order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i const second = _mm512_slli_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(16)), 16);
  return _mm512_permutexvar_epi16(_mm512_or_si512(order, second), rows);
}

/// Packs rows as words along them: to (padded_rows, padded_width / 2) from (rows, width), zeros around it.
inline void pack_words(std::uint32_t* to, bfloat16 const* from, std::int64_t stride, std::int64_t rows,
                       std::int64_t padded_rows, std::int64_t width, std::int64_t padded_width) {
  auto const bytes = static_cast<std::size_t>(width) * sizeof(bfloat16);
  for (std::int64_t row = 0; row < padded_rows; ++row, to += padded_width / 2) {
    for (std::int64_t i = row < rows ? width / 2 : 0; i < padded_width / 2; ++i) to[i] = 0;
    if (row < rows) std::memcpy(to, from + row * stride, bytes);
  }
}

/// Packs pairs of rows as words: to (padded_rows / 2, padded_width) from (rows, width), zeros around it.
inline void pack_pairs(std::uint32_t* to, bfloat16 const* from, std::int64_t stride, std::int64_t rows,
                       std::int64_t padded_rows, std::int64_t width, std::int64_t padded_width) {
  pack_across(to, from, stride, rows, static_cast<int>(padded_width), static_cast<int>(width));
  for (std::int64_t i = (rows + 1) / 2 * padded_width; i < padded_rows / 2 * padded_width; ++i) to[i] = 0;
}

template <class T, class A>
inline void attention_forward(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
  using F = avx512::lanes;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const words = width / 2;
  A* const scores = scratch;                                                    // (T, 32)
  A* const result = scores + shape.padded_rows * lanes_of_rows;                 // (32, D)
  A* const factors = result + lanes_of_rows * width;                            // (64, 32)
  A* const offsets = factors + attention_keys * lanes_of_rows;                  // (32)
  A* const masses = offsets + lanes_of_rows;                                    // (32)
  auto* const keys = reinterpret_cast<std::uint32_t*>(masses + lanes_of_rows);  // (T, D / 2)
  auto* const values = keys + shape.padded_rows * words;                        // (T / 2, D)
  auto* const queries_across = values + shape.padded_rows * words;              // (D / 2, 32)
  auto* const shares = queries_across + words * lanes_of_rows;                  // (32, 32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  F const slope = F::all(scale * A(1.44269504));  // of a score, in the exponent of 2
  pack_words(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);
  pack_pairs(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    attention_span const span(shape.sight, row);
    avx512::prefetch_next(qkv, shape, row, rows, 0);
    avx512::prefetch_rows<1>(y + row * shape.y_stride, shape.y_stride, rows, shape.width);
    pack_along(queries_across, qkv + row * shape.qkv_stride, shape.qkv_stride, shape.width, lanes_of_rows,
               static_cast<int>(rows));
    for (auto part = span.first(); part.keys > 0; part = span.after(part)) {
      block_product<F, word_lanes>(scores + part.key * lanes_of_rows + part.skipped, lanes_of_rows,
                                   keys + part.key * words, words, std::int64_t{1}, queries_across + part.skipped,
                                   lanes_of_rows, part.keys, lanes_of_rows - part.skipped, (shape.width + 1) / 2,
                                   false);
    }
    avx512::prefetch_next(qkv, shape, row, rows, 1);
    for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
      (F::all(0) - slope * avx512::masked_peak<F>(scores + v, span, v)).store(offsets + v);
      F::all(0).store(masses + v);
    }
    avx512::prefetch_next(qkv, shape, row, rows, 2);
    for (auto part = span.first(); part.keys > 0; part = span.after(part)) {
      bool const drops = shape.dropout != nullptr;
      if (drops) avx512::attention_dropout(factors, shape, row, part);
      for (std::int64_t v = part.skipped; v < lanes_of_rows; v += F::width) {
        F const offset = F::load(offsets + v);
        F totals[2] = {F::load(masses + v), F::all(0)};
        for (std::int64_t k = 0; k < part.keys; k += 2) {
          F p[2];
          TRIREME_UNROLL
          for (int i = 0; i < 2; ++i) {
            auto const at = (k + i) * lanes_of_rows + v;
            p[i] = exponential_of_two(fma(F::load(scores + part.key * lanes_of_rows + at), slope, offset));
            totals[i] = totals[i] + p[i];
            if (drops) p[i] = p[i] * F::load(factors + at);
          }
          _mm512_storeu_si512(shares + k / 2 * lanes_of_rows + v, paired_rows(rounded_rows(p[0], p[1])));
        }
        (totals[0] + totals[1]).store(masses + v);
      }
      block_product<F, word_lanes>(result + part.skipped * width, width, shares + part.skipped, std::int64_t{1},
                                   lanes_of_rows, values + part.key * words, width, lanes_of_rows - part.skipped, width,
                                   part.keys / 2, part.key > span.begin());
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      lse[row + r] = std::log(masses[r]) - offsets[r] * A(0.69314718);
      avx512::unpack_rows<F>(y + (row + r) * shape.y_stride, shape.y_stride, result + r * width, 1, shape.width, width,
                             one_over_mass(masses[r]));
    }
  }
}

template <class T, class A>
inline void attention_backward(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv,
                               attention_head const& shape, A* scratch) {
  using F = avx512::lanes;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  constexpr std::int64_t words_of_rows = lanes_of_rows / 2;
  auto const width = shape.padded_width;
  auto const words = width / 2;
  auto const depth = (shape.width + 1) / 2;
  auto const matrix = shape.padded_rows * width;
  auto const block = lanes_of_rows * words;
  auto const chunk = attention_keys * lanes_of_rows;
  A* const dkeys = scratch;                                                     // (T, D)
  A* const dvalues = dkeys + matrix;                                            // (T, D)
  A* const dqueries = dvalues + matrix;                                         // (32, D)
  A* const scores = dqueries + lanes_of_rows * width;                           // (64, 32)
  A* const dscores = scores + chunk;                                            // (64, 32)
  A* const factors = dscores + chunk;                                           // (64, 32)
  A* const offsets = factors + chunk;                                           // (32)
  A* const deltas = offsets + lanes_of_rows;                                    // (32)
  auto* const keys = reinterpret_cast<std::uint32_t*>(deltas + lanes_of_rows);  // (T, D / 2)
  auto* const key_pairs = keys + matrix / 2;                                    // (T / 2, D)
  auto* const values = key_pairs + matrix / 2;                                  // (T, D / 2)
  auto* const queries = values + matrix / 2;                                    // (16, D)
  auto* const queries_across = queries + block;                                 // (D / 2, 32)
  auto* const slopes = queries_across + block;                                  // (16, D)
  auto* const slopes_across = slopes + block;                                   // (D / 2, 32)
  auto* const shares = slopes_across + block;                                   // (64, 16)
  auto* const dshares = shares + chunk / 2;                                     // (64, 16)
  auto* const dshare_pairs = dshares + chunk / 2;                               // (32, 32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  F const slope = F::all(scale * A(1.44269504));
  pack_words(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);
  pack_pairs(key_pairs, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);
  pack_words(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);
  for (std::int64_t i = 0; i < 2 * matrix; i += F::width) F::all(0).store(dkeys + i);

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    attention_span const span(shape.sight, row);
    T const* const query_rows = qkv + row * shape.qkv_stride;
    T const* const dy_rows = dy + row * shape.y_stride;
    T const* const y_rows = y + row * shape.y_stride;
    for (int part = 0; part < 3; ++part) avx512::prefetch_next(qkv, shape, row, rows, part);
    avx512::prefetch_next_result(dy_rows, shape, rows);
    avx512::prefetch_next_result(y_rows, shape, rows);
    pack_pairs(queries, query_rows, shape.qkv_stride, rows, lanes_of_rows, shape.width, width);
    pack_pairs(slopes, dy_rows, shape.y_stride, rows, lanes_of_rows, shape.width, width);
    pack_along(queries_across, query_rows, shape.qkv_stride, shape.width, lanes_of_rows, static_cast<int>(rows));
    pack_along(slopes_across, dy_rows, shape.y_stride, shape.width, lanes_of_rows, static_cast<int>(rows));
    avx512::row_products<F>(deltas, dy_rows, y_rows, shape.y_stride, rows, shape.width);
    for (std::int64_t r = 0; r < lanes_of_rows; ++r) offsets[r] = r < rows ? lse[row + r] * A(-1.44269504) : A(0);
    for (auto part = span.first(); part.keys > 0; part = span.after(part)) {
      auto const at_keys = part.key * width;
      auto const skipped = part.skipped;
      auto const unskipped = lanes_of_rows - skipped;
      block_product<F, word_lanes>(scores + skipped, lanes_of_rows, keys + at_keys / 2, words, std::int64_t{1},
                                   queries_across + skipped, lanes_of_rows, part.keys, unskipped, depth, false);
      block_product<F, word_lanes>(dscores + skipped, lanes_of_rows, values + at_keys / 2, words, std::int64_t{1},
                                   slopes_across + skipped, lanes_of_rows, part.keys, unskipped, depth, false);
      bool const drops = shape.dropout != nullptr;
      if (drops) avx512::attention_dropout(factors, shape, row, part);
      bool const edge = span.edge(part.key, part.keys);
      for (std::int64_t v = skipped; v < lanes_of_rows; v += F::width) {
        F const offset = F::load(offsets + v);
        F const delta = F::load(deltas + v);
        attention_span::walk seen(span);
        for (std::int64_t k = 0; k < part.keys; k += 2) {
          F p[2];
          F ds[2];
          TRIREME_UNROLL
          for (int i = 0; i < 2; ++i) {
            auto const at = (k + i) * lanes_of_rows + v;
            p[i] = exponential_of_two(fma(F::load(scores + at), slope, offset));
            if (edge) {
              seen.to_key(part.key + k + i);
              p[i] = avx512::seen_lanes(seen, v, p[i], F::all(0));
            }
            F dp = F::load(dscores + at);
            if (drops) dp = dp * F::load(factors + at);
            ds[i] = p[i] * (dp - delta);
            if (drops) p[i] = p[i] * F::load(factors + at);
          }
          auto const at = k * words_of_rows + v / 2;
          store_rows(shares + at, words_of_rows, rounded_rows(p[0], p[1]));
          __m512i const dshare_rows = rounded_rows(ds[0], ds[1]);
          store_rows(dshares + at, words_of_rows, dshare_rows);
          _mm512_storeu_si512(dshare_pairs + k / 2 * lanes_of_rows + v, paired_rows(dshare_rows));
        }
      }
      block_product<F, word_lanes>(dvalues + at_keys, width, shares + skipped / 2, words_of_rows, std::int64_t{1},
                                   slopes + skipped / 2 * width, width, part.keys, width, unskipped / 2, true);
      block_product<F, word_lanes>(dkeys + at_keys, width, dshares + skipped / 2, words_of_rows, std::int64_t{1},
                                   queries + skipped / 2 * width, width, part.keys, width, unskipped / 2, true);
      block_product<F, word_lanes>(dqueries + skipped * width, width, dshare_pairs + skipped, std::int64_t{1},
                                   lanes_of_rows, key_pairs + at_keys / 2, width, unskipped, width, part.keys / 2,
                                   part.key > span.begin());
    }
    avx512::unpack_rows<F>(dqkv + row * shape.qkv_stride, shape.qkv_stride, dqueries, rows, shape.width, width, scale);
  }
  avx512::unpack_rows<F>(dqkv + shape.channels, shape.qkv_stride, dkeys, shape.context, shape.width, width, scale);
  avx512::unpack_rows<F>(dqkv + 2 * shape.channels, shape.qkv_stride, dvalues, shape.context, shape.width, width, A(1));
}

#endif
}  // namespace trireme::ops::detail::TRIREME_LEVEL
