// Attention of one head of one sample; included once for each CPU level (see simd.hpp).
//
// Scores are stored transposed, with one lane per query row: (keys, 32). So softmax runs along memory, without sums
// across lanes, and every operand of every product is contiguous.
#include "trireme/ops/host/detail/attention_products.inl"

namespace trireme::ops::detail::TRIREME_LEVEL {

// to (padded_rows, padded_width) = factor * from (rows, width), zeros around it.
template <class F, class Real, class T>
inline void pack_rows(Real* to, T const* from, std::int64_t stride, std::int64_t rows, std::int64_t padded_rows,
                      std::int64_t width, std::int64_t padded_width, Real factor) {
  F const by = F::all(factor);
  for (std::int64_t row = 0; row < padded_rows; ++row, to += padded_width) {
    if (row >= rows) {
      for (std::int64_t i = 0; i < padded_width; ++i) to[i] = 0;
      continue;
    }
    T const* const x = from + row * stride;
    TRIREME_FOR_LANES(F, width, i, count, { (by * F::load(x + i, count)).store(to + i); })
    for (std::int64_t i = (width + F::width - 1) / F::width * F::width; i < padded_width; ++i) to[i] = 0;
  }
}

// Prefetches `rows` rows of `width` elements into the L2 cache, for when they are packed.
template <int Write = 0, class T>
TRIREME_INLINE void prefetch_rows(T const* from, std::int64_t stride, std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t row = 0; row < rows; ++row, from += stride) {
    for (std::int64_t i = 0; i < width; i += line) __builtin_prefetch(from + i, Write, 2);
  }
}

// Prefetches the rows that the next head will need, next to those just used: a head's rows are short and far apart,
// which hardware prefetchers do not follow. Part 0 is the queries, 1 the keys, 2 the values: fetched all at once they
// would delay each other and the products.
template <class T>
TRIREME_INLINE void prefetch_next(T const* qkv, attention_head const& shape, std::int64_t row, std::int64_t rows,
                                  int part) {
  if (shape.next_row < 0) return;
  T const* const next = qkv + (shape.next_row + row) * shape.qkv_stride + shape.next_column;
  prefetch_rows(next + part * shape.channels, shape.qkv_stride, rows, shape.width);
}

template <class T>
TRIREME_INLINE void prefetch_next_result(T const* y_rows, attention_head const& shape, std::int64_t rows) {
  if (shape.next_row < 0) return;
  prefetch_rows(y_rows + shape.next_row * shape.y_stride + shape.next_column, shape.y_stride, rows, shape.width);
}

// sums[r] = the sum of a[r] b[r], for each of a block's rows; 0 if there is no such row.
template <class F, class Real, class T>
inline void row_products(Real* sums, T const* a, T const* b, std::int64_t stride, std::int64_t rows,
                         std::int64_t width) {
  for (std::int64_t r = 0; r < attention_rows; ++r, a += stride, b += stride) {
    F total = F::all(0);
    if (r < rows) {
      TRIREME_FOR_LANES(F, width, i, count, { total = fma(F::load(a + i, count), F::load(b + i, count), total); })
    }
    sums[r] = sum(total);
  }
}

template <class F, class T, class Real>
inline void unpack_rows(T* to, std::int64_t stride, Real const* from, std::int64_t rows, std::int64_t width,
                        std::int64_t padded_width, Real factor) {
  F const by = F::all(factor);
  for (std::int64_t row = 0; row < rows; ++row, from += padded_width, to += stride) {
    TRIREME_FOR_LANES(F, width, i, count, { (by * F::load(from + i, count)).store(to + i, count); })
  }
}

// to (width, 32) = from (32, width) transposed; width is a multiple of 16.
template <class Real>
inline void transpose_block(Real* to, Real const* from, std::int64_t width) {
#if TRIREME_X86
  if constexpr (sizeof(Real) == 4) {
    for (std::int64_t row = 0; row < attention_rows; row += 4) {
      for (std::int64_t i = 0; i < width; i += 4) {
        Real const* const x = from + row * width + i;
        __m128 a = _mm_loadu_ps(x);
        __m128 b = _mm_loadu_ps(x + width);
        __m128 c = _mm_loadu_ps(x + 2 * width);
        __m128 d = _mm_loadu_ps(x + 3 * width);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        Real* const y = to + i * attention_rows + row;
        _mm_storeu_ps(y, a);
        _mm_storeu_ps(y + attention_rows, b);
        _mm_storeu_ps(y + 2 * attention_rows, c);
        _mm_storeu_ps(y + 3 * attention_rows, d);
      }
    }
    return;
  }
#endif
  for (std::int64_t row = 0; row < attention_rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) to[i * attention_rows + row] = from[row * width + i];
  }
}

// factors[(key - part.key) * 32 + row - first_row] = 0 or 1 / (1 - p), for the probabilities at (row, key).
template <class Real>
inline void attention_dropout(Real* factors, attention_head const& shape, std::int64_t first_row,
                              key_range const& part) {
  dropout_scale const how(shape.dropout->probability);
  auto const threshold = static_cast<float>(how.threshold);
  Real const choice[2] = {Real(0), static_cast<Real>(how.kept)};
  alignas(64) float numbers[32];
  for (std::int64_t r = 0; r < attention_rows; ++r) {
    auto const start = ((shape.first_head + shape.head) * shape.context + first_row + r) * shape.context + part.key;
    for (std::int64_t k = 0; k < part.keys;) {
      // A number's position decides its random block; rows need not start at a block.
      auto const position = start + k;
      random_numbers(numbers, shape.dropout->key, shape.dropout->site, shape.sample,
                     static_cast<std::uint32_t>(position / 4));
      for (auto word = position % 4; word < 32 && k < part.keys; ++word, ++k) {
        factors[k * attention_rows + r] = choice[numbers[word] >= threshold ? 1 : 0];
      }
    }
  }
}

// x in the lanes at v whose rows attend to the current key of the walk, and `hidden` in the others.
template <class F>
TRIREME_INLINE F seen_lanes(attention_span::walk const& rows, std::int64_t v, F x, F hidden) {
  return first(rows.from(v), hidden, first(rows.to(v), x, hidden));
}

// Sets the scores of the keys [key, end) to `hidden` in the lanes at v whose rows do not attend to them.
template <class F, class Real>
inline void hide_scores(Real* column, attention_span const& span, std::int64_t key, std::int64_t end, std::int64_t v) {
  attention_span::walk rows(span);
  for (; key < end; ++key) {
    Real* const at = column + key * attention_rows;
    rows.to_key(key);
    seen_lanes(rows, v, F::load(at), F::all(-std::numeric_limits<Real>::infinity())).store(at);
  }
}

// The largest scores of the lanes at v, after masked ones are set to `hidden`. They are finite, so that the weights of
// a row that attends to no key are 0.
template <class F, class Real>
inline F masked_peak(Real* column, attention_span const& span, std::int64_t v) {
  auto const seen = span.seen(v);
  hide_scores<F>(column, span, span.begin(), std::min(span.all_from(), seen), v);
  hide_scores<F>(column, span, std::max(span.all_to(), span.begin()), seen, v);
  F const none = F::all(-std::numeric_limits<Real>::max() / 4);
  F tops[4] = {none, none, none, none};
  for (std::int64_t key = span.begin(); key < seen; key += 4) {
    TRIREME_UNROLL
    for (int k = 0; k < 4; ++k) tops[k] = max(F::load(column + (key + k) * attention_rows), tops[k]);
  }
  return max(max(tops[0], tops[1]), max(tops[2], tops[3]));
}

template <class T, class A>
inline void attention_forward(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  A* const keys = scratch;                                        // (T, D)
  A* const values = keys + matrix;                                // (T, D)
  A* const queries = values + matrix;                             // (32, D)
  A* const queries_across = queries + lanes_of_rows * width;      // (D, 32)
  A* const result = queries_across + lanes_of_rows * width;       // (32, D)
  A* const scores = result + lanes_of_rows * width;               // (T, 32)
  A* const factors = scores + shape.padded_rows * lanes_of_rows;  // (64, 32)
  A* const peaks = factors + attention_keys * lanes_of_rows;      // (32)
  A* const masses = peaks + lanes_of_rows;                        // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  pack_rows<F>(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  pack_rows<F>(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    attention_span const span(shape.sight, row);
    prefetch_next(qkv, shape, row, rows, 0);
    prefetch_rows<1>(y + row * shape.y_stride, shape.y_stride, rows, shape.width);
    pack_rows<F>(queries, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width, width,
                 scale);
    transpose_block(queries_across, queries, width);
    for (auto part = span.first(); part.keys > 0; part = span.after(part)) {
      block_product<F>(scores + part.key * lanes_of_rows + part.skipped, lanes_of_rows, keys + part.key * width, width,
                       std::int64_t{1}, queries_across + part.skipped, lanes_of_rows, part.keys,
                       lanes_of_rows - part.skipped, width, false);
    }
    prefetch_next(qkv, shape, row, rows, 1);
    for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
      A* const column = scores + v;
      auto const seen = span.seen(v);
      F const top = masked_peak<F>(column, span, v);
      F totals[2] = {F::all(0), F::all(0)};
      for (std::int64_t key = span.begin(); key < seen; key += 2) {
        TRIREME_UNROLL
        for (int k = 0; k < 2; ++k) {
          A* const at = column + (key + k) * lanes_of_rows;
          F const p = exp(F::load(at) - top);
          totals[k] = totals[k] + p;
          p.store(at);
        }
      }
      top.store(peaks + v);
      (totals[0] + totals[1]).store(masses + v);
    }
    prefetch_next(qkv, shape, row, rows, 2);
    for (auto part = span.first(); part.keys > 0; part = span.after(part)) {
      A* const shares = scores + part.key * lanes_of_rows;
      if (shape.dropout != nullptr) {
        attention_dropout(factors, shape, row, part);
        for (std::int64_t i = 0; i < part.keys * lanes_of_rows; i += F::width) {
          (F::load(shares + i) * F::load(factors + i)).store(shares + i);
        }
      }
      block_product<F>(result + part.skipped * width, width, shares + part.skipped, std::int64_t{1}, lanes_of_rows,
                       values + part.key * width, width, lanes_of_rows - part.skipped, width, part.keys,
                       part.key > span.begin());
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      lse[row + r] = peaks[r] + std::log(masses[r]);
      unpack_rows<F>(y + (row + r) * shape.y_stride, shape.y_stride, result + r * width, 1, shape.width, width,
                     one_over_mass(masses[r]));
    }
  }
}

// With P the probabilities, recomputed from lse, and delta = sum(dy y) of a row: dv = P^T dy, dP = dy v^T, dS = P (dP -
// delta), dq = dS k, dk = dS^T q.
template <class T, class A>
inline void attention_backward(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv,
                               attention_head const& shape, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  auto const block = lanes_of_rows * width;
  A* const keys = scratch;                                      // (T, D)
  A* const values = keys + matrix;                              // (T, D)
  A* const dkeys = values + matrix;                             // (T, D)
  A* const dvalues = dkeys + matrix;                            // (T, D)
  A* const queries = dvalues + matrix;                          // (32, D)
  A* const queries_across = queries + block;                    // (D, 32)
  A* const slopes = queries_across + block;                     // (32, D)
  A* const slopes_across = slopes + block;                      // (D, 32)
  A* const dqueries = slopes_across + block;                    // (32, D)
  A* const scores = dqueries + block;                           // (64, 32)
  A* const dscores = scores + attention_keys * lanes_of_rows;   // (64, 32)
  A* const factors = dscores + attention_keys * lanes_of_rows;  // (64, 32)
  A* const logs = factors + attention_keys * lanes_of_rows;     // (32)
  A* const deltas = logs + lanes_of_rows;                       // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  pack_rows<F>(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  pack_rows<F>(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  for (std::int64_t i = 0; i < 2 * matrix; i += F::width) F::all(0).store(dkeys + i);

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    attention_span const span(shape.sight, row);
    T const* const dy_rows = dy + row * shape.y_stride;
    T const* const y_rows = y + row * shape.y_stride;
    for (int part = 0; part < 3; ++part) prefetch_next(qkv, shape, row, rows, part);
    prefetch_next_result(dy_rows, shape, rows);
    prefetch_next_result(y_rows, shape, rows);
    pack_rows<F>(queries, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width, width,
                 scale);
    pack_rows<F>(slopes, dy_rows, shape.y_stride, rows, lanes_of_rows, shape.width, width, A(1));
    transpose_block(queries_across, queries, width);
    transpose_block(slopes_across, slopes, width);
    row_products<F>(deltas, dy_rows, y_rows, shape.y_stride, rows, shape.width);
    for (std::int64_t r = 0; r < lanes_of_rows; ++r) logs[r] = r < rows ? lse[row + r] : A(0);
    for (auto part = span.first(); part.keys > 0; part = span.after(part)) {
      auto const at_keys = part.key * width;
      auto const skipped = part.skipped;
      auto const unskipped = lanes_of_rows - skipped;
      block_product<F>(scores + skipped, lanes_of_rows, keys + at_keys, width, std::int64_t{1},
                       queries_across + skipped, lanes_of_rows, part.keys, unskipped, width, false);
      block_product<F>(dscores + skipped, lanes_of_rows, values + at_keys, width, std::int64_t{1},
                       slopes_across + skipped, lanes_of_rows, part.keys, unskipped, width, false);
      bool const drops = shape.dropout != nullptr;
      if (drops) attention_dropout(factors, shape, row, part);
      bool const edge = span.edge(part.key, part.keys);
      for (std::int64_t v = skipped; v < lanes_of_rows; v += F::width) {
        F const log_mass = F::load(logs + v);
        F const delta = F::load(deltas + v);
        attention_span::walk seen(span);
        for (std::int64_t k = 0; k < part.keys; ++k) {
          auto const at = k * lanes_of_rows + v;
          F p = exp(F::load(scores + at) - log_mass);
          if (edge) {
            seen.to_key(part.key + k);
            p = seen_lanes(seen, v, p, F::all(0));
          }
          F const dp = F::load(dscores + at);
          if (drops) {
            F const factor = F::load(factors + at);
            (p * factor).store(scores + at);
            (p * fma(dp, factor, F::all(0) - delta)).store(dscores + at);
          } else {
            p.store(scores + at);
            (p * (dp - delta)).store(dscores + at);
          }
        }
      }
      block_product<F>(dvalues + at_keys, width, scores + skipped, lanes_of_rows, std::int64_t{1},
                       slopes + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dkeys + at_keys, width, dscores + skipped, lanes_of_rows, std::int64_t{1},
                       queries + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dqueries + skipped * width, width, dscores + skipped, std::int64_t{1}, lanes_of_rows,
                       keys + at_keys, width, unskipped, width, part.keys, part.key > span.begin());
    }
    unpack_rows<F>(dqkv + row * shape.qkv_stride, shape.qkv_stride, dqueries, rows, shape.width, width, scale);
  }
  unpack_rows<F>(dqkv + shape.channels, shape.qkv_stride, dkeys, shape.context, shape.width, width, A(1));
  unpack_rows<F>(dqkv + 2 * shape.channels, shape.qkv_stride, dvalues, shape.context, shape.width, width, A(1));
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
