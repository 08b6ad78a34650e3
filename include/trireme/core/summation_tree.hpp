#pragma once

#include <cstdint>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// Where the fixed binary tree over [0, n) is split: in halves while n is even, else at the largest power of two.
///
/// Sums in this order do not depend on the number of ranks that compute them: for any power of two p that divides n,
/// each of p equal runs of leaves is a subtree, and the p runs are the leaves of the tree over [0, p).
/// @param n  at least 2.
[[nodiscard]] constexpr std::int64_t tree_split(std::int64_t n) noexcept {
  if (n % 2 == 0) return n / 2;
  std::int64_t power = 1;
  while (power * 2 < n) power *= 2;
  return power;
}

/// The number of times that the last two partial sums are merged after leaf i of [0, n) has been appended: the number
/// of inner nodes of the tree that end with leaf i. After the last leaf one sum is left.
[[nodiscard]] constexpr int tree_merges(std::int64_t n, std::int64_t i) noexcept {
  int merges = 0;
  std::int64_t first = 0;
  std::int64_t last = n;
  while (last - first > 1) {
    if (i == last - 1) ++merges;
    auto const middle = first + tree_split(last - first);
    (i < middle ? last : first) = middle;
  }
  return merges;
}

/// The number of branches between the root of the tree over [0, n) and leaf i; at most k for n up to 2^k.
[[nodiscard]] constexpr int tree_depth(std::int64_t n, std::int64_t i) noexcept {
  int depth = 0;
  std::int64_t first = 0;
  std::int64_t last = n;
  for (; last - first > 1; ++depth) {
    auto const middle = first + tree_split(last - first);
    (i < middle ? last : first) = middle;
  }
  return depth;
}

}  // namespace trireme
