#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/held.cuh"
#include "trireme/ops/cuda/word_order.cuh"

// Lookup of rows of a table by tokens, and the sums of gradients by token. bfloat16 and float16 are computed in float
// and rounded once.

namespace trireme::ops::detail::device {

/// The tensors of a lookup. Rows of the table that are not in it (those of other ranks) count as 0.
template <class T>
struct table_lookup {
  T* y;
  std::int32_t const* tokens;
  T const* table;
  T const* positions;  // or none
  std::int64_t rows, context, channels;
  std::int64_t first, words;  // the table has rows for tokens from `first` on
};

/// y[row] = table[tokens[row] - first] + positions[row % context], or y[row] += that. A warp has a row, and reads up to
/// `packs` packs of each lane, and the token of its next row, before it waits for any of them.
template <int Width, bool Adds, class T>
__global__ void __launch_bounds__(block_threads) look_up_rows(table_lookup<T> const at) {
  using real = real_for<T>;
  constexpr int packs = Width == 1 ? 4 : 3;
  auto const lane = static_cast<int>(threadIdx.x) % warp_width;
  auto row = first_task() / warp_width;
  auto const step = all_tasks() / warp_width;
  auto token = row < at.rows ? at.tokens[row] : 0;
  for (; row < at.rows; row += step) {
    auto const number = token - at.first;
    if (row + step < at.rows) token = at.tokens[row + step];
    bool const known = number >= 0 && number < at.words;
    T const* const word = at.table + (known ? number * at.channels : 0);
    T* const y = at.y + row * at.channels;
    bool const has_more = Adds || at.positions != nullptr;
    T const* const more = Adds ? y : has_more ? at.positions + row % at.context * at.channels : word;
    for (std::int64_t c = lane * Width; c < at.channels; c += packs * warp_width * Width) {
      as_read<T, Width> of_word[packs], of_more[packs];
      TRIREME_DEVICE_UNROLL
      for (int p = 0; p < packs; ++p) {
        auto const here = c + p * warp_width * Width;
        of_word[p] = of_more[p] = {};
        if (known && here < at.channels) of_word[p].read(word + here);
        if (has_more && here < at.channels) of_more[p].read(more + here);
      }
      TRIREME_DEVICE_UNROLL
      for (int p = 0; p < packs; ++p) {
        auto const here = c + p * warp_width * Width;
        if (here >= at.channels) continue;
        real x[Width];
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k) x[k] = has_more ? sum(of_word[p][k], of_more[p][k]) : of_word[p][k];
        write_numbers(y + here, x);
      }
    }
  }
}

/// segments[b, t] = the number of separators before t in the sample, at most `last`. A warp has a sample.
template <class Token>
__global__ void __launch_bounds__(block_threads)
    count_separators(Token* segments, Token const* tokens, std::int64_t samples, std::int64_t context, Token separator,
                     Token last) {
  auto const lane = static_cast<int>(threadIdx.x) % warp_width;
  auto const below = (lane_mask{1} << lane) - 1;
  for (auto sample = first_task() / warp_width; sample < samples; sample += all_tasks() / warp_width) {
    std::int64_t before = 0;
    for (std::int64_t start = 0; start < context; start += warp_width) {
      auto const t = start + lane;
      auto const i = sample * context + t;
      auto const separators = ballot(t < context && tokens[i] == separator);
      auto const found = before + count_lanes(separators & below);
      if (t < context) segments[i] = found < last ? static_cast<Token>(found) : last;
      before += count_lanes(separators);
    }
  }
}

/// dpositions[t] += the sum over samples of dy[b, t], in order; a sample has `columns` elements. If there are more than
/// `samples_at_once`, the sums of so many samples each are written as rows of `partial` instead.
template <int Width, class G, class T>
__global__ void __launch_bounds__(block_threads)
    sum_over_samples(G* dpositions, real_for<G, T>* partial, T const* dy, std::int64_t samples, std::int64_t columns,
                     std::int64_t samples_at_once) {
  using real = real_for<G, T>;
  auto const packs = columns / Width;
  auto const parts = (samples + samples_at_once - 1) / samples_at_once;
  for (auto task = first_task(); task < packs * parts; task += all_tasks()) {
    auto const part = task / packs;
    auto const c = (task - part * packs) * Width;
    auto const begin = part * samples_at_once;
    auto const end = begin + samples_at_once < samples ? begin + samples_at_once : samples;
    real total[Width] = {};
    if (parts == 1) read_numbers(total, dpositions + c);
    constexpr int together = 4;
    auto b = begin;
    for (; b + together <= end; b += together) {
      real next[together][Width];
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < together; ++k) read_numbers(next[k], dy + (b + k) * columns + c);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < together; ++k) {
        TRIREME_DEVICE_UNROLL
        for (int w = 0; w < Width; ++w) total[w] = sum(total[w], next[k][w]);
      }
    }
    for (; b < end; ++b) {
      real next[Width];
      read_numbers(next, dy + b * columns + c);
      TRIREME_DEVICE_UNROLL
      for (int w = 0; w < Width; ++w) total[w] = sum(total[w], next[w]);
    }
    if (parts == 1)
      write_numbers(dpositions + c, total);
    else
      write_numbers(partial + part * columns + c, total);
  }
}

__device__ __forceinline__ int lowest_lane(lane_mask lanes) { return count_lanes((lanes & (~lanes + 1)) - 1); }

/// The tensors of sums by word: rows of dy are added to the rows of dtable that their words name. `words_in_order` and
/// `rows_in_order` list the rows sorted by word, and by row within a word; words from `words` on are not in the table.
/// A word with more than piece_rows rows is cut into pieces of so many, in order. The sums of its pieces are rows of
/// `partial`: a piece that begins at place p of the list is row p / piece_rows of the first half, or of the second half
/// if it is the last of its word and shorter. No two pieces have the same row, because pieces of a cut word begin at
/// least piece_rows places apart, and so do last pieces of different words.
inline constexpr int piece_rows = 32;
template <class G, class T>
struct word_sums {
  using real = real_for<G, T>;
  G* dtable;
  T const* dy;
  real* partial;
  std::uint32_t const* words_in_order;
  std::int32_t const* rows_in_order;
  std::int64_t rows, channels;
  std::uint32_t words;

  [[nodiscard]] __device__ real* piece_at(std::int64_t place, bool whole) const {
    auto const half = (rows + piece_rows - 1) / piece_rows;
    return partial + (place / piece_rows + (whole ? 0 : half)) * channels;
  }
};

/// Adds the rows of words that have one piece to dtable, and writes the sums of the other words' pieces. A warp has the
/// pieces that begin at places_of_warp neighbouring places, and whole rows of them up to Width * packs columns a lane.
inline constexpr int places_of_warp = 8;
template <int Width, class G, class T>
struct piece_columns {
  static constexpr int packs = Width == 1 ? 4 : 3;
  static constexpr int count = warp_width * Width * packs;
};
template <int Width, class G, class T>
__global__ void __launch_bounds__(block_threads, 3) add_pieces(word_sums<G, T> const at) {
  using real = real_for<G, T>;
  using columns = piece_columns<Width, G, T>;
  constexpr int packs = columns::packs;
  constexpr int together = 2;  // rows that are read at once
  static_assert(places_of_warp + piece_rows + together <= 2 * warp_width);
  auto const lane = static_cast<int>(threadIdx.x) % warp_width;
  auto const slices = (at.channels + columns::count - 1) / columns::count;
  auto const groups = (at.rows + places_of_warp - 1) / places_of_warp;
  for (auto task = first_task() / warp_width; task < groups * slices; task += all_tasks() / warp_width) {
    auto const group = task / slices;
    auto const first_column = (task - group * slices) * columns::count + lane * Width;
    auto const column = [&](int p) { return first_column + p * warp_width * Width; };
    auto const of_group = group * places_of_warp;
    // The rows and words from the group's first place on: as far as a piece that begins in the group reaches.
    auto const place = of_group + lane;
    auto const row = place < at.rows ? at.rows_in_order[place] : 0;
    auto const row_behind = place + warp_width < at.rows ? at.rows_in_order[place + warp_width] : 0;
    auto const word = place < at.rows ? at.words_in_order[place] : at.words;
    int code = 0;  // of the piece that begins at this lane's place, if one does: twice its rows, + 1 if its word is cut
    if (lane < places_of_warp && word < at.words) {
      auto const begin = first_place(at.words_in_order, 0, place, word);
      if ((place - begin) % piece_rows == 0) {
        auto const most = place + piece_rows < at.rows ? place + piece_rows : at.rows;
        auto const end = first_place(at.words_in_order, place + 1, most, word + 1);
        bool const cut = begin < place || (most < at.rows && at.words_in_order[most] == word);
        code = static_cast<int>(end - place) * 2 + (cut ? 1 : 0);
      }
    }
    for (auto pieces = ballot(code != 0); pieces != 0; pieces &= pieces - 1) {
      auto const from = lowest_lane(pieces);
      auto const chosen = shuffle(code, from);
      auto const count = chosen / 2;
      bool const adds = chosen % 2 == 0;
      G* const to = at.dtable + shuffle(word, from) * at.channels;
      as_read<G, Width> before[packs];
      as_read<T, Width> next[together][packs];
      auto const read = [&](int i) {
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < together; ++k) {
          auto const here = from + i + k;
          auto const near = shuffle(row, here % warp_width), far = shuffle(row_behind, here % warp_width);
          auto const* const slopes = at.dy + (here < warp_width ? near : far) * at.channels;
          TRIREME_DEVICE_UNROLL
          for (int p = 0; p < packs; ++p) {
            next[k][p] = {};
            if (i + k < count && column(p) < at.channels) next[k][p].read(slopes + column(p));
          }
        }
      };
      TRIREME_DEVICE_UNROLL
      for (int p = 0; p < packs; ++p) {
        before[p] = {};
        if (adds && column(p) < at.channels) before[p].read(to + column(p));
      }
      read(0);
      real total[packs][Width];
      TRIREME_DEVICE_UNROLL
      for (int p = 0; p < packs; ++p) {
        TRIREME_DEVICE_UNROLL
        for (int w = 0; w < Width; ++w) total[p][w] = before[p][w];
      }
      for (int i = 0; i < count;) {
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < together; ++k) {
          if (i + k >= count) continue;
          TRIREME_DEVICE_UNROLL
          for (int p = 0; p < packs; ++p) {
            TRIREME_DEVICE_UNROLL
            for (int w = 0; w < Width; ++w) total[p][w] = sum(total[p][w], static_cast<real>(next[k][p][w]));
          }
        }
        i += together;
        if (i < count) read(i);
      }
      TRIREME_DEVICE_UNROLL
      for (int p = 0; p < packs; ++p) {
        if (column(p) >= at.channels) continue;
        if (adds)
          write_numbers(to + column(p), total[p]);
        else
          write_numbers(at.piece_at(of_group + from, count == piece_rows) + column(p), total[p]);
      }
    }
  }
}

/// Adds the pieces of cut words to dtable. A block has the words that begin at block_threads neighbouring places, and
/// warp_width * columns_of_lane columns; each of its warps sums an equal part of a word's pieces in order, then the
/// parts are added in theirs.
inline constexpr int columns_of_lane = 4;
template <class G, class T>
__global__ void __launch_bounds__(block_threads) add_cut_words(word_sums<G, T> const at) {
  using real = real_for<G, T>;
  constexpr int columns = warp_width * columns_of_lane;
  constexpr int warps = block_threads / warp_width;
  auto& cut = block_shared<lane_mask[warps]>();  // where such words begin
  auto& parts = block_shared<real[warps][columns], 1>();
  auto const thread = static_cast<int>(threadIdx.x);
  auto const lane = thread % warp_width;
  auto const warp = thread / warp_width;
  auto const slices = (at.channels + columns - 1) / columns;
  auto const group = blockIdx.x / slices;
  auto const first_column = (blockIdx.x - group * slices) * columns;
  auto const of_group = group * block_threads;
  auto const own = of_group + thread;
  auto const* const order = at.words_in_order;
  bool const begins = own + piece_rows < at.rows && order[own] < at.words &&
                      order[own + piece_rows] == order[own] && (own == 0 || order[own - 1] != order[own]);
  auto const of_warp = ballot(begins);
  if (lane == 0) cut[warp] = of_warp;
  sync_block();
  for (int w = 0; w < warps; ++w) {
    for (auto left = cut[w]; left != 0; left &= left - 1) {
      auto const begin = of_group + w * warp_width + lowest_lane(left);
      auto const word = order[begin];
      auto const end = first_place(order, begin + piece_rows + 1, at.rows, word + 1);
      // The sums of whole pieces are neighbouring rows.
      auto const whole = (end - begin) / piece_rows;
      auto const pieces = (end - begin + piece_rows - 1) / piece_rows;
      auto piece = pieces * warp / warps;
      auto const last = pieces * (warp + 1) / warps;
      auto const last_whole = last < whole ? last : whole;
      real totals[columns_of_lane] = {};
      auto const add = [&]<int Count>(real const* sums, std::integral_constant<int, Count>) {
        real next[Count][columns_of_lane] = {};
        TRIREME_DEVICE_UNROLL
        for (int p = 0; p < Count; ++p) {
          TRIREME_DEVICE_UNROLL
          for (int k = 0; k < columns_of_lane; ++k) {
            auto const c = first_column + k * warp_width + lane;
            if (c < at.channels) next[p][k] = sums[p * at.channels + c];
          }
        }
        TRIREME_DEVICE_UNROLL
        for (int p = 0; p < Count; ++p) {
          TRIREME_DEVICE_UNROLL
          for (int k = 0; k < columns_of_lane; ++k) totals[k] = sum(totals[k], next[p][k]);
        }
      };
      using one = std::integral_constant<int, 1>;
      using four = std::integral_constant<int, 4>;
      for (; piece + 4 <= last_whole; piece += 4) add(at.piece_at(begin + piece * piece_rows, true), four{});
      for (; piece < last_whole; ++piece) add(at.piece_at(begin + piece * piece_rows, true), one{});
      if (piece < last) add(at.piece_at(begin + piece * piece_rows, false), one{});
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < columns_of_lane; ++k) parts[warp][k * warp_width + lane] = totals[k];
      sync_block();
      for (int k = thread; k < columns && first_column + k < at.channels; k += block_threads) {
        real total = 0;
        TRIREME_DEVICE_UNROLL
        for (int part = 0; part < warps; ++part) total = sum(total, parts[part][k]);
        G& to = at.dtable[word * at.channels + first_column + k];
        to = narrow<G>(sum(static_cast<real>(wide(to)), total));
      }
      sync_block();
    }
  }
}

}  // namespace trireme::ops::detail::device
