#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trireme/core/dtype.hpp"
#include "trireme/core/extremes.hpp"
#include "trireme/core/summation_tree.hpp"
#include "trireme/ops/cuda/device.hpp"
#include "trireme/ops/cuda/launch.hpp"
#include "trireme/ops/cuda/packs.cuh"
#include "trireme/ops/cuda/types.cuh"

// The kernels that combine the terms of several ranks: in the order of the ranks, or as a sum in a fixed tree over
// them. Their results have the bits of the host's: sums of bfloat16 and float16 in float and rounded once, integers
// wrap, and max and min compare as core/extremes.hpp says. (If a sum is NaN, its payload depends on the processor.)

namespace trireme::ops::detail::device {

using cuda_kernels::combination;
using cuda_kernels::most_terms;

struct terms_and_outputs {
  void* outputs[most_terms];
  void const* terms[most_terms];
  int output_count;
  int term_count;
};

template <combination How, class T>
inline constexpr bool compares_keys = (How == combination::max || How == combination::min) && !std::is_integral_v<T>;

/// The number in which terms are combined: float for storage types, the ordered key of a floating-point number for max
/// and min, else the number itself.
template <combination How, class T>
__device__ __forceinline__ auto opened(T x) {
  if constexpr (compares_keys<How, T>)
    return extreme_order<T>::template key_of<How == combination::max>(x);
  else if constexpr (std::is_integral_v<T>)
    return x;
  else
    return wide(x);
}
template <combination How, class T, class Total>
__device__ __forceinline__ T closed(Total total, int divisor) {
  if constexpr (compares_keys<How, T>)
    return extreme_order<T>::template number_of<How == combination::max>(total);
  else if constexpr (std::is_integral_v<T>)
    return total;
  else if constexpr (How == combination::mean)
    return narrow<T>(quotient(total, static_cast<Total>(divisor)));
  else
    return narrow<T>(total);
}
template <combination How, class Total>
__device__ __forceinline__ Total combined(Total a, Total b) {
  if constexpr (How == combination::max)
    return a < b ? b : a;
  else if constexpr (How == combination::min)
    return b < a ? b : a;
  else if constexpr (std::is_integral_v<Total>)
    return static_cast<Total>(a + b);
  else
    return sum(a, b);
}

/// outputs[.][i] = terms[0][i] op terms[1][i] op ... Elements before `head` and the last few are handled one by one,
/// the rest in packs of 16 bytes. An output may be a term.
template <class T, combination How>
__global__ void __launch_bounds__(block_threads)
    combine(terms_and_outputs const all, std::int64_t head, std::int64_t count, int divisor) {
  constexpr int width = 16 / sizeof(T);
  using P = pack<T, width>;
  using total_type = decltype(opened<How>(T{}));
  auto const thread = first_task();
  auto const threads = all_tasks();
  std::int64_t const packs = (count - head) / width;
  for (std::int64_t p = thread; p < packs; p += threads) {
    std::int64_t const at = head + p * width;
    P const first = *reinterpret_cast<P const*>(static_cast<T const*>(all.terms[0]) + at);
    total_type total[width];
    TRIREME_DEVICE_UNROLL
    for (int i = 0; i < width; ++i) total[i] = opened<How>(first.values[i]);
    for (int term = 1; term < all.term_count; ++term) {
      P const next = *reinterpret_cast<P const*>(static_cast<T const*>(all.terms[term]) + at);
      TRIREME_DEVICE_UNROLL
      for (int i = 0; i < width; ++i) total[i] = combined<How>(total[i], opened<How>(next.values[i]));
    }
    P result;
    TRIREME_DEVICE_UNROLL
    for (int i = 0; i < width; ++i) result.values[i] = closed<How, T>(total[i], divisor);
    for (int output = 0; output < all.output_count; ++output)
      *reinterpret_cast<P*>(static_cast<T*>(all.outputs[output]) + at) = result;
  }
  std::int64_t const tail = head + packs * width;
  std::int64_t const singles = head + (count - tail);
  for (std::int64_t s = thread; s < singles; s += threads) {
    std::int64_t const at = s < head ? s : tail + (s - head);
    total_type total = opened<How>(static_cast<T const*>(all.terms[0])[at]);
    for (int term = 1; term < all.term_count; ++term)
      total = combined<How>(total, opened<How>(static_cast<T const*>(all.terms[term])[at]));
    T const result = closed<How, T>(total, divisor);
    for (int output = 0; output < all.output_count; ++output) static_cast<T*>(all.outputs[output])[at] = result;
  }
}

/// The most branches between the root of a tree of sums and a term.
inline constexpr int most_tree_levels = 8;
static_assert(most_terms <= 1 << most_tree_levels);

/// The sum of the terms in the fixed tree over them (core/summation_tree.hpp).
template <class T>
struct sum_in_a_tree {
  static constexpr int width = 16 / sizeof(T);

  terms_and_outputs all;
  std::uint8_t depth[most_terms];  ///< branches between the root and a term
  std::uint8_t level[most_terms];  ///< the same for the topmost of the sums that end with this term

  /// A sum waits at its level until the sum at its right is complete. Loops over levels are unrolled, so that sums that
  /// wait are registers; all threads take the same branches.
  template <int Width>
  __device__ __forceinline__ void at(std::int64_t i) const {
    using P = pack<T, Width>;
    using total_type = decltype(wide(T{}));
    total_type waiting[most_tree_levels][Width] = {};
    total_type total[Width] = {};
    for (int term = 0; term < all.term_count; ++term) {
      P const next = *reinterpret_cast<P const*>(static_cast<T const*>(all.terms[term]) + i);
      TRIREME_DEVICE_UNROLL
      for (int v = 0; v < Width; ++v) total[v] = wide(next.values[v]);
      int const from = depth[term];
      int const to = level[term];
      TRIREME_DEVICE_UNROLL
      for (int d = most_tree_levels; d > 0; --d) {
        if (d <= from && d > to) {
          TRIREME_DEVICE_UNROLL
          for (int v = 0; v < Width; ++v) total[v] = sum(waiting[d - 1][v], total[v]);
        } else if (d == to) {
          TRIREME_DEVICE_UNROLL
          for (int v = 0; v < Width; ++v) waiting[d - 1][v] = total[v];
        }
      }
    }
    P result;
    TRIREME_DEVICE_UNROLL
    for (int v = 0; v < Width; ++v) result.values[v] = narrow<T>(total[v]);
    for (int output = 0; output < all.output_count; ++output)
      *reinterpret_cast<P*>(static_cast<T*>(all.outputs[output]) + i) = result;
  }
};

/// The number of elements before all buffers are aligned to 16 bytes; `count` if they are never aligned together.
template <class T>
std::int64_t elements_before_packs(terms_and_outputs const& all, std::int64_t count) {
  auto const place = [](void const* address) { return reinterpret_cast<std::uintptr_t>(address) % 16; };
  auto const common = place(all.terms[0]);
  for (int i = 0; i < all.term_count; ++i)
    if (place(all.terms[i]) != common) return count;
  for (int i = 0; i < all.output_count; ++i)
    if (place(all.outputs[i]) != common) return count;
  auto const head = static_cast<std::int64_t>((16 - common) % 16 / sizeof(T));
  return head < count ? head : count;
}

template <class T, combination How>
[[nodiscard]] int launch_combine(terms_and_outputs const& all, std::int64_t count, int divisor, void* stream) {
  auto const head = elements_before_packs<T>(all, count);
  auto const packs = (count - head) / static_cast<std::int64_t>(16 / sizeof(T));
  return run("combine", &combine<T, How>, blocks_for(packs > head ? packs : head), block_threads, stream, all, head,
             count, divisor);
}

/// Sums of integers wrap, so signed sums have the bits of unsigned ones.
template <combination How>
[[nodiscard]] int launch_sum(dtype of, terms_and_outputs const& all, std::int64_t count, int divisor, void* stream) {
  switch (of) {
    case dtype::f64:
      return launch_combine<double, How>(all, count, divisor, stream);
    case dtype::f32:
      return launch_combine<float, How>(all, count, divisor, stream);
    case dtype::bf16:
      return launch_combine<bfloat16, How>(all, count, divisor, stream);
    case dtype::f16:
      return launch_combine<float16, How>(all, count, divisor, stream);
    default:
      break;
  }
  if constexpr (How == combination::sum) switch (of) {
      case dtype::i64:
      case dtype::u64:
        return launch_combine<unsigned long long, How>(all, count, divisor, stream);
      case dtype::i32:
      case dtype::u32:
        return launch_combine<unsigned, How>(all, count, divisor, stream);
      case dtype::i8:
      case dtype::u8:
        return launch_combine<unsigned char, How>(all, count, divisor, stream);
      default:
        break;
    }
  return launch_refused;
}
template <combination How>
[[nodiscard]] int launch_choice(dtype of, terms_and_outputs const& all, std::int64_t count, void* stream) {
  switch (of) {
    case dtype::f64:
      return launch_combine<double, How>(all, count, 1, stream);
    case dtype::f32:
      return launch_combine<float, How>(all, count, 1, stream);
    case dtype::bf16:
      return launch_combine<bfloat16, How>(all, count, 1, stream);
    case dtype::f16:
      return launch_combine<float16, How>(all, count, 1, stream);
    case dtype::i64:
      return launch_combine<long long, How>(all, count, 1, stream);
    case dtype::u64:
      return launch_combine<unsigned long long, How>(all, count, 1, stream);
    case dtype::i32:
      return launch_combine<int, How>(all, count, 1, stream);
    case dtype::u32:
      return launch_combine<unsigned, How>(all, count, 1, stream);
    case dtype::i8:
      return launch_combine<signed char, How>(all, count, 1, stream);
    case dtype::u8:
      return launch_combine<unsigned char, How>(all, count, 1, stream);
  }
  return launch_refused;
}
/// Of at most two terms the tree is their order; integers wrap, so that sums in any order are equal.
[[nodiscard]] inline int launch_pairwise(dtype of, terms_and_outputs const& all, std::int64_t count, void* stream) {
  bool const is_float = of == dtype::f64 || of == dtype::f32 || of == dtype::bf16 || of == dtype::f16;
  if (all.term_count <= 2 || !is_float) return launch_sum<combination::sum>(of, all, count, 1, stream);
  return for_floats(of, [&]<class T>(T) {
    constexpr int width = sum_in_a_tree<T>::width;
    sum_in_a_tree<T> work{all, {}, {}};
    pack_start start;
    for (int i = 0; i < all.term_count; ++i) {
      auto const depth = tree_depth(all.term_count, i);
      work.depth[i] = static_cast<std::uint8_t>(depth);
      work.level[i] = static_cast<std::uint8_t>(depth - tree_merges(all.term_count, i));
      start.of<width>(static_cast<T const*>(all.terms[i]));
    }
    for (int i = 0; i < all.output_count; ++i) start.of<width>(static_cast<T const*>(all.outputs[i]));
    return launch_elements("sum_in_a_tree", work, start, count, stream);
  });
}
/// cuda_kernels::combine(); communicators call it, too.
[[nodiscard]] inline int launch_combination(dtype of, combination op, void* const* outputs, int output_count,
                                            void const* const* terms, int term_count, std::int64_t count, int divisor,
                                            void* stream) {
  if (count == 0 || output_count == 0) return launch_succeeded;
  if (term_count < 1 || term_count > most_terms || output_count > most_terms) return launch_refused;
  terms_and_outputs all;  // unset entries are not read
  std::memcpy(all.outputs, outputs, static_cast<std::size_t>(output_count) * sizeof *outputs);
  std::memcpy(all.terms, terms, static_cast<std::size_t>(term_count) * sizeof *terms);
  all.output_count = output_count;
  all.term_count = term_count;
  switch (op) {
    case combination::sum:
      return launch_sum<combination::sum>(of, all, count, divisor, stream);
    case combination::mean:
      return launch_sum<combination::mean>(of, all, count, divisor, stream);
    case combination::max:
      return launch_choice<combination::max>(of, all, count, stream);
    case combination::min:
      return launch_choice<combination::min>(of, all, count, stream);
    case combination::pairwise:
      return launch_pairwise(of, all, count, stream);
  }
  return launch_refused;
}

}  // namespace trireme::ops::detail::device
