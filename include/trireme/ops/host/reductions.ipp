#pragma once

#include "trireme/ops/host/detail/select.hpp"
#include "trireme/ops/host/reductions.hpp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/reductions.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/reductions.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/reductions.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

// Integers: no lanes, a plain loop over blocks that fit in the L1 cache.
template <class Op, class T>
void reduce_integers(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n) {
  constexpr std::int64_t block = 256;
  std::array<T, block> total;
  for (std::int64_t at = 0; at < n; at += block) {
    auto const count = static_cast<std::size_t>(std::min(block, n - at));
    std::copy_n(static_cast<T const*>(terms[0]) + at, count, total.data());
    for (auto const* term : terms.subspan(1)) {
      T const* const x = static_cast<T const*>(term) + at;
      for (std::size_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<Op, reduction::max>) {
          total[i] = extreme_of<true>(total[i], x[i]);
        } else if constexpr (std::is_same_v<Op, reduction::min>) {
          total[i] = extreme_of<false>(total[i], x[i]);
        } else {
          using wide = std::make_unsigned_t<T>;  // sums wrap
          total[i] = static_cast<T>(static_cast<wide>(total[i]) + static_cast<wide>(x[i]));
        }
      }
    }
    for (auto* output : outputs) std::copy_n(total.data(), count, static_cast<T*>(output) + at);
  }
}

template <class T>
void reduce_in_a_tree(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n) {
  thread_local std::vector<int> merges;  // number of partial sums to add up after each term
  merges.clear();
  auto const leaves = static_cast<std::int64_t>(terms.size());
  for (std::int64_t i = 0; i < leaves; ++i) merges.push_back(tree_merges(leaves, i));
  TRIREME_DISPATCH(fits_float<T>, reduce_in_a_tree<T>(outputs, terms, merges.data(), n));
}

template <class Op, class T>
void reduce_elements(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n,
                     [[maybe_unused]] int divisor) {
  if constexpr (!arithmetic_lanes<T>) {
    static_assert(!std::is_same_v<Op, reduction::mean>, "trireme::ops::reduce: a mean needs floating-point numbers");
    reduce_integers<Op, T>(outputs, terms, n);
  } else if constexpr (std::is_same_v<Op, reduction::pairwise>) {
    if (terms.size() > 2) return reduce_in_a_tree<T>(outputs, terms, n);
    reduce_elements<reduction::sum, T>(outputs, terms, n, divisor);
  } else if constexpr (std::is_same_v<Op, reduction::max> || std::is_same_v<Op, reduction::min>) {
    constexpr bool largest = std::is_same_v<Op, reduction::max>;
    TRIREME_DISPATCH(true, template reduce_extremes<T, largest>(outputs, terms, n));
  } else {
    TRIREME_DISPATCH(fits_float<T>, template reduce<Op, T>(outputs, terms, n, divisor));
  }
}
template <class G>
void squares_of_blocks(G const* x, std::int64_t n, std::int64_t block, double* sums) {
  TRIREME_DISPATCH(fits_float<G>, squares_of_blocks(x, n, block, sums));
}
template <class Bits>
bool all_finite(Bits const* x, std::int64_t n, Bits exponent) {
  TRIREME_DISPATCH(true, all_finite(x, n, exponent));
}
template <class Bits>
std::uint64_t hash_bits(Bits const* x, std::int64_t n, std::uint64_t name, std::uint64_t first_index) {
  TRIREME_DISPATCH(true, hash_bits(x, n, name, first_index));
}

}  // namespace trireme::ops::detail
