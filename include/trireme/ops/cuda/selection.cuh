#pragma once

#include <bit>
#include <type_traits>

#include "trireme/core/hash.hpp"
#include "trireme/ops/cuda/formulas.cuh"

// The k elements of largest magnitude, by radix select: a histogram of the leading bits of all magnitudes says which of
// them the k-th has; then one of the next bits, among the elements that have these. With the k-th magnitude known, the
// elements above it and the first ones equal to it are written in the order of their indices. All numbers that steer
// this stay on the device (selection_state), so the host does not wait. Kernels that need no type are templates of
// their threads, so that several sources may include this file.

namespace trireme::ops::detail::device {

template <class G>
using magnitude_type = std::conditional_t<sizeof(G) == 8, std::uint64_t, std::uint32_t>;
template <class G>
inline constexpr int magnitude_width = static_cast<int>(sizeof(G)) * 8 - 1;
/// The magnitude as an integer with the same order; NaN is largest.
template <class G>
__device__ __forceinline__ magnitude_type<G> magnitude_of(G x) {
  using bits = magnitude_type<G>;
  return static_cast<bits>(std::bit_cast<bits>(x) & (static_cast<bits>(~bits{0}) >> 1));
}

inline constexpr int selection_bits = 11;
inline constexpr int selection_bins = 1 << selection_bits;
/// The elements that one warp counts, and then writes.
inline constexpr int selection_chunk = 1024;

struct selection_state {
  std::uint64_t threshold;  ///< the leading bits found so far of the k-th largest magnitude
  std::int64_t left;        ///< of the elements with these bits, how many are taken
  std::int64_t n;           ///< elements to choose from
  std::int64_t missing;     ///< places of the output that get no element: the first ones
};

/// How many elements of a chunk, or of all chunks before it, are above the threshold and how many equal it.
struct selection_count {
  std::uint32_t above, equal;
};

/// Zeros a few integers; one block.
template <int Threads = block_threads>
__global__ void __launch_bounds__(Threads) clear_counts(unsigned* all, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += block_threads) all[i] = 0;
}
/// Starts a search for the k largest of n elements.
template <int Threads = 1>
__global__ void __launch_bounds__(Threads) begin_selection(selection_state* state, std::int64_t n, std::int64_t k) {
  *state = {0, k, n, 0};
}
/// Starts a search for the k largest of the elements that write_selected has written, at most `most`.
template <int Threads = 1>
__global__ void __launch_bounds__(Threads)
    begin_among(selection_state* state, selection_count const* all, std::int64_t most, std::int64_t k) {
  auto const written = static_cast<std::int64_t>(all->above) + all->equal;
  auto const n = written < most ? written : most;
  auto const kept = n < k ? n : k;
  *state = {0, kept, n, k - kept};
}
/// Takes all of n elements that reach a threshold found before.
template <int Threads = 1>
__global__ void __launch_bounds__(Threads) take_all_from(selection_state* state, std::int64_t n) {
  state->left = INT64_MAX;
  state->n = n;
  state->missing = 0;
}

/// One element of each of `count` equal parts of x, drawn without random numbers.
template <class G>
__global__ void __launch_bounds__(block_threads)
    take_sample(G* sample, std::int64_t count, G const* x, std::int64_t n) {
  for (auto i = first_task(); i < count; i += all_tasks()) {
    auto const first = i * n / count;
    auto const size = static_cast<std::uint64_t>((i + 1) * n / count - first);
    sample[i] = x[first + static_cast<std::int64_t>(mix(static_cast<std::uint64_t>(i)) % size)];
  }
}

/// Counts, in `histogram`, the `bits` bits above the last `shift` of the magnitudes whose bits before them are those of
/// the threshold. Zeros are not counted, of which gradients may have many: they would all change one bin, and
/// choose_magnitude takes the lowest one in any case if the others have too few elements.
template <class G>
__global__ void __launch_bounds__(block_threads)
    count_magnitudes(G const* x, selection_state const* state, unsigned* histogram, int shift, int bits) {
  constexpr int several = 4;  // loads at once
  auto& own = block_shared<unsigned[selection_bins]>();
  for (int bin = static_cast<int>(threadIdx.x); bin < selection_bins; bin += block_threads) own[bin] = 0;
  sync_block();
  auto const n = state->n;
  auto const leading = static_cast<magnitude_type<G>>(state->threshold);
  auto const mask = (magnitude_type<G>{1} << bits) - 1;
  auto const threads = all_tasks();
  for (auto i = first_task(); i < n; i += several * threads) {
    magnitude_type<G> magnitudes[several];
    TRIREME_DEVICE_UNROLL
    for (int j = 0; j < several; ++j) magnitudes[j] = i + j * threads < n ? magnitude_of(x[i + j * threads]) : 0;
    TRIREME_DEVICE_UNROLL
    for (int j = 0; j < several; ++j) {
      if (magnitudes[j] != 0 && magnitudes[j] >> (shift + bits) == leading)
        atomic_add(own[magnitudes[j] >> shift & mask], 1U);
    }
  }
  sync_block();
  for (int bin = static_cast<int>(threadIdx.x); bin < selection_bins; bin += block_threads)
    if (own[bin] != 0) atomic_add(histogram[bin], own[bin]);
}

/// The sum of `own` over this thread and those before it in a block of block_threads.
template <class T>
__device__ T running_sum_of_block(T own) {
  auto& sums = block_shared<T[block_threads]>();
  auto const t = static_cast<int>(threadIdx.x);
  sync_block();  // all threads have read what was there before
  sums[t] = own;
  for (int by = 1; by < block_threads; by *= 2) {
    sync_block();
    T const more = t >= by ? sums[t - by] : T{0};
    sync_block();
    own += more;
    sums[t] = own;
  }
  return own;
}

/// Finds the digit of the k-th largest in the histogram, and clears that; one block. Thread t looks at the t-th highest
/// digits.
template <int Threads = block_threads>
__global__ void __launch_bounds__(Threads) choose_magnitude(selection_state* state, unsigned* histogram, int bits) {
  constexpr int each = selection_bins / block_threads;
  auto* const mine = histogram + selection_bins - each * (static_cast<int>(threadIdx.x) + 1);
  std::int64_t own = 0;
  for (int bin = 0; bin < each; ++bin) own += mine[bin];
  auto const left = state->left;
  auto const leading = state->threshold;
  auto const up_to_here = running_sum_of_block(own);  // its barriers order these reads before the writes
  auto above = up_to_here - own;
  if (above < left && (left <= up_to_here || mine == histogram)) {
    int bin = each - 1;
    while (bin > 0 && above + mine[bin] < left) above += mine[bin--];
    state->threshold = leading << bits | static_cast<std::uint64_t>(mine + bin - histogram);
    state->left = left - above;
  }
  for (int bin = 0; bin < each; ++bin) mine[bin] = 0;
}

/// Counts the elements above and equal to the threshold in each chunk; a warp takes one chunk after another.
template <class G>
__global__ void __launch_bounds__(block_threads)
    count_selected(G const* x, selection_state const* state, selection_count* counts) {
  auto const n = state->n;
  auto const threshold = static_cast<magnitude_type<G>>(state->threshold);
  auto const lane = static_cast<int>(threadIdx.x) % warp_width;
  auto const chunks = (n + selection_chunk - 1) / selection_chunk;
  for (auto c = first_task() / warp_width; c < chunks; c += all_tasks() / warp_width) {
    auto const first = c * selection_chunk;
    auto const end = first + selection_chunk < n ? first + selection_chunk : n;
    std::uint32_t both = 0;  // those above in the upper half; a chunk has fewer than 2^16 elements
    for (auto i = first + lane; i < end; i += warp_width) {
      auto const magnitude = magnitude_of(x[i]);
      both += magnitude > threshold ? 0x1'0000U : magnitude == threshold ? 1U : 0U;
    }
    for (int by = warp_width / 2; by > 0; by /= 2) both += shuffle_xor(both, by);
    if (lane == 0) counts[c] = {both >> 16, both & 0xffffU};
  }
}

/// Replaces the counts of each chunk by those of all chunks before it, and writes all of them to *total; one block.
template <int Threads = block_threads>
__global__ void __launch_bounds__(Threads)
    add_counts(selection_state const* state, selection_count* counts, selection_count* total) {
  auto const chunks = (state->n + selection_chunk - 1) / selection_chunk;
  auto const each = (chunks + block_threads - 1) / block_threads;
  auto const first = static_cast<std::int64_t>(threadIdx.x) * each < chunks ? threadIdx.x * each : chunks;
  auto const end = first + each < chunks ? first + each : chunks;
  std::uint64_t own = 0;  // both counts at once: they are below 2^31
  for (auto c = first; c < end; ++c) own += std::uint64_t{counts[c].above} << 32 | counts[c].equal;
  auto const up_to_here = running_sum_of_block(own);
  auto before = up_to_here - own;
  for (auto c = first; c < end; ++c) {
    auto const here = counts[c];
    counts[c] = {static_cast<std::uint32_t>(before >> 32), static_cast<std::uint32_t>(before)};
    before += std::uint64_t{here.above} << 32 | here.equal;
  }
  if (threadIdx.x == block_threads - 1)
    *total = {static_cast<std::uint32_t>(up_to_here >> 32), static_cast<std::uint32_t>(up_to_here)};
}

/// Writes the selected elements, in the order of their indices, to the first `most` places behind the missing ones.
/// Element i of x has the index places[i], or i without places.
template <class G>
__global__ void __launch_bounds__(block_threads)
    write_selected(G const* x, selection_state const* state, selection_count const* counts, std::int32_t const* places,
                   std::int32_t* indices, G* values, std::int64_t most) {
  constexpr int several = 8;  // loads at once
  auto const n = state->n;
  auto const left = state->left;
  auto const missing = state->missing;
  auto const threshold = static_cast<magnitude_type<G>>(state->threshold);
  for (auto i = first_task(); i < missing; i += all_tasks()) {
    indices[i] = 0;
    values[i] = G{0};
  }
  auto const lane = static_cast<int>(threadIdx.x) % warp_width;
  auto const before_me = static_cast<lane_mask>((lane_mask{1} << lane) - 1);
  auto const chunks = (n + selection_chunk - 1) / selection_chunk;
  for (auto c = first_task() / warp_width; c < chunks; c += all_tasks() / warp_width) {
    auto const first = c * selection_chunk;
    auto const end = first + selection_chunk < n ? first + selection_chunk : n;
    std::int64_t above = counts[c].above;
    std::int64_t equal = counts[c].equal;
    for (auto round = first; round < end; round += several * warp_width) {
      G elements[several];
      TRIREME_DEVICE_UNROLL
      for (int j = 0; j < several; ++j) {
        auto const i = round + j * warp_width + lane;
        elements[j] = i < end ? x[i] : G{0};
      }
      TRIREME_DEVICE_UNROLL
      for (int j = 0; j < several; ++j) {
        auto const i = round + j * warp_width + lane;
        auto const magnitude = magnitude_of(elements[j]);
        auto const all_above = ballot(i < end && magnitude > threshold);
        auto const all_equal = ballot(i < end && magnitude == threshold);
        auto const equal_before = equal + count_lanes(all_equal & before_me);
        bool const taken = (all_above >> lane & 1U) != 0 || ((all_equal >> lane & 1U) != 0 && equal_before < left);
        auto const place =
            missing + above + count_lanes(all_above & before_me) + (equal_before < left ? equal_before : left);
        if (taken && place < most) {
          indices[place] = places == nullptr ? static_cast<std::int32_t>(i) : places[i];
          values[place] = elements[j];
        }
        above += count_lanes(all_above);
        equal += count_lanes(all_equal);
      }
    }
  }
}

/// Sets *flag if the indices do not ascend; equal ones may follow each other.
template <int Threads = block_threads>
__global__ void __launch_bounds__(Threads) find_descent(std::int32_t const* indices, std::int64_t k, unsigned* flag) {
  bool descends = false;
  for (auto i = first_task(); i < k; i += all_tasks()) descends = descends || (i > 0 && indices[i] < indices[i - 1]);
  if (ballot(descends) != 0 && threadIdx.x % warp_width == 0) atomic_or(*flag, 1U);
}
/// y[indices[i]] = or += values[i]. One thread does all values of one index, in order: if the indices ascend, those
/// that follow the first of them; otherwise (*flag) each thread looks for its own among all indices, which is slow.
template <class G>
__global__ void __launch_bounds__(block_threads)
    scatter_chosen(G* y, std::int64_t n, std::int32_t const* indices, G const* values, std::int64_t k, bool add,
                   unsigned const* flag) {
  auto const put = [&](std::int64_t i, std::int32_t at) {
    if (at >= 0 && at < n) y[at] = add ? sum(y[at], values[i]) : values[i];
  };
  if (*flag == 0) {
    for (auto i = first_task(); i < k; i += all_tasks()) {
      auto const at = indices[i];
      if (i > 0 && indices[i - 1] == at) continue;
      put(i, at);
      for (auto j = i + 1; j < k && indices[j] == at; ++j) put(j, at);
    }
  } else {
    auto const me = static_cast<std::uint32_t>(first_task());
    auto const threads = static_cast<std::uint32_t>(all_tasks());
    for (std::int64_t i = 0; i < k; ++i)
      if (static_cast<std::uint32_t>(indices[i]) % threads == me) put(i, indices[i]);
  }
}

}  // namespace trireme::ops::detail::device
