// Attention of one head of one sample in bfloat16, with products of tiles; included for the CPU level that has tile
// registers, and in tests with an emulation of them (see simd.hpp, tiles.hpp). The method is that of attention.inl.
//
// Scores have a query row in each lane, as there, so every product has the depth of its left operand along its rows:
// scores = keys queries^T, result^T = values^T shares, and backward dvalues = shares^T slopes, dkeys = dshares^T
// queries, dqueries^T = keys^T dshares. Right operands are stored in panels of 32 columns, two rows in a word.
// Probabilities and their gradients are rounded to bfloat16 for the products; sums, softmax and lse stay in float.
namespace trireme::ops::detail::TRIREME_LEVEL {

/// 2^x with error 2e-7 for x below 127.5; 0 below -126.5, NaN stays NaN. Rounding to bfloat16 hides the error.
template <class F>
TRIREME_INLINE F exponential_of_two(F x) {
  x = max(F::all(-127.0F), x);
  F const n = round(x);
  F const r = x - n;
  F p = F::all(1.339086336e-3F);
  p = fma(p, r, F::all(9.676031918e-3F));
  p = fma(p, r, F::all(5.550357114e-2F));
  p = fma(p, r, F::all(2.402210749e-1F));
  p = fma(p, r, F::all(6.931471880e-1F));
  p = fma(p, r, F::all(1.0F));
  return p * power_of_two(n);
}

/// The lanes of two rows of keys, rounded: as words of two in `pairs`, and also as rows if these are given.
template <class F>
TRIREME_INLINE void store_shares(std::uint32_t* pairs, bfloat16* first_row, bfloat16* second_row, F first, F second) {
#if TRIREME_X86
  if constexpr (F::width == 16) {
    __m256i const a = F::template narrow<bfloat16>(first.v);
    __m256i const b = F::template narrow<bfloat16>(second.v);
    if (pairs != nullptr) {
      __m512i const words = _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
      _mm512_storeu_si512(pairs, words);
    }
    if (first_row != nullptr) {
      _mm256_storeu_si256(m256i_at(first_row), a);
      _mm256_storeu_si256(m256i_at(second_row), b);
    }
    return;
  }
#endif
  bfloat16 rounded[2][F::width];
  first.store(rounded[0]);
  second.store(rounded[1]);
  for (int i = 0; i < F::width; ++i) {
    if (pairs != nullptr) pairs[i] = bfloat16_pair(rounded[0][i], rounded[1][i]);
    if (first_row != nullptr) {
      first_row[i] = rounded[0][i];
      second_row[i] = rounded[1][i];
    }
  }
}

/// Packs rows as left operands: to (padded_rows, padded_width) from (rows, width), zeros around it.
inline void copy_tile_rows(bfloat16* to, bfloat16 const* from, std::int64_t stride, std::int64_t rows,
                           std::int64_t padded_rows, std::int64_t width, std::int64_t padded_width) {
  auto const bytes = static_cast<std::size_t>(width) * sizeof(bfloat16);
  for (std::int64_t row = 0; row < padded_rows; ++row, to += padded_width) {
    auto const filled = row < rows ? width : 0;
    std::memset(static_cast<void*>(to + filled), 0, static_cast<std::size_t>(padded_width - filled) * sizeof(bfloat16));
    if (row < rows) std::memcpy(static_cast<void*>(to), from + row * stride, bytes);
  }
}

/// Packs 32 rows as a right operand with the rows as depth: panels of 32 columns, to (padded_width / 32, 16, 32).
inline void pack_tile_rows(std::uint32_t* to, bfloat16 const* from, std::int64_t stride, std::int64_t rows,
                           std::int64_t width, std::int64_t padded_width) {
  constexpr std::int64_t panel = attention_rows;
  for (std::int64_t column = 0; column < padded_width; column += panel, to += panel * attention_rows / 2) {
    auto const columns = width - column < panel ? width - column : panel;
    pack_across(to, from + column, stride, rows, static_cast<int>(panel), static_cast<int>(columns));
    for (auto i = (rows + 1) / 2 * panel; i < panel * attention_rows / 2; ++i) to[i] = 0;
  }
}

/// Packs 32 rows as a right operand with the rows as columns: to (padded_width / 2, 32).
inline void pack_tile_columns(std::uint32_t* to, bfloat16 const* from, std::int64_t stride, std::int64_t rows,
                              std::int64_t width, std::int64_t padded_width) {
  pack_along(to, from, stride, width, static_cast<int>(attention_rows), static_cast<int>(rows));
  for (auto i = (width + 1) / 2 * attention_rows; i < padded_width / 2 * attention_rows; ++i) to[i] = 0;
}

/// c (rows, columns) = or += a b: a (rows, depth), b in panels of 32 columns; all three in multiples of 32.
template <class Tiles>
inline void tile_block_product(float* c, std::int64_t c_row, bfloat16 const* a, std::int64_t a_row,
                               std::uint32_t const* b, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                               bool accumulate) {
  tile_job job{};
  job.a_row = a_row * static_cast<std::ptrdiff_t>(sizeof(bfloat16));
  job.steps = depth / 2;
  job.c_row = c_row;
  job.accumulate = accumulate;
  for (std::int64_t column = 0; column < columns; column += 32, b += 16 * depth) {
    job.b = reinterpret_cast<char const*>(b);
    for (std::int64_t row = 0; row < rows; row += 32) {
      job.a = reinterpret_cast<char const*>(a + row * a_row);
      job.c = c + row * c_row + column;
      tile_sums<Tiles, 32>(job);
    }
  }
}

/// Rows of a result that is stored transposed: to (rows, width) = factors of the rows * from (width, 32).
template <class F>
inline void unpack_columns(bfloat16* to, std::int64_t stride, float const* from, std::int64_t rows, std::int64_t width,
                           float const* factors) {
  constexpr std::int64_t few = 16;
  alignas(64) float turned[attention_rows * few];
  for (std::int64_t column = 0; column < width; column += few, from += few * attention_rows) {  // padded to 32 columns
#if TRIREME_X86
    for (std::int64_t i = 0; i < few; i += 4) {
      for (std::int64_t r = 0; r < attention_rows; r += 4) {
        float const* const x = from + i * attention_rows + r;
        __m128 a = _mm_loadu_ps(x);
        __m128 b = _mm_loadu_ps(x + attention_rows);
        __m128 c = _mm_loadu_ps(x + 2 * attention_rows);
        __m128 d = _mm_loadu_ps(x + 3 * attention_rows);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        float* const z = turned + r * few + i;
        _mm_storeu_ps(z, a);
        _mm_storeu_ps(z + few, b);
        _mm_storeu_ps(z + 2 * few, c);
        _mm_storeu_ps(z + 3 * few, d);
      }
    }
#else
    for (std::int64_t i = 0; i < few; ++i) {
      for (std::int64_t r = 0; r < attention_rows; ++r) turned[r * few + i] = from[i * attention_rows + r];
    }
#endif
    auto const columns = width - column < few ? width - column : few;
    for (std::int64_t r = 0; r < rows; ++r) {
      F const by = F::all(factors[r]);
      bfloat16* const row = to + r * stride + column;
      TRIREME_FOR_LANES(F, columns, i, count, { (by * F::load(turned + r * few + i, count)).store(row + i, count); })
    }
  }
}

template <class Tiles, class Turn>
inline void attention_tiles_forward(bfloat16* y, float* lse, bfloat16 const* qkv, attention_head const& shape,
                                    float* scratch, Turn turn) {
  using F = lanes_for<bfloat16>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  tile_use<Tiles> const use;
  auto const width = attention_tile_width(shape.width);
  auto const all_rows = shape.padded_rows;
  float* const scores = scratch;                                                               // (T, 32)
  float* const result = scores + all_rows * lanes_of_rows;                                     // (D, 32)
  float* const factors = result + width * lanes_of_rows;                                       // (64, 32)
  float* const offsets = factors + attention_keys * lanes_of_rows;                             // (32)
  float* const masses = offsets + lanes_of_rows;                                               // (32)
  auto* const shares = reinterpret_cast<std::uint32_t*>(masses + lanes_of_rows);               // (T / 2, 32)
  auto* const queries_across = shares + all_rows / 2 * lanes_of_rows;                          // (D / 2, 32)
  auto* const keys = reinterpret_cast<bfloat16*>(queries_across + width / 2 * lanes_of_rows);  // (T, D)
  auto* const values = keys + all_rows * width;                                                // (D, T + 32)
  auto const values_row = all_rows + 32;
  float const scale = 1 / std::sqrt(static_cast<float>(shape.width));
  F const slope = F::all(scale * 1.44269504F);  // of a score, in the exponent of 2
  copy_tile_rows(keys, qkv + shape.channels, shape.qkv_stride, shape.context, all_rows, shape.width, width);
  turn({values, values_row, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, all_rows, shape.width, width});

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    attention_span const span(shape.sight, row);
    auto const begin = span.begin();
    auto const end = span.end();
    for (int part = 0; part < 3; ++part) prefetch_next(qkv, shape, row, rows, part);
    prefetch_rows<1>(y + row * shape.y_stride, shape.y_stride, rows, shape.width);
    pack_tile_columns(queries_across, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, shape.width, width);
    tile_block_product<Tiles>(scores + begin * lanes_of_rows, lanes_of_rows, keys + begin * width, width,
                              queries_across, end - begin, lanes_of_rows, width, false);
    for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
      hide_scores<F>(scores + v, span, span.seen(v), end, v);
      (F::all(0) - slope * masked_peak<F>(scores + v, span, v)).store(offsets + v);
      F::all(0).store(masses + v);
    }
    for (key_range part{begin, 0, 0}; part.key < end; part.key += part.keys) {
      part.keys = end - part.key < attention_keys ? end - part.key : attention_keys;
      bool const drops = shape.dropout != nullptr;
      if (drops) attention_dropout(factors, shape, row, part);
      for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
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
          store_shares<F>(shares + (part.key + k) / 2 * lanes_of_rows + v, nullptr, nullptr, p[0], p[1]);
        }
        (totals[0] + totals[1]).store(masses + v);
      }
    }
    tile_block_product<Tiles>(result, lanes_of_rows, values + begin, values_row, shares + begin / 2 * lanes_of_rows,
                              width, lanes_of_rows, end - begin, false);
    for (std::int64_t r = 0; r < rows; ++r) {
      lse[row + r] = std::log(masses[r]) - offsets[r] * 0.69314718F;
      masses[r] = one_over_mass(masses[r]);
    }
    unpack_columns<F>(y + row * shape.y_stride, shape.y_stride, result, rows, shape.width, masses);
  }
}

template <class Tiles, class Turn>
inline void attention_tiles_backward(bfloat16* dqkv, bfloat16 const* dy, bfloat16 const* y, float const* lse,
                                     bfloat16 const* qkv, attention_head const& shape, float* scratch, Turn turn) {
  using F = lanes_for<bfloat16>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  tile_use<Tiles> const use;
  auto const width = attention_tile_width(shape.width);
  auto const all_rows = shape.padded_rows;
  auto const matrix = all_rows * width;
  auto const block = lanes_of_rows * width / 2;
  auto const chunk = attention_keys * lanes_of_rows;
  float* const dkeys = scratch;                                                    // (T, D)
  float* const dvalues = dkeys + matrix;                                           // (T, D)
  float* const dqueries = dvalues + matrix;                                        // (D, 32)
  float* const scores = dqueries + 2 * block;                                      // (64, 32)
  float* const dscores = scores + chunk;                                           // (64, 32)
  float* const factors = dscores + chunk;                                          // (64, 32)
  float* const offsets = factors + chunk;                                          // (32)
  float* const deltas = offsets + lanes_of_rows;                                   // (32)
  float* const scales = deltas + lanes_of_rows;                                    // (32)
  auto* const queries = reinterpret_cast<std::uint32_t*>(scales + lanes_of_rows);  // (D / 32, 16, 32)
  auto* const queries_across = queries + block;                                    // (D / 2, 32)
  auto* const slopes = queries_across + block;                                     // (D / 32, 16, 32)
  auto* const slopes_across = slopes + block;                                      // (D / 2, 32)
  auto* const dshare_pairs = slopes_across + block;                                // (32, 32)
  auto* const shares = reinterpret_cast<bfloat16*>(dshare_pairs + chunk / 2);      // (64, 32)
  auto* const dshares = shares + chunk;                                            // (64, 32)
  auto* const keys = dshares + chunk;                                              // (T, D)
  auto* const values = keys + matrix;                                              // (T, D)
  auto* const keys_turned = values + matrix;                                       // (D, T + 32)
  auto const turned_row = all_rows + 32;
  float const scale = 1 / std::sqrt(static_cast<float>(shape.width));
  F const slope = F::all(scale * 1.44269504F);
  copy_tile_rows(keys, qkv + shape.channels, shape.qkv_stride, shape.context, all_rows, shape.width, width);
  copy_tile_rows(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, all_rows, shape.width, width);
  turn({keys_turned, turned_row, qkv + shape.channels, shape.qkv_stride, shape.context, all_rows, shape.width, width});
  for (std::int64_t i = 0; i < 2 * matrix; i += F::width) F::all(0).store(dkeys + i);
  for (std::int64_t r = 0; r < lanes_of_rows; ++r) scales[r] = scale;

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    attention_span const span(shape.sight, row);
    auto const begin = span.begin();
    auto const end = span.end();
    bfloat16 const* const query_rows = qkv + row * shape.qkv_stride;
    bfloat16 const* const dy_rows = dy + row * shape.y_stride;
    bfloat16 const* const y_rows = y + row * shape.y_stride;
    for (int part = 0; part < 3; ++part) prefetch_next(qkv, shape, row, rows, part);
    prefetch_next_result(dy_rows, shape, rows);
    prefetch_next_result(y_rows, shape, rows);
    pack_tile_rows(queries, query_rows, shape.qkv_stride, rows, shape.width, width);
    pack_tile_rows(slopes, dy_rows, shape.y_stride, rows, shape.width, width);
    pack_tile_columns(queries_across, query_rows, shape.qkv_stride, rows, shape.width, width);
    pack_tile_columns(slopes_across, dy_rows, shape.y_stride, rows, shape.width, width);
    row_products<F>(deltas, dy_rows, y_rows, shape.y_stride, rows, shape.width);
    for (std::int64_t r = 0; r < lanes_of_rows; ++r) offsets[r] = r < rows ? lse[row + r] * -1.44269504F : 0;
    for (key_range part{begin, 0, 0}; part.key < end; part.key += part.keys) {
      part.keys = end - part.key < attention_keys ? end - part.key : attention_keys;
      auto const at_keys = part.key * width;
      tile_block_product<Tiles>(scores, lanes_of_rows, keys + at_keys, width, queries_across, part.keys, lanes_of_rows,
                                width, false);
      tile_block_product<Tiles>(dscores, lanes_of_rows, values + at_keys, width, slopes_across, part.keys,
                                lanes_of_rows, width, false);
      bool const drops = shape.dropout != nullptr;
      if (drops) attention_dropout(factors, shape, row, part);
      bool const edge = span.edge(part.key, part.keys);
      for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
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
              p[i] = seen_lanes(seen, v, p[i], F::all(0));
            }
            F dp = F::load(dscores + at);
            if (drops) dp = dp * F::load(factors + at);
            ds[i] = p[i] * (dp - delta);
            if (drops) p[i] = p[i] * F::load(factors + at);
          }
          auto const at = k * lanes_of_rows + v;
          store_shares<F>(nullptr, shares + at, shares + at + lanes_of_rows, p[0], p[1]);
          store_shares<F>(dshare_pairs + k / 2 * lanes_of_rows + v, dshares + at, dshares + at + lanes_of_rows, ds[0],
                          ds[1]);
        }
      }
      tile_block_product<Tiles>(dvalues + at_keys, width, shares, lanes_of_rows, slopes, part.keys, width,
                                lanes_of_rows, true);
      tile_block_product<Tiles>(dkeys + at_keys, width, dshares, lanes_of_rows, queries, part.keys, width,
                                lanes_of_rows, true);
      tile_block_product<Tiles>(dqueries, lanes_of_rows, keys_turned + part.key, turned_row, dshare_pairs, width,
                                lanes_of_rows, part.keys, part.key > begin);
    }
    unpack_columns<F>(dqkv + row * shape.qkv_stride, shape.qkv_stride, dqueries, rows, shape.width, scales);
  }
  unpack_rows<F>(dqkv + shape.channels, shape.qkv_stride, dkeys, shape.context, shape.width, width, scale);
  unpack_rows<F>(dqkv + 2 * shape.channels, shape.qkv_stride, dvalues, shape.context, shape.width, width, 1.0F);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
