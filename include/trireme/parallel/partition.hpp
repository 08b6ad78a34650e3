#pragma once

#include "trireme/contract/state.hpp"
#include "trireme/core/interval.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::parallel {

/// Which elements of each bucket this rank updates, and which of them it answers for in hashes and checkpoints.
class partition {
 public:
  /// @param rank     of those that gradients are summed over.
  /// @param sharded  whether each rank updates its slice only.
  partition(layout const& plan, int rank, bool sharded) noexcept : plan_(plan), rank_(rank), sharded_(sharded) {}

  [[nodiscard]] layout const& plan() const noexcept { return plan_; }
  /// The elements of a bucket that this rank updates.
  [[nodiscard]] interval owned(int bucket) const noexcept {
    return sharded_ ? answered(bucket) : interval{0, plan_.buckets()[static_cast<std::size_t>(bucket)].elements};
  }
  /// The elements of a bucket that this rank answers for, unless another rank of its replica answers for the tensor
  /// (info.answers): each element is answered for once.
  [[nodiscard]] interval answered(int bucket) const noexcept {
    auto const n = plan_.slice_elements(bucket);
    return {rank_ * n, n};
  }
  /// Calls f(piece) for each piece of a bucket whose state this rank keeps, or answers for.
  /// @param of_rank  each rank answers for its own.
  template <class F>
  void for_each_piece(state_scope scope, int bucket, F&& f, bool of_rank = false) const {
    bool const kept = scope == state_scope::kept;
    auto const [first, count] = kept ? owned(bucket) : answered(bucket);
    for (auto const piece : plan_.pieces(bucket, first, count)) {
      if (kept || of_rank || plan_.at(piece.entry).info.answers) f(piece);
    }
  }

 private:
  layout const& plan_;
  int rank_;
  bool sharded_;
};

}  // namespace trireme::parallel
