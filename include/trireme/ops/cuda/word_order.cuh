#pragma once

#include <cstdint>

#include "trireme/ops/cuda/packs.cuh"

// The order of rows by their words, and by row within a word: a radix sort by digits of 8 bits, the lowest first. Each
// pass counts the digits of each block's part of the list, then places its elements behind those of lower digits and of
// earlier blocks. Places are counted, so the result does not depend on which block is done first.

namespace trireme::ops::detail::device {

inline constexpr int word_digit_bits = 8;
inline constexpr int digit_values = 1 << word_digit_bits;
static_assert(digit_values == block_threads, "a thread has a digit");
/// The most parts of a list, and the least elements of a part.
inline constexpr std::int64_t most_parts = 128;
inline constexpr std::int64_t least_part = 1024;

/// The words of the rows: tokens - first, or `words` for those that are not in the table.
struct row_words {
  std::int32_t const* tokens;
  std::int64_t first;
  std::uint32_t words;

  [[nodiscard]] __device__ std::uint32_t operator[](std::int64_t row) const {
    auto const number = tokens[row] - first;
    return number >= 0 && number < words ? static_cast<std::uint32_t>(number) : words;
  }
};

/// A list of rows and of their words.
struct word_list {
  std::uint32_t* words;
  std::int32_t* rows;
};

/// One pass: part i of the list has the elements from i * part on, and counts[i] how often each digit is in it.
struct sorting_pass {
  std::uint32_t* counts;
  std::int64_t rows, part;
  int shift;  // of the digit

  [[nodiscard]] __device__ int digit_of(std::uint32_t word) const {
    return static_cast<int>(word >> shift) & (digit_values - 1);
  }
  [[nodiscard]] __device__ std::int64_t begin() const { return blockIdx.x * part; }
  [[nodiscard]] __device__ std::int64_t end() const { return begin() + part < rows ? begin() + part : rows; }
};

/// `Words` is row_words in the first pass, which has no list yet, and a list of words later.
template <class Words>
__global__ void __launch_bounds__(block_threads) count_word_digits(sorting_pass const pass, Words const words) {
  auto& counts = block_shared<unsigned[digit_values]>();
  counts[threadIdx.x] = 0;
  sync_block();
  for (auto i = pass.begin() + threadIdx.x; i < pass.end(); i += block_threads)
    atomic_add(counts[pass.digit_of(words[i])], 1U);
  sync_block();
  pass.counts[static_cast<std::int64_t>(blockIdx.x) * digit_values + threadIdx.x] = counts[threadIdx.x];
}

/// `rows` lists the rows in the order so far; without one it is that of the rows themselves.
template <class Words>
__global__ void __launch_bounds__(block_threads)
    place_by_digits(word_list const to, sorting_pass const pass, Words const words, std::int32_t const* rows) {
  constexpr int warps = block_threads / warp_width;
  auto& totals = block_shared<unsigned[2][digit_values]>();
  auto& places = block_shared<unsigned[warps][digit_values], 1>();
  auto const thread = static_cast<int>(threadIdx.x);  // also a digit
  auto const lane = thread % warp_width;
  auto const warp = thread / warp_width;
  auto const below = (lane_mask{1} << lane) - 1;

  unsigned of_earlier = 0;  // elements with this digit in earlier parts
  unsigned of_all = 0;
  auto const parts = static_cast<int>(gridDim.x);
  constexpr int together = 8;
  for (int i = 0; i < parts; i += together) {
    unsigned next[together];
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < together; ++k) next[k] = i + k < parts ? pass.counts[(i + k) * digit_values + thread] : 0;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < together; ++k) {
      of_all += next[k];
      if (i + k < static_cast<int>(blockIdx.x)) of_earlier += next[k];
    }
  }
  // Sums over digits up to this one, each step over twice as many.
  totals[0][thread] = of_all;
  sync_block();
  int from = 0;
  for (int by = 1; by < digit_values; by *= 2) {
    totals[1 - from][thread] = totals[from][thread] + (thread >= by ? totals[from][thread - by] : 0);
    sync_block();
    from = 1 - from;
  }
  unsigned next_place = totals[from][thread] - of_all + of_earlier;

  for (auto start = pass.begin(); start < pass.end(); start += block_threads) {
    auto const i = start + thread;
    bool const valid = i < pass.end();
    auto const word = valid ? words[i] : 0U;
    auto const digit = pass.digit_of(word);
    auto same = ballot(valid);  // the lanes with this lane's digit
    TRIREME_DEVICE_UNROLL
    for (int bit = 0; bit < word_digit_bits; ++bit) {
      auto const set = ballot((digit >> bit & 1) != 0);
      same &= (digit >> bit & 1) != 0 ? set : ~set;
    }
    auto const rank = count_lanes(same & below);
    TRIREME_DEVICE_UNROLL
    for (int w = 0; w < warps; ++w) places[w][thread] = 0;
    sync_block();
    if (valid && rank == 0) places[warp][digit] = static_cast<unsigned>(count_lanes(same));
    sync_block();
    TRIREME_DEVICE_UNROLL
    for (int w = 0; w < warps; ++w) {
      auto const count = places[w][thread];
      places[w][thread] = next_place;
      next_place += count;
    }
    sync_block();
    if (valid) {
      auto const place = places[warp][digit] + static_cast<unsigned>(rank);
      to.words[place] = word;
      to.rows[place] = rows == nullptr ? static_cast<std::int32_t>(i) : rows[i];
    }
    sync_block();
  }
}

/// The first place from `from` on, and before `to`, at which a sorted list has `word` or a higher one; `to` if none.
__device__ __forceinline__ std::int64_t first_place(std::uint32_t const* list, std::int64_t from, std::int64_t to,
                                                    std::uint32_t word) {
  if (from < to && list[to - 1] < word) return to;
  while (from < to) {
    auto const middle = from + (to - from) / 2;
    if (list[middle] < word)
      from = middle + 1;
    else
      to = middle;
  }
  return from;
}

}  // namespace trireme::ops::detail::device
