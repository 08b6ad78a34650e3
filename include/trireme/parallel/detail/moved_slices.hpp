#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trireme/comm/labels.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/partition.hpp"
#include "trireme/parallel/strategy_state.hpp"

namespace trireme::parallel::detail {

/// The slices of the parameters that this rank moves in outer steps, where each rank of a learner updates all of them.
///
/// Ranks    gather() is collective over the learner.
template <class Env, class Comm>
class moved_slices {
  using space = typename Env::space;
  using master = typename Env::master;
  using kernels = ops::on<space>;
  static constexpr bool can_gather = has_all_gather<Comm, master, space>;

 public:
  /// @param replicated  whether all ranks of the learner update everything: else there is nothing to gather.
  moved_slices(bucket_plan const& plan, Comm& learner, bool replicated)
      : own_(plan, learner.rank(), true), learner_(learner), gathers_(replicated && learner.size() > 1) {
    if (!gathers_) return;
    if constexpr (!can_gather) {
      throw config_error(
          "trireme::exchange: ranks of a learner gather what each has moved, but this communicator has no "
          "all_gather of this type; use parallel::zero within a learner, or learners of one rank");
    }
    std::int64_t most = 0;
    for (int b = 0; b < plan.trained_buckets(); ++b)
      most = std::max(most, plan.buckets()[static_cast<std::size_t>(b)].elements);
    all_ = message_tensor<master, space>(learner, shape{most});
    kernels::fill(all_.view(), 0.0);
  }

  [[nodiscard]] partition const& own() const noexcept { return own_; }
  [[nodiscard]] std::vector<owned_segment<Env>>& all() noexcept { return segments_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(all_.view().bytes()); }

  /// Gives all ranks of the learner the master values that each has moved.
  template <class Values>
  void gather(int buckets, Values const& values) {
    if (!gathers_) return;
    auto const& plan = own_.plan();
    for (int b = 0; b < buckets; ++b) {
      auto const elements = plan.buckets()[static_cast<std::size_t>(b)].elements;
      auto const [first, count] = own_.owned(b);
      for (auto const of : plan.tensor_ranges(b, first, count))
        kernels::copy(all_.view().flat(of.in_bucket, of.count), constant(values.master(b, of)));
      if constexpr (can_gather) {
        auto const now = comm::labelled::as_part(learner_, comm::call_label::bucket(b, true));
        learner_.all_gather(all_.view().flat(0, elements));
      }
      for (auto const of : plan.tensor_ranges(b, 0, elements))
        kernels::copy(values.master(b, of), constant(all_.view().flat(of.in_bucket, of.count)));
    }
  }

 private:
  static tensor_view<master const, space> constant(tensor_view<master, space> all) { return all; }

  partition own_;
  Comm& learner_;
  bool gathers_;
  trireme::tensor<master, space> all_;  // of one bucket
  std::vector<owned_segment<Env>> segments_;
};

/// Ranks that take each step together.
template <class Env>
struct nothing_moved {
  template <class Comm>
  nothing_moved(bucket_plan const&, Comm&, bool) noexcept {}
  [[nodiscard]] static std::int64_t bytes() noexcept { return 0; }
  template <class Values>
  void gather(int, Values const&) noexcept {}
};

}  // namespace trireme::parallel::detail
