#pragma once

#include "trireme/contract/parameter.hpp"
#include "trireme/contract/rank_groups.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// A model with layers that compute over the micro-batches of all data ranks at the same time
/// (nn::batch_norm{.synchronised = true}): it has a static `synchronises = true`.
///
/// Every rank then runs the same number of micro-batches: a rank that has fewer takes part in the sums of the others,
/// by its units' shadow_forward() and shadow_backward().
template <class M>
concept synchronises = requires {
  requires M::synchronises;
};

/// The ranks that run the same layers at the same time on other samples, as layers see them: their number, and sums
/// over them. A group of one does nothing.
///
/// Ranks    collective: all members call the same in the same order. Each rank of a tensor group has replicas of its
///          own, and so has each stage of a pipeline.
/// Numerics sums in rank order, with the same bits on all members.
template <class Env>
class replica_group : public rank_group<replica_group<Env>> {
 public:
  using sums = tensor_view<typename Env::accumulate, typename Env::space>;

  /// The group of a rank without replicas.
  [[nodiscard]] static replica_group& one();

  /// Whether sum() may be called: whether the model has `synchronises = true`.
  [[nodiscard]] bool meets() const noexcept { return meets_; }
  /// Sums over the members, in place.
  void sum(sums values) {
    if (this->size() > 1) do_sum(values);
  }

 protected:
  replica_group(trireme::group_rank own, bool meets) noexcept : rank_group<replica_group<Env>>(own), meets_(meets) {}

 private:
  virtual void do_sum(sums values) = 0;
  bool meets_;
};

namespace detail {

/// The replicas of a model that does not synchronise: their number, without sums.
template <class Env>
class apart_replicas final : public replica_group<Env> {
  using typename replica_group<Env>::sums;

 public:
  explicit apart_replicas(trireme::group_rank own) noexcept : replica_group<Env>(own, own.size == 1) {}

 private:
  void do_sum(sums) override {
    throw config_error(
        "trireme::replica_group: a layer sums over data ranks; "
        "give the model a static synchronises = true");
  }
};

}  // namespace detail

template <class Env>
replica_group<Env>& replica_group<Env>::one() {
  static detail::apart_replicas<Env> group({});
  return group;
}

}  // namespace trireme
