#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/parallel/mesh.hpp"

namespace trireme::parallel {

/// A mesh as seen by one rank: its coordinate on each axis, and its groups. An axis that takes the whole world uses the
/// world itself.
///
/// Ranks    made collectively: the world is split once for each axis with a degree above 1.
/// Threads  one owner. The world must outlive it.
/// Errors   as mesh_shape.
template <class Comm>
class grid {
 public:
  template <parallel_policy P>
  grid(P const& policy, Comm& world) : shape_(policy, world.size()), world_(world), rank_(world.rank()) {
    if constexpr (!all_are_replicas<P>) {
      auto const among = shape_.among_replicas(rank_);
      if (among.size != world.size()) replicas_.emplace(group_of(world_, among, shape_.group_of_replicas(rank_)));
    }
    detail::for_each_axis(policy, [&]<class Axis>(Axis const&) {
      constexpr auto kind = kind_of_axis<Axis>;
      constexpr auto facts = facts_of_axis<Axis>;
      if constexpr (!strategy<Axis> && facts.same_ranks_as.empty() &&
                    (has_axis_instance<Axis> || !facts.replicates())) {
        if (shape_.degree_of(kind) > 1)
          groups_.push_back(
              {kind, std::make_unique<Comm>(group_of(world_, coordinate(kind), shape_.group_along(kind, rank_)))});
      }
    });
  }
  grid(grid const&) = delete;
  grid& operator=(grid const&) = delete;

  [[nodiscard]] mesh_shape const& shape() const noexcept { return shape_; }
  [[nodiscard]] group_rank coordinate(std::string_view kind) const noexcept { return shape_.coordinate(rank_, kind); }
  [[nodiscard]] Comm& everyone() const noexcept { return world_; }
  /// The part of the samples that this rank gets: ranks along an axis that splits samples get different ones.
  [[nodiscard]] group_rank samples() const noexcept { return shape_.samples_of(rank_); }
  /// The ranks that hold the same part of the model, over which gradients are summed.
  [[nodiscard]] Comm& replicas() noexcept { return replicas_ ? *replicas_ : world_; }
  /// The ranks that differ from this one only on an axis of that kind; null if there are none. (Ranks along an axis of
  /// replicas without a run state have no group of their own: use replicas().)
  [[nodiscard]] Comm* along(std::string_view kind) noexcept {
    for (auto const& each : groups_)
      if (each.kind == kind) return each.ranks.get();
    return nullptr;
  }

  /// Collective. The ranks of replicas() apart by learners; {} if each is a learner, or there are no learners.
  template <parallel_policy P>
  [[nodiscard]] learner_ranks<Comm> learners() {
    constexpr bool some = any_axis<P>([](axis_facts const& is) { return is.learners; });
    constexpr bool several = any_axis<P>([](axis_facts const& is) { return is.replicates() && !is.learners; });
    if constexpr (some && several) {
      auto const learner = shape_.learner_of(rank_), place = shape_.among_replicas_of_learner(rank_);
      if (place.size == 1) return {};
      auto const part = shape_.group_of_replicas(rank_);
      auto const join = [&](group_rank own, int color) {
        return joined_.emplace_back(std::make_unique<Comm>(group_of(world_, own, color))).get();
      };
      auto* const within = join(place, part * learner.size + learner.rank);
      return {within, join(learner, part * place.size + place.rank)};
    } else {
      return {};
    }
  }

  /// What this rank has sent so far, in the world and in its groups.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept {
    auto sum = world_.traffic().bytes_sent;
    if (replicas_) sum += replicas_->traffic().bytes_sent;
    for (auto const& each : groups_) sum += each.ranks->traffic().bytes_sent;
    for (auto const& each : joined_) sum += each->traffic().bytes_sent;
    return sum;
  }

  /// Collective. The ranks of replicas(), on a communicator of its own.
  [[nodiscard]] Comm& replicas_apart() {
    auto& all = replicas();
    joined_.push_back(std::make_unique<Comm>(group_of(all, {all.rank(), all.size()}, 0)));
    return *joined_.back();
  }
  /// Collective over all ranks along an axis: a communicator of some of them, in their order; null if this rank is not
  /// among `places`.
  [[nodiscard]] Comm* join(std::string_view kind, std::vector<int> const& places) {
    auto& all = *along(kind);
    bool member = false;
    group_rank own{0, 1};
    for (int p = 0; p < static_cast<int>(places.size()); ++p) {
      if (places[static_cast<std::size_t>(p)] != all.rank()) continue;
      member = true;
      own = {p, static_cast<int>(places.size())};
    }
    joined_.push_back(std::make_unique<Comm>(group_of(all, own, member ? 0 : 1)));
    return member ? joined_.back().get() : nullptr;
  }

 private:
  struct group {
    std::string_view kind;
    std::unique_ptr<Comm> ranks;
  };
  // In a planned world other ranks do not call split, so it gets the form of this rank's group.
  [[nodiscard]] static Comm group_of(Comm& whole, [[maybe_unused]] group_rank own, [[maybe_unused]] int color) {
    if constexpr (requires { whole.split(own); }) {
      return whole.split(own);
    } else {
      return whole.split(color, whole.rank());
    }
  }

  mesh_shape shape_;
  Comm& world_;
  int rank_;
  std::optional<Comm> replicas_;
  std::vector<group> groups_;
  std::vector<std::unique_ptr<Comm>> joined_;
};

}  // namespace trireme::parallel
