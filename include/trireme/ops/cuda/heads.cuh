#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/formulas.cuh"
#include "trireme/ops/types.hpp"

// Heads in the order that attention needs, rotated by their positions, and their norms: the host's formulas. A block
// takes one row after the other.

namespace trireme::ops::detail::device {

inline constexpr int head_threads = 256;
/// For the gradients of gains: the rows that a block of head_gains adds, and the most blocks of
/// normalise_heads_backward, whatever the device, so that sums have the same order on all.
inline constexpr std::int64_t gain_rows = 32;
inline constexpr std::int64_t gain_blocks = 1024;

/// head_layout in 32 bits, which a device divides faster.
struct head_places {
  int heads, key_heads, width;
  int each;  // queries of a key

  __device__ int query(int head) const { return (each == 1 ? head : head / each * (each + 2) + head % each) * width; }
  __device__ int key(int which) const { return (each == 1 ? heads + which : which * (each + 2) + each) * width; }
  __device__ int value(int which) const { return key(which) + (each == 1 ? heads : 1) * width; }
  __device__ int columns() const { return (heads + 2 * key_heads) * width; }
};

/// The rotations of numbers i to i + Width of the first half of a head, and of those of its second half.
template <class Real, int Width>
struct rotation {
  pack<Real, Width> cosines, sines;

  // From the row's table; without a table they are not used.
  __device__ __forceinline__ rotation(Real const* angles, int i, int width) {
    if (angles == nullptr) return;
    cosines = load<Width>(angles + i);
    sines = load<Width>(angles + width / 2 + i);
  }
};

/// y = the sum of n heads that are side by side in x, rotated if `turns`; these numbers of it. The inverse rotation has
/// a negative sign.
template <int Width, class T, class Real>
__device__ __forceinline__ void turn(T* y, T const* x, int i, int n, bool turns, rotation<Real, Width> const& by,
                                     int width, Real sign) {
  auto const half = (width + 1) / 2;
  bool const both = half + i < width;  // not if the width is odd
  auto const load_both = [&](T const* head, lane<Real>(&of_first)[Width], lane<Real>(&of_second)[Width]) {
    auto const first = load<Width>(head + i);
    auto const second = both ? load<Width>(head + half + i) : first;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      of_first[k] = opened_lane<Real>(first.values[k]);
      of_second[k] = opened_lane<Real>(second.values[k]);
    }
  };
  lane<Real> a[Width], b[Width];
  load_both(x, a, b);
  for (int j = 1; j < n; ++j) {
    lane<Real> more_a[Width], more_b[Width];
    load_both(x + j * width, more_a, more_b);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      a[k] = a[k] + more_a[k];
      b[k] = b[k] + more_b[k];
    }
  }
  pack<T, Width> to_first, to_second;
  TRIREME_DEVICE_UNROLL
  for (int k = 0; k < Width; ++k) {
    auto first = a[k], second = b[k];
    if (turns) {
      lane<Real> const cosine{by.cosines.values[k]}, sine{product(sign, by.sines.values[k])};
      first = fma(a[k], cosine, lane<Real>{0} - b[k] * sine);
      second = fma(a[k], sine, b[k] * cosine);
    }
    to_first.values[k] = narrow<T>(first.v);
    to_second.values[k] = narrow<T>(second.v);
  }
  store(y + i, to_first);
  if (both) store(y + half + i, to_second);
}

/// Calls f(which, i, rotation) for this thread's numbers of a row's heads: the same numbers of several heads, so that
/// their rotation is read once.
template <int Width, class Real, class F>
__device__ __forceinline__ void for_turns(Real const* angles, int width, int heads, F&& f) {
  auto const of_head = (width + 1) / 2 / Width;
  auto const threads = static_cast<int>(blockDim.x);
  auto const across = of_head < threads ? of_head : threads;  // threads that have one head
  auto const step = threads / across;
  auto const first = static_cast<int>(threadIdx.x) / across;
  if (first >= step) return;
  for (auto p = static_cast<int>(threadIdx.x) - first * across; p < of_head; p += across) {
    rotation<Real, Width> const by(angles, p * Width, width);
    for (auto which = first; which < heads; which += step) f(which, p * Width, by);
  }
}

/// qkv = for each query the rotated query, its key, rotated, and its value
template <class T, int Width>
__global__ void __launch_bounds__(head_threads)
    arrange_heads(T* qkv, T const* x, real_for<T> const* table, head_places const how, std::int64_t context,
                  std::int64_t rows) {
  using real = real_for<T>;
  for (auto row = static_cast<std::int64_t>(blockIdx.x); row < rows; row += gridDim.x) {
    T const* const from = x + row * how.columns();
    T* const to = qkv + row * 3 * how.heads * how.width;
    real const* const angles = table == nullptr ? nullptr : table + remainder_of(row, context) * how.width;
    for_turns<Width>(angles, how.width, 3 * how.heads, [&](int which, int i, rotation<real, Width> const& by) {
      bool const is_value = which >= 2 * how.heads;
      auto const place = which < how.heads ? how.query(which)
                         : is_value        ? how.value((which - 2 * how.heads) / how.each)
                                           : how.key((which - how.heads) / how.each);
      turn<Width, T, real>(to + which * how.width, from + place, i, 1, angles != nullptr && !is_value, by, how.width,
                           1);
    });
  }
}

/// dx = its gradient: that of a key and of a value is the sum over its queries, in their order
template <class T, int Width>
__global__ void __launch_bounds__(head_threads)
    arrange_heads_backward(T* dx, T const* dqkv, real_for<T> const* table, head_places const how, std::int64_t context,
                           std::int64_t rows) {
  using real = real_for<T>;
  auto const all = how.heads + 2 * how.key_heads;
  for (auto row = static_cast<std::int64_t>(blockIdx.x); row < rows; row += gridDim.x) {
    T* const to = dx + row * how.columns();
    T const* const from = dqkv + row * 3 * how.heads * how.width;
    real const* const angles = table == nullptr ? nullptr : table + remainder_of(row, context) * how.width;
    for_turns<Width>(angles, how.width, all, [&](int which, int i, rotation<real, Width> const& by) {
      if (which < how.heads) {
        turn<Width, T, real>(to + how.query(which), from + which * how.width, i, 1, angles != nullptr, by, how.width,
                             -1);
        return;
      }
      bool const is_key = which < how.heads + how.key_heads;
      auto const key = which - how.heads - (is_key ? 0 : how.key_heads);
      auto const first = ((is_key ? 1 : 2) * how.heads + key * how.each) * how.width;
      turn<Width, T, real>(to + (is_key ? how.key(key) : how.value(key)), from + first, i, how.each,
                           angles != nullptr && is_key, by, how.width, -1);
    });
  }
}

/// Calls f for one head of a row after the other, by those lanes of a warp that share its numbers: as many as the head
/// has packs of Width, up to a whole warp. All lanes of a warp make the same number of rounds, because each of them
/// takes part in the shuffles.
template <int Width, class F>
__device__ __forceinline__ void for_heads(head_places const& how, int lanes, std::int64_t rows, F&& f) {
  auto const thread = static_cast<int>(threadIdx.x);
  auto const groups = static_cast<int>(blockDim.x) / lanes;
  auto const all = how.heads + 2 * how.key_heads;
  for (auto row = static_cast<std::int64_t>(blockIdx.x); row < rows; row += gridDim.x) {
    for (int first = 0; first < all; first += groups) {
      auto const which = first + thread / lanes;
      auto const key = which < how.heads + how.key_heads ? which - how.heads : which - how.heads - how.key_heads;
      auto const place = which < how.heads                   ? how.query(which)
                         : which < how.heads + how.key_heads ? how.key(key)
                                                             : how.value(key);
      f(row, which, place, which < all, (thread % lanes) * Width, lanes * Width);
    }
  }
}
template <class Real>
__device__ __forceinline__ Real sum_of_lanes(Real x, int lanes) {
  for (int by = lanes / 2; by > 0; by /= 2) x = sum(x, shuffle_xor(x, by));
  return x;
}

/// y = x with an RMS norm of each query and of each key; values are copied
template <class T, int Width>
__global__ void __launch_bounds__(head_threads)
    normalise_heads(T* y, real_for<T>* rstd, T const* x, T const* query_gain, T const* key_gain, head_places const how,
                    int lanes, std::int64_t rows, real_for<T> epsilon) {
  using real = real_for<T>;
  auto const share = quotient(real{1}, static_cast<real>(how.width));
  auto const norms = how.heads + how.key_heads;
  for_heads<Width>(how, lanes, rows, [&](std::int64_t row, int which, int place, bool here, int from, int step) {
    auto const at = row * how.columns() + place;
    real squares = 0;
    pack<T, Width> kept;  // the first, which is the only one of most heads
    if (here && from < how.width) kept = load<Width>(x + at + from);
    if (here && which < norms) {
      for (int i = from; i < how.width; i += step) {
        auto const numbers = i == from ? kept : load<Width>(x + at + i);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k) {
          auto const number = opened_lane<real>(numbers.values[k]).v;
          squares = fused(number, number, squares);
        }
      }
    }
    squares = sum_of_lanes(squares, lanes);
    if (!here) return;
    auto const inverse = quotient(real{1}, root(sum(product(squares, share), epsilon)));
    auto const* const gain = which < how.heads ? query_gain : key_gain;
    for (int i = from; i < how.width; i += step) {
      auto numbers = i == from ? kept : load<Width>(x + at + i);
      if (which < norms) {
        auto const gains = load<Width>(gain + i);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k) {
          auto const normal = product(opened_lane<real>(numbers.values[k]).v, inverse);
          numbers.values[k] = narrow<T>(product(normal, opened_lane<real>(gains.values[k]).v));
        }
      }
      store(y + at + i, numbers);
    }
    if (from == 0 && which < norms) rstd[row * norms + which] = inverse;
  });
}

/// dx = the gradient of x; it may be dy. With Gains, where a lane has one pack of each head: also parts[block][0] and
/// parts[block][1], each `width` numbers: the sums of dy x rstd over the queries, and over the keys, of this block's
/// rows. Else those sums are formed before (head_gains).
template <class T, int Width, bool Gains>
__global__ void __launch_bounds__(head_threads)
    normalise_heads_backward(T* dx, T const* dy, T const* x, real_for<T> const* rstd, T const* query_gain,
                             T const* key_gain, head_places const how, int lanes, std::int64_t rows,
                             real_for<T>* parts) {
  using real = real_for<T>;
  auto const share = quotient(real{1}, static_cast<real>(how.width));
  auto const norms = how.heads + how.key_heads;
  real of_query[Width], of_key[Width];
  TRIREME_DEVICE_UNROLL
  for (int k = 0; k < Width; ++k) of_query[k] = of_key[k] = 0;
  for_heads<Width>(how, lanes, rows, [&](std::int64_t row, int which, int place, bool here, int from, int step) {
    auto const at = row * how.columns() + place;
    bool const is_norm = here && which < norms;
    auto const factor = is_norm ? rstd[row * norms + which] : real{0};
    auto const* const gain = which < how.heads ? query_gain : key_gain;
    real along = 0;
    if (is_norm) {
      for (int i = from; i < how.width; i += step) {
        auto const numbers = load<Width>(x + at + i);
        auto const slopes = load<Width>(dy + at + i);
        auto const gains = load<Width>(gain + i);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k) {
          auto const normal = product(opened_lane<real>(numbers.values[k]).v, factor);
          auto const slope = opened_lane<real>(slopes.values[k]).v;
          along = fused(product(slope, opened_lane<real>(gains.values[k]).v), normal, along);
          if constexpr (Gains) {
            if (which < how.heads)
              of_query[k] = fused(slope, normal, of_query[k]);
            else
              of_key[k] = fused(slope, normal, of_key[k]);
          }
        }
      }
    }
    auto const tilt = -product(sum_of_lanes(along, lanes), share);
    if (!here) return;
    for (int i = from; i < how.width; i += step) {
      auto slopes = load<Width>(dy + at + i);
      if (is_norm) {
        auto const numbers = load<Width>(x + at + i);
        auto const gains = load<Width>(gain + i);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k) {
          auto const normal = product(opened_lane<real>(numbers.values[k]).v, factor);
          auto const scaled = product(opened_lane<real>(slopes.values[k]).v, opened_lane<real>(gains.values[k]).v);
          slopes.values[k] = narrow<T>(product(factor, fused(tilt, normal, scaled)));
        }
      }
      store(dx + at + i, slopes);
    }
  });
  if constexpr (Gains) {
    auto& of_threads = block_shared<real[2][head_threads * Width]>();
    auto const thread = static_cast<int>(threadIdx.x);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      of_threads[0][thread * Width + k] = of_query[k];
      of_threads[1][thread * Width + k] = of_key[k];
    }
    sync_block();
    // Number c of a head is at c, c + lanes * Width, ... of the array.
    for (auto task = thread; task < 2 * how.width; task += head_threads) {
      auto const kind = task < how.width ? 0 : 1;
      real total = 0;
      for (auto c = task - kind * how.width; c < head_threads * Width; c += lanes * Width)
        total = sum(total, of_threads[kind][c]);
      parts[static_cast<std::int64_t>(blockIdx.x) * 2 * how.width + task] = total;
    }
  }
}

/// parts[block][0] and parts[block][1], each `width` numbers: the sums of dy x rstd over the queries, and over the
/// keys, of this block's rows.
template <class T>
__global__ void __launch_bounds__(head_threads)
    head_gains(real_for<T>* parts, T const* dy, T const* x, real_for<T> const* rstd, head_places const how,
               std::int64_t rows) {
  using real = real_for<T>;
  auto& of_threads = block_shared<real[2][head_threads]>();
  auto const thread = static_cast<int>(threadIdx.x);
  auto const norms = how.heads + how.key_heads;
  auto const span = how.width < head_threads ? how.width : head_threads;  // columns at a time
  auto const shares = head_threads / span;                                // of the rows of a column
  auto const first_row = static_cast<std::int64_t>(blockIdx.x) * gain_rows;
  auto const end = first_row + gain_rows < rows ? first_row + gain_rows : rows;
  auto const share = thread / span;
  for (int first = 0; first < how.width; first += span) {
    auto const column = first + thread % span;
    bool const here = share < shares && column < how.width;
    real of_query = 0, of_key = 0;
    for (auto row = first_row + share; here && row < end; row += shares) {
      auto const add = [&](real to, int which, int place) {
        auto const at = row * how.columns() + place + column;
        auto const normal = product(opened_lane<real>(x[at]).v, rstd[row * norms + which]);
        return fused(opened_lane<real>(dy[at]).v, normal, to);
      };
      for (int head = 0; head < how.heads; ++head) of_query = add(of_query, head, how.query(head));
      for (int key = 0; key < how.key_heads; ++key) of_key = add(of_key, how.heads + key, how.key(key));
    }
    of_threads[0][thread] = of_query;
    of_threads[1][thread] = of_key;
    sync_block();
    if (here && share == 0) {
      for (int other = 1; other < shares; ++other) {
        of_query = sum(of_query, of_threads[0][other * span + thread]);
        of_key = sum(of_key, of_threads[1][other * span + thread]);
      }
      real* const to = parts + static_cast<std::int64_t>(blockIdx.x) * 2 * how.width;
      to[column] = of_query;
      to[how.width + column] = of_key;
    }
    sync_block();
  }
}
/// Adds the parts of all blocks to the gradients of the gains: 16 columns a block, 16 sums of every 16th part for each.
template <class Real>
__global__ void __launch_bounds__(head_threads)
    add_head_gains(Real* query_gain, Real* key_gain, Real const* parts, int width, std::int64_t blocks) {
  constexpr int columns = 16;
  constexpr int slices = head_threads / columns;
  auto& of_slices = block_shared<double[slices][columns]>();
  auto const thread = static_cast<int>(threadIdx.x);
  auto const slice = thread / columns;
  auto const column = thread % columns;
  auto const task = static_cast<int>(blockIdx.x) * columns + column;
  double total = 0;
  if (task < 2 * width) {
    for (std::int64_t block = slice; block < blocks; block += slices)
      total = sum(total, static_cast<double>(parts[block * 2 * width + task]));
  }
  of_slices[slice][column] = total;
  sync_block();
  if (slice != 0 || task >= 2 * width) return;
  for (int other = 1; other < slices; ++other) total = sum(total, of_slices[other][column]);
  auto& to = task < width ? query_gain[task] : key_gain[task - width];
  to = static_cast<Real>(sum(static_cast<double>(to), total));
}

inline constexpr int key_threads = 128;

/// The keys that each row of a sample may attend to: one block a sample, of which each thread has some rows side by
/// side. The first row with padding between words is noted in *first_refused, as the complement of its number.
template <class Token>
__global__ void __launch_bounds__(key_threads)
    visible_keys(Token* seen, Token const* tokens, std::int64_t context, token_mask const how,
                 unsigned long long* first_refused) {
  struct found {
    std::int64_t first_word, behind_words;       // of a thread's rows; `context` and 0 if all are padding
    std::int64_t first_separator, behind_separator;  // likewise, if none is a separator
  };
  auto& all = block_shared<found[key_threads]>();
  auto const sample = static_cast<std::int64_t>(blockIdx.x);
  auto const thread = static_cast<int>(threadIdx.x);
  Token const* const words = tokens + sample * context;
  auto const each = (context + key_threads - 1) / key_threads;
  auto const begin = thread * each < context ? thread * each : context;
  auto const end = begin + each < context ? begin + each : context;
  found mine{context, 0, context, 0};
  for (auto at = begin; at < end; ++at) {
    if (!how.is_padding(words[at])) {
      if (mine.first_word == context) mine.first_word = at;
      mine.behind_words = at + 1;
    }
    if (how.is_separator(words[at])) {
      if (mine.first_separator == context) mine.first_separator = at;
      mine.behind_separator = at + 1;
    }
  }
  all[thread] = mine;
  sync_block();
  std::int64_t first = context, behind = 0;   // the words of the sample
  std::int64_t document = 0, next = context;  // begin of the document of my first row, and the first separator after me
  for (int other = 0; other < key_threads; ++other) {
    auto const& theirs = all[other];
    if (theirs.first_word < first) first = theirs.first_word;
    if (theirs.behind_words > behind) behind = theirs.behind_words;
    if (other < thread && theirs.behind_separator > document) document = theirs.behind_separator;
    if (other > thread && theirs.first_separator < next) next = theirs.first_separator;
  }
  if (behind < first) behind = first;  // no words
  Token* const limits = seen + 2 * sample * context;
  // Forwards for where each row's document begins, and backwards for where it ends.
  for (auto at = begin; at < end; ++at) {
    limits[2 * at] = static_cast<Token>(document < first ? first : document);
    if (how.is_separator(words[at])) document = at + 1;
    if (at >= first && at < behind && how.is_padding(words[at]))
      atomic_max(*first_refused, ~static_cast<unsigned long long>(sample * context + at));
  }
  auto document_end = next < context ? next + 1 : context;
  for (auto at = end - 1; at >= begin; --at) {
    if (how.is_separator(words[at])) document_end = at + 1;
    limits[2 * at + 1] = static_cast<Token>(document_end < behind ? document_end : behind);
  }
}

}  // namespace trireme::ops::detail::device
