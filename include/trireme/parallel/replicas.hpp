#pragma once

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/replica_group.hpp"

namespace trireme::parallel {

/// The replicas of a synchronising model on a communicator of their own: the sums of layers must not wait for gradients
/// in transit.
///
/// Ranks    collective, as the calls of replica_group are.
/// Threads  one owner; the communicator must outlive it, and must not be used otherwise.
template <class Env, class Comm>
class communicator_replicas final : public replica_group<Env> {
  using typename replica_group<Env>::sums;

 public:
  explicit communicator_replicas(Comm& ranks) : replica_group<Env>({ranks.rank(), ranks.size()}, true), ranks_(ranks) {}

 private:
  void do_sum(sums values) override { ranks_.all_reduce(values, reduction::sum{}); }

  Comm& ranks_;
};

}  // namespace trireme::parallel
