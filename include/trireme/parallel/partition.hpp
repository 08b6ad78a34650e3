#pragma once

#include "trireme/contract/state.hpp"
#include "trireme/core/interval.hpp"
#include "trireme/parallel/bucket_plan.hpp"

namespace trireme::parallel {

/// The elements of each bucket that this rank updates, and those that it owns in hashes and checkpoints.
class partition {
 public:
  /// @param rank     among the ranks over which gradients are summed.
  /// @param sharded  whether each rank updates its slice only.
  partition(bucket_plan const& plan, int rank, bool sharded) noexcept : plan_(plan), rank_(rank), sharded_(sharded) {}

  [[nodiscard]] bucket_plan const& plan() const noexcept { return plan_; }
  /// The elements of a bucket that this rank updates.
  [[nodiscard]] interval owned(int bucket) const noexcept {
    return sharded_ ? accounted(bucket) : interval{0, plan_.buckets()[static_cast<std::size_t>(bucket)].elements};
  }
  /// Of a tensor of the elements owned(bucket), the part that is a range of the bucket.
  template <class View>
  [[nodiscard]] View in_slice(View const& slice, int bucket, bucket_plan::tensor_range const& range) const {
    return slice.flat(range.in_bucket - owned(bucket).first, range.count);
  }
  /// The elements of a bucket that this rank owns, unless another rank of its replica owns the tensor (info.is_owner):
  /// each element has one owner.
  [[nodiscard]] interval accounted(int bucket) const noexcept {
    auto const n = plan_.slice_elements(bucket);
    return {rank_ * n, n};
  }
  /// Calls f(piece) for each piece of a bucket whose state this rank keeps, or owns.
  /// @param copies  also of tensors that another rank of its replica owns.
  template <class F>
  void for_each_range(state_scope scope, int bucket, F&& f, bool copies = false) const {
    bool const kept = scope == state_scope::kept;
    auto const [first, count] = kept ? owned(bucket) : accounted(bucket);
    for (auto const range : plan_.tensor_ranges(bucket, first, count)) {
      if (kept || copies || plan_.at(range.entry).info.is_owner) f(range);
    }
  }
  /// Calls f(bucket, piece) for those of the first `buckets` buckets.
  template <class F>
  void for_each_range_of(state_scope scope, int buckets, F&& f, bool copies = false) const {
    for (int b = 0; b < buckets; ++b)
      for_each_range(
          scope, b, [&](bucket_plan::tensor_range const& range) { f(b, range); }, copies);
  }

 private:
  bucket_plan const& plan_;
  int rank_;
  bool sharded_;
};

}  // namespace trireme::parallel
