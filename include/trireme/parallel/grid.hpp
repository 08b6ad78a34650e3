#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
      if (among.ways != world.size()) replicas_.emplace(group_of(world_, among, shape_.group_of_replicas(rank_)));
    }
    if constexpr (has_axis<P, axis::tensor>) {
      if (shape_.ways(axis::tensor) > 1) tensor_.emplace(along(axis::tensor));
    }
    if constexpr (has_axis<P, axis::context>) {
      if (shape_.ways(axis::context) > 1) context_.emplace(along(axis::context));
    }
    if constexpr (has_axis<P, axis::pipeline>) {
      if (shape_.ways(axis::pipeline) > 1) stages_.emplace(along(axis::pipeline));
    }
    if constexpr (has_axis<P, axis::expert>) {
      if (shape_.ways(axis::expert) > 1) experts_.emplace(along(axis::expert));
    }
  }
  grid(grid const&) = delete;
  grid& operator=(grid const&) = delete;

  [[nodiscard]] mesh_shape const& shape() const noexcept { return shape_; }
  [[nodiscard]] share place(axis kind) const noexcept { return shape_.share_of(rank_, kind); }
  [[nodiscard]] Comm& everyone() const noexcept { return world_; }
  /// Which part of the samples this rank sees: ranks that differ in their data or their experts see different ones.
  [[nodiscard]] share samples() const noexcept {
    auto const data = place(axis::data);
    auto const experts = place(axis::expert);
    return {data.place * experts.ways + experts.place, data.ways * experts.ways};
  }
  /// The ranks that hold the same part of the model: what gradients are summed over.
  [[nodiscard]] Comm& replicas() noexcept { return replicas_ ? *replicas_ : world_; }
  /// The ranks that share each layer's matrices; null if this rank does so with nobody.
  [[nodiscard]] Comm* tensor() noexcept { return tensor_ ? &*tensor_ : nullptr; }
  /// The ranks that share each sample's positions; null if this rank has whole samples.
  [[nodiscard]] Comm* context() noexcept { return context_ ? &*context_ : nullptr; }
  /// The ranks that hold consecutive units; null if this rank holds all of them.
  [[nodiscard]] Comm* stages() noexcept { return stages_ ? &*stages_ : nullptr; }
  /// The ranks that share out the experts of each layer; null if this rank has all of them.
  [[nodiscard]] Comm* experts() noexcept { return experts_ ? &*experts_ : nullptr; }

  /// What this rank has sent so far, in the world and in its groups.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept {
    auto sum = world_.traffic().bytes_sent;
    for (auto const* const group : {&replicas_, &tensor_, &context_, &stages_, &experts_}) {
      if (*group) sum += (*group)->traffic().bytes_sent;
    }
    for (auto const& group : joined_) sum += group->traffic().bytes_sent;
    return sum;
  }

  /// Collective. The ranks of some stages of this rank's pipeline, in their order. All ranks of the pipeline call it;
  /// null on the stages that do not belong to it.
  [[nodiscard]] Comm* join(std::vector<int> const& some_stages) {
    bool member = false;
    share own{0, 1};
    for (int s = 0; s < static_cast<int>(some_stages.size()); ++s) {
      if (some_stages[static_cast<std::size_t>(s)] != stages_->rank()) continue;
      member = true;
      own = {s, static_cast<int>(some_stages.size())};
    }
    joined_.push_back(std::make_unique<Comm>(group_of(*stages_, own, member ? 0 : 1)));
    return member ? joined_.back().get() : nullptr;
  }

 private:
  [[nodiscard]] Comm along(axis kind) { return group_of(world_, place(kind), shape_.group_along(kind, rank_)); }
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
  std::optional<Comm> replicas_, tensor_, context_, stages_, experts_;
  std::vector<std::unique_ptr<Comm>> joined_;
};

}  // namespace trireme::parallel
