#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/foreign_parameters.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/detail/value_store.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::parallel::detail {

/// How what an update writes reaches every rank's layers: straight into all ranks' buckets where they share an address
/// space, gathered afterwards otherwise; not at all where every rank updates everything, or keeps slices only.
template <class Env, class Comm, strategy Strategy>
class value_outputs {
 public:
  using space = typename Env::space;
  using element = typename Env::param;
  using view = tensor_view<element, space>;
  using kernels = ops::on<space>;
  static constexpr bool sharded =
      Strategy::optimizer_state == distribution::shard && Strategy::parameters == distribution::replicate;
  static constexpr bool keeps_master = !std::is_same_v<element, typename Env::master>;
  static constexpr bool can_write_peers = sharded && has_peers<Comm, element, space>;

  value_outputs(layout const& plan, value_store<Env, Comm, Strategy> const& values,
                foreign_parameters<element, space> const& foreign, Comm& world)
      : plan_(plan), values_(values), foreign_(foreign), world_(world) {
    outputs_.reserve(static_cast<std::size_t>(world.size()));
    if constexpr (can_write_peers) {
      for (int b = 0; foreign.empty() && b < buckets(); ++b) peers_.push_back(world.peers(values.kept(b)));
    }
  }
  value_outputs(value_outputs const&) = delete;
  value_outputs& operator=(value_outputs const&) = delete;

  /// What an update of a piece writes besides its master value; until the next call.
  [[nodiscard]] std::span<view const> of(int bucket, layout::piece const& piece) {
    outputs_.clear();
    if constexpr (can_write_peers) {
      for (int rank = 0; foreign_.empty() && rank < world_.size(); ++rank) {
        if (!keeps_master && rank == world_.rank()) continue;  // the value itself
        auto const& theirs = peers_[static_cast<std::size_t>(bucket)][static_cast<std::size_t>(rank)];
        outputs_.push_back(theirs.flat(piece.in_bucket, piece.count));
      }
    } else if constexpr (keeps_master) {
      outputs_.push_back(values_.kept(bucket, piece));
    }
    return outputs_;
  }
  /// Collective. After an update of the first so many buckets: all ranks have all values that their layers read between
  /// units.
  void publish(int buckets) {
    if constexpr (can_write_peers) {
      if (foreign_.empty()) return world_.barrier();
    }
    if constexpr (sharded) gather(buckets);
  }

 private:
  [[nodiscard]] int buckets() const noexcept { return static_cast<int>(plan_.buckets().size()); }

  void gather(int buckets) {
    pending_.clear();
    for (int b = 0; b < buckets; ++b) {
      if (!foreign_.empty()) copy_foreign(b, true);
      pending_.push_back(world_.all_gather_async(values_.kept(b)));
    }
    for (int b = 0; b < buckets; ++b) {
      pending_[static_cast<std::size_t>(b)].wait();
      if (!foreign_.empty()) copy_foreign(b, false);
    }
  }
  // Between the caller's values and the bucket they are gathered in: own pieces in, all pieces out.
  void copy_foreign(int bucket, bool in) {
    auto const whole = values_.kept(bucket);
    auto const n = plan_.slice_elements(bucket);
    auto const [first, count] = in ? std::pair{world_.rank() * n, n} : std::pair{std::int64_t{0}, whole.size()};
    plan_.for_each_piece(bucket, first, count, [&](layout::piece const& piece) {
      auto const theirs = foreign_.value(plan_.at(piece.entry)).flat(piece.in_entry, piece.count);
      auto const ours = whole.flat(piece.in_bucket, piece.count);
      kernels::copy(in ? ours : theirs, tensor_view<element const, space>(in ? theirs : ours));
    });
  }

  layout const& plan_;
  value_store<Env, Comm, Strategy> const& values_;
  foreign_parameters<element, space> const& foreign_;
  Comm& world_;
  std::vector<std::vector<view>> peers_;  // by bucket
  std::vector<view> outputs_;             // kept, as the next: no allocation
  std::vector<gather_request_t<Comm, element, space, sharded>> pending_;
};

}  // namespace trireme::parallel::detail
