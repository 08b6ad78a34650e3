// Attention of some queries of one head of one sample over some of its keys; included once for each CPU level (see
// simd.hpp). Has the memory layout of attention.inl and uses its helpers.
namespace trireme::ops::detail::TRIREME_LEVEL {

// to (rows, width) = kept * to + added * from.
template <class F, class T, class Real>
inline void merge_rows(T* to, std::int64_t stride, Real const* from, std::int64_t rows, std::int64_t width,
                       std::int64_t padded_width, Real kept, Real added) {
  F const old = F::all(kept);
  F const by = F::all(added);
  for (std::int64_t row = 0; row < rows; ++row, from += padded_width, to += stride) {
    TRIREME_FOR_LANES(F, width, i, count,
                      { fma(by, F::load(from + i, count), old * F::load(to + i, count)).store(to + i, count); })
  }
}

// Updates y and lse to the attention over these keys and the earlier ones.
template <class T, class A>
inline void attend_block(A* y, A* lse, T const* queries_of, T const* pairs, attention_head const& shape,
                         attention_block const& at, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  A* const keys = scratch;                                        // (n, D)
  A* const values = keys + matrix;                                // (n, D)
  A* const queries = values + matrix;                             // (32, D)
  A* const queries_across = queries + lanes_of_rows * width;      // (D, 32)
  A* const result = queries_across + lanes_of_rows * width;       // (32, D)
  A* const scores = result + lanes_of_rows * width;               // (n, 32)
  A* const factors = scores + shape.padded_rows * lanes_of_rows;  // (64, 32)
  A* const peaks = factors + attention_keys * lanes_of_rows;      // (32)
  A* const masses = peaks + lanes_of_rows;                        // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  auto const pair = 2 * shape.channels;
  pack_rows<F>(keys, pairs, pair, at.rows, shape.padded_rows, shape.width, width, A(1));
  pack_rows<F>(values, pairs + shape.channels, pair, at.rows, shape.padded_rows, shape.width, width, A(1));

  for (std::int64_t row = 0; row < at.rows; row += lanes_of_rows) {
    auto const rows = at.rows - row < lanes_of_rows ? at.rows - row : lanes_of_rows;
    attention_span const span(shape.sight, row);
    pack_rows<F>(queries, queries_of + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width,
                 width, scale);
    transpose_block(queries_across, queries, width);
    for (auto part = span.first(); part.keys > 0; part = span.after(part)) {
      block_product<F>(scores + part.key * lanes_of_rows + part.skipped, lanes_of_rows, keys + part.key * width, width,
                       std::int64_t{1}, queries_across + part.skipped, lanes_of_rows, part.keys,
                       lanes_of_rows - part.skipped, width, false);
    }
    for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
      F const top = masked_peak<F>(scores + v, span, v);
      F total = F::all(0);
      for (std::int64_t key = span.begin(); key < span.seen(v); ++key) {
        A* const score = scores + key * lanes_of_rows + v;
        F const p = exp(F::load(score) - top);
        total = total + p;
        p.store(score);
      }
      top.store(peaks + v);
      total.store(masses + v);
    }
    for (auto part = span.first(); part.keys > 0; part = span.after(part)) {
      A* const shares = scores + part.key * lanes_of_rows;
      if (shape.dropout != nullptr) {
        attention_dropout(factors, shape, at.first_query + row, {at.first_key + part.key, part.keys, 0});
        for (std::int64_t i = 0; i < part.keys * lanes_of_rows; i += F::width) {
          (F::load(shares + i) * F::load(factors + i)).store(shares + i);
        }
      }
      block_product<F>(result + part.skipped * width, width, shares + part.skipped, std::int64_t{1}, lanes_of_rows,
                       values + part.key * width, width, lanes_of_rows - part.skipped, width, part.keys,
                       part.key > span.begin());
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      if (exactly_equal(masses[r], 0)) continue;  // it attends to none of these keys
      A const here = peaks[r] + std::log(masses[r]);
      A const before = lse[row + r];
      A const more = before > here ? before : here;
      A const both = more + std::log(std::exp(before - more) + std::exp(here - more));
      merge_rows<F>(y + (row + r) * shape.y_stride, shape.y_stride, result + r * width, 1, shape.width, width,
                    std::exp(before - both), std::exp(peaks[r] - both));
      lse[row + r] = both;
    }
  }
}

// Adds to the gradients of these queries and pairs; lse and y are those over all keys. Formulas: attention_backward.
template <class T, class A>
inline void attend_block_backward(A* dqueries_of, A* dpairs, T const* dy, T const* y, A const* lse, T const* queries_of,
                                  T const* pairs, attention_head const& shape, attention_block const& at, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  auto const block = lanes_of_rows * width;
  A* const keys = scratch;                                      // (n, D)
  A* const values = keys + matrix;                              // (n, D)
  A* const dkeys = values + matrix;                             // (n, D)
  A* const dvalues = dkeys + matrix;                            // (n, D)
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
  auto const pair = 2 * shape.channels;
  pack_rows<F>(keys, pairs, pair, at.rows, shape.padded_rows, shape.width, width, A(1));
  pack_rows<F>(values, pairs + shape.channels, pair, at.rows, shape.padded_rows, shape.width, width, A(1));
  for (std::int64_t i = 0; i < 2 * matrix; i += F::width) F::all(0).store(dkeys + i);

  for (std::int64_t row = 0; row < at.rows; row += lanes_of_rows) {
    auto const rows = at.rows - row < lanes_of_rows ? at.rows - row : lanes_of_rows;
    attention_span const span(shape.sight, row);
    T const* const dy_rows = dy + row * shape.y_stride;
    pack_rows<F>(queries, queries_of + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width,
                 width, scale);
    pack_rows<F>(slopes, dy_rows, shape.y_stride, rows, lanes_of_rows, shape.width, width, A(1));
    transpose_block(queries_across, queries, width);
    transpose_block(slopes_across, slopes, width);
    row_products<F>(deltas, dy_rows, y + row * shape.y_stride, shape.y_stride, rows, shape.width);
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
      if (drops) attention_dropout(factors, shape, at.first_query + row, {at.first_key + part.key, part.keys, 0});
      bool const edge = span.edge(part.key, part.keys);
      for (std::int64_t v = skipped; v < lanes_of_rows; v += F::width) {
        F const log_mass = F::load(logs + v);
        F const delta = F::load(deltas + v);
        attention_span::walk seen(span);
        for (std::int64_t k = 0; k < part.keys; ++k) {
          auto const i = k * lanes_of_rows + v;
          F p = exp(F::load(scores + i) - log_mass);
          if (edge) {
            seen.to_key(part.key + k);
            p = seen_lanes(seen, v, p, F::all(0));
          }
          F const factor = drops ? F::load(factors + i) : F::all(1);
          (p * factor).store(scores + i);
          (p * fma(F::load(dscores + i), factor, F::all(0) - delta)).store(dscores + i);
        }
      }
      block_product<F>(dvalues + at_keys, width, scores + skipped, lanes_of_rows, std::int64_t{1},
                       slopes + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dkeys + at_keys, width, dscores + skipped, lanes_of_rows, std::int64_t{1},
                       queries + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dqueries + skipped * width, width, dscores + skipped, std::int64_t{1}, lanes_of_rows,
                       keys + at_keys, width, unskipped, width, part.keys, part.key > span.begin());
    }
    merge_rows<F>(dqueries_of + row * shape.y_stride, shape.y_stride, dqueries, rows, shape.width, width, A(1), scale);
  }
  merge_rows<F>(dpairs, pair, dkeys, at.rows, shape.width, width, A(1), A(1));
  merge_rows<F>(dpairs + shape.channels, pair, dvalues, at.rows, shape.width, width, A(1), A(1));
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
