#pragma once

#include <limits>

#include "trireme/contract/paged_rows.hpp"
#include "trireme/ops/cuda/attention_launch.hpp"
#include "trireme/ops/cuda/float_types.cuh"
#include "trireme/ops/cuda/ordered_sums.cuh"
#include "trireme/ops/cuda/paged_attention_launch.hpp"

// Attention over pages. A page has for each key head the keys of its positions, number by number, then their values
// (ops/paged_attention.hpp), so that neighbouring threads read neighbouring numbers of both.

namespace trireme::ops::detail::device {

using cuda_kernels::paged_work;

inline constexpr int paged_threads = 128;
inline constexpr std::int64_t page_positions = paged_rows::page;

/// Where the numbers of a position begin in memory of all pages, for a key head: its key, whose number i is
/// i * page_positions further, and its value, one number after the other.
struct paged_numbers {
  std::int64_t key, value;
};
__device__ __forceinline__ paged_numbers paged_at(paged_work const& all, std::int64_t first_page, std::int64_t position,
                                                  std::int64_t key_head) {
  auto const page = static_cast<std::int64_t>(all.pages[first_page + position / page_positions]);
  auto const keys = (page * all.key_heads + key_head) * 2 * page_positions * all.width;
  auto const within = position % page_positions;
  return {keys + within, keys + (page_positions + within) * all.width};
}

/// A task is a number of a key head of a row: it writes the one of its key, and the one of its value.
template <class T>
__global__ void __launch_bounds__(block_threads) keep_pages(T* kept, T const* qkv, paged_work const all) {
  auto const channels = all.heads * all.width, each = all.heads / all.key_heads;
  auto const numbers = all.key_heads * all.width;
  for (auto task = first_task(); task < all.rows * numbers; task += all_tasks()) {
    auto const row = task / numbers, head = task % numbers / all.width, i = task % all.width;
    auto const position = all.places[2 * row], first_page = all.places[2 * row + 1];
    T const* const key = qkv + (3 * row + 1) * channels + head * each * all.width;
    auto const to = paged_at(all, first_page, position, head);
    kept[to.key + i * page_positions] = key[i];
    kept[to.value + i] = key[channels + i];
  }
}

/// A block is a row and a head. It goes over the positions that the row sees, as many at a time as it has threads: each
/// thread forms the score of one of them, then sums their values for some columns. Sums of a column are in the order of
/// positions, with the scale of the largest score so far.
template <class T>
__global__ void __launch_bounds__(paged_threads)
    attend_pages(T* y, T const* kept, T const* qkv, paged_work const all, sum_type<T> const scale) {
  using real = sum_type<T>;
  constexpr int columns = cuda_kernels::widest_head / paged_threads;  // of a thread
  auto& query = block_shared<real[cuda_kernels::widest_head], 0>();
  auto& weights = block_shared<real[paged_threads], 1>();
  auto const thread = static_cast<std::int64_t>(threadIdx.x);
  auto const row = static_cast<std::int64_t>(blockIdx.x) / all.heads;
  auto const head = static_cast<std::int64_t>(blockIdx.x) % all.heads;
  auto const key_head = head / (all.heads / all.key_heads), channels = all.heads * all.width;
  auto const position = all.places[2 * row], first_page = all.places[2 * row + 1];
  for (auto i = thread; i < all.width; i += paged_threads)
    query[i] = product(wide(qkv[3 * row * channels + head * all.width + i]), scale);
  real top = -std::numeric_limits<real>::infinity(), total = 0, sums[columns] = {};
  auto const first = all.window > 0 && all.window <= position ? position + 1 - all.window : std::int64_t{0};
  sync_block();
  for (auto begin = first; begin <= position; begin += paged_threads) {
    auto const count = position + 1 - begin < paged_threads ? position + 1 - begin : std::int64_t{paged_threads};
    real score = -std::numeric_limits<real>::infinity();
    if (thread < count) {
      T const* const key = kept + paged_at(all, first_page, begin + thread, key_head).key;
      score = 0;
      for (std::int64_t i = 0; i < all.width; ++i) score = fused(query[i], wide(key[i * page_positions]), score);
    }
    auto const found = joined_in_block<2>(score, larger{}, -std::numeric_limits<real>::infinity());
    auto const now = found > top ? found : top;
    auto const weight = thread < count ? exponential(difference(score, now)) : real{0};
    auto const fade = exponential(difference(top, now));
    weights[thread] = weight;
    total = fused(total, fade, joined_in_block<3>(weight, added{}, real{0}));
    top = now;
    for (std::int64_t c = 0; c < columns; ++c) {
      auto const i = thread + c * paged_threads;
      if (i >= all.width) break;
      sums[c] = product(sums[c], fade);
      for (std::int64_t j = 0; j < count; ++j) {
        auto const value = kept[paged_at(all, first_page, begin + j, key_head).value + i];
        sums[c] = fused(weights[j], wide(value), sums[c]);
      }
    }
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    auto const i = thread + c * paged_threads;
    if (i < all.width) y[row * channels + head * all.width + i] = narrow<T>(quotient(sums[c], total));
  }
}

}  // namespace trireme::ops::detail::device
