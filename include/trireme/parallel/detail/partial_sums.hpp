#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/core/summation_tree.hpp"

namespace trireme::parallel::detail {

/// Terms summed in the fixed tree over [0, leaves), one after the other: at most log2(leaves) + 1 buffers at a time.
/// Null is an empty sum.
template <class Buffer>
class partial_sums {
  using term = std::unique_ptr<Buffer>;

 public:
  /// Calls give(buffer) for the buffers of an unfinished sum.
  template <class Give>
  void clear(Give&& give) {
    for (auto& sum : sums_) {
      if (sum != nullptr) give(std::move(sum));
    }
    sums_.clear();
    next_ = 0;
  }
  /// Adds leaf `place`; the leaves before it that were not added count as zero.
  /// @param merge  merge(left, right): left += right; right is not needed afterwards.
  template <class Merge>
  void add(std::int64_t leaves, std::int64_t place, term leaf, Merge&& merge) {
    while (next_ < place) add_next(leaves, nullptr, merge);
    add_next(leaves, std::move(leaf), merge);
  }
  /// The sum; null if no leaf was added.
  template <class Merge>
  [[nodiscard]] term take(std::int64_t leaves, Merge&& merge) {
    while (next_ < leaves) add_next(leaves, nullptr, merge);
    auto sum = std::move(sums_.back());
    sums_.clear();
    next_ = 0;
    return sum;
  }

 private:
  template <class Merge>
  void add_next(std::int64_t leaves, term leaf, Merge& merge) {
    sums_.push_back(std::move(leaf));
    for (int merges = tree_merges(leaves, next_++); merges > 0; --merges) {
      auto right = std::move(sums_.back());
      sums_.pop_back();
      if (sums_.back() == nullptr) {
        sums_.back() = std::move(right);
      } else if (right != nullptr) {
        merge(*sums_.back(), std::move(right));
      }
    }
  }

  std::vector<term> sums_;
  std::int64_t next_ = 0;
};

}  // namespace trireme::parallel::detail
