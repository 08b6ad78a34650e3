#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/core/dialect.hpp"

namespace trireme::comm::detail {

/// The sets of ranks that are known to be in a call, and of ranks that others wait for. A rank that waits for long
/// sends both sets to other ranks, and merges theirs: the sets only grow, until they are equal on all ranks that wait.
/// Missing ranks are those that others wait for and that none has seen in the call.
class roll_call {
 public:
  void clear() noexcept { bits_.clear(); }

  void begin(int size) {
    if (!bits_.empty()) return;
    words_ = static_cast<std::size_t>(size + 63) / 64;
    bits_.assign(2 * words_, 0);
  }
  void add_here(int rank) noexcept { set(0, rank); }
  void add_wanted(int rank) noexcept { set(words_, rank); }

  /// Both sets, in the form that is sent to other ranks.
  [[nodiscard]] std::span<std::uint64_t const> bits() const noexcept { return bits_; }
  /// Merges another rank's bits() of the same size; returns whether any bit is new.
  bool merge(std::span<std::uint64_t const> theirs) noexcept {
    bool grew = false;
    for (std::size_t i = 0; i < bits_.size(); ++i) {
      grew = grew || (theirs[i] & ~bits_[i]) != 0;
      bits_[i] |= theirs[i];
    }
    return grew;
  }
  [[nodiscard]] bool knows_more_than(std::span<std::uint64_t const> theirs) const noexcept {
    return !std::equal(bits_.begin(), bits_.end(), theirs.begin(), theirs.end());
  }
  void append_missing(std::vector<int>& ranks) const {
    for (int rank = 0; rank < static_cast<int>(words_ * 64) && !bits_.empty(); ++rank)
      if (get(words_, rank) && !get(0, rank)) ranks.push_back(rank);
  }

  /// Calls visit(peer) once for each rank to which this rank sends: those 2^i before it and after it.
  template <class Visit>
  static void for_each_neighbour(int rank, int size, Visit visit) {
    for (int hop = 1; hop < size; hop *= 2) {
      int const after = (rank + hop) % size;
      int const before = (rank - hop + size) % size;
      visit(after);
      if (before != after) visit(before);
    }
  }

 private:
  void set(std::size_t first, int rank) noexcept {
    bits_[first + static_cast<std::size_t>(rank) / 64] |= std::uint64_t{1} << (rank % 64);
  }
  [[nodiscard]] bool get(std::size_t first, int rank) const noexcept {
    return (bits_[first + static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1U) != 0;
  }

  std::size_t words_ = 0;
  std::vector<std::uint64_t> bits_;  ///< ranks in the call, then ranks that are waited for
};

}  // namespace trireme::comm::detail
