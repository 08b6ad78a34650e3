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

/// What a mesh means for one rank: its place on each axis, and the groups that it belongs to. An axis that takes the
/// whole world uses it as it is.
///
/// Ranks    made collectively: the world is split once for each axis of more than one way.
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
      if constexpr (!strategy<Axis> && facts.beside.empty() && (has_axis_instance<Axis> || !facts.replicates())) {
        if (shape_.ways(kind) > 1)
          groups_.push_back(
              {kind, std::make_unique<Comm>(group_of(world_, share_of(kind), shape_.group_along(kind, rank_)))});
      }
    });
  }
  grid(grid const&) = delete;
  grid& operator=(grid const&) = delete;

  [[nodiscard]] mesh_shape const& shape() const noexcept { return shape_; }
  [[nodiscard]] share share_of(std::string_view kind) const noexcept { return shape_.share_of(rank_, kind); }
  [[nodiscard]] Comm& everyone() const noexcept { return world_; }
  /// Which part of the samples this rank sees: ranks along an axis that splits them see different ones.
  [[nodiscard]] share samples() const noexcept { return shape_.samples_of(rank_); }
  /// The ranks that hold the same part of the model: what gradients are summed over.
  [[nodiscard]] Comm& replicas() noexcept { return replicas_ ? *replicas_ : world_; }
  /// The ranks that differ from this one on an axis of that kind only; null if there is none but itself. (Those along
  /// an axis of replicas that has no run state are no group: replicas() is.)
  [[nodiscard]] Comm* along(std::string_view kind) noexcept {
    for (auto const& each : groups_)
      if (each.kind == kind) return each.ranks.get();
    return nullptr;
  }

  /// What this rank has sent so far, in the world and in its groups.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept {
    auto sum = world_.traffic().bytes_sent;
    if (replicas_) sum += replicas_->traffic().bytes_sent;
    for (auto const& each : groups_) sum += each.ranks->traffic().bytes_sent;
    for (auto const& each : joined_) sum += each->traffic().bytes_sent;
    return sum;
  }

  /// Collective. The ranks of replicas() once more, in a communicator of their own.
  [[nodiscard]] Comm& replicas_apart() {
    auto& all = replicas();
    joined_.push_back(std::make_unique<Comm>(group_of(all, {all.rank(), all.size()}, 0)));
    return *joined_.back();
  }
  /// Collective. Some of the ranks along an axis, in their order, by their places. All ranks along it call this; null
  /// where this rank is none of them.
  [[nodiscard]] Comm* join(std::string_view kind, std::vector<int> const& places) {
    auto& all = *along(kind);
    bool member = false;
    share own{0, 1};
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
  // A world on paper, where nobody else says to which group he belongs, is told what this rank's group is like.
  [[nodiscard]] static Comm group_of(Comm& whole, [[maybe_unused]] share own, [[maybe_unused]] int color) {
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
