#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/contract/axis.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/contract/rank_groups.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/pack.hpp"
#include "trireme/parallel/grid.hpp"
#include "trireme/parallel/mesh.hpp"

namespace trireme::detail {

/// The run state of an axis on a rank, if it has one and its degree is above 1.
template <class Env, class Comm, class Axis>
struct placed_axis {
  struct nothing {};
  std::optional<nothing> state;
};
template <class Env, class Comm, has_axis_instance Axis>
struct placed_axis<Env, Comm, Axis> {
  std::optional<typename Axis::template instance<Env, Comm>> state;
};

/// What the axes of a mesh give a rank: groups for its units, a pipeline stage, its part of each sample.
///
/// Ranks    constructed collectively.
/// Threads  one owner; the grid must outlive it.
template <class Env, class Comm, class Mesh>
class placed_axes;
template <class Env, class Comm, class... Axes>
class placed_axes<Env, Comm, parallel::mesh<Axes...>> {
 public:
  /// The kind of the axis that gives each rank only some units of the model; empty if there is none.
  static constexpr std::string_view stages = [] {
    std::string_view kind;
    ((kind = facts_of_axis<Axes>.parameters == axis_parameters::units ? kind_of_axis<Axes> : kind), ...);
    return kind;
  }();

  template <class Policy>
  placed_axes(Policy const& policy, parallel::grid<Comm>& grid) {
    parallel::detail::for_each_axis(policy, [&]<class Axis>(Axis const& each) {
      if constexpr (has_axis_instance<Axis>) {
        if (grid.along(kind_of_axis<Axis>) == nullptr) return;
        auto& state = all_.template get<placed_axis<Env, Comm, Axis>>().state;
        state.emplace(each, grid);
        if constexpr (requires { state->offer(groups_); }) state->offer(groups_);
      }
    });
  }

  [[nodiscard]] rank_groups<Env> const& groups() const noexcept { return groups_; }
  /// Offers the units a group that belongs to no axis.
  template <class Group>
  void offer(Group& group) {
    groups_.offer(group);
  }
  /// Calls f(run state) for each run state.
  template <class F>
  void each(F&& f) {
    (
        [&] {
          if constexpr (has_axis_instance<Axes>) {
            auto& state = all_.template get<placed_axis<Env, Comm, Axes>>().state;
            if (state) f(*state);
          }
        }(),
        ...);
  }
  /// This rank's part of each sample; valid until the next call.
  [[nodiscard]] std::span<samples const> cut(std::span<samples const> batches) {
    each([&](auto& axis) {
      if constexpr (requires { axis.cut(batches); }) batches = axis.cut(batches);
    });
    return batches;
  }
  /// Errors   config_error if an axis does not support sums in a fixed tree over micro-batches.
  template <class Strategy>
  void expect_no_tree([[maybe_unused]] Strategy const& strategy) {
    if (!sums_in_a_tree(strategy)) return;
    each([&](auto& axis) {
      if constexpr (requires { axis.refuses_tree(); }) {
        if (std::string const why = axis.refuses_tree(); !why.empty())
          throw config_error(text("trireme::parallel::", strategy.name, ": .reproducible ", why));
      }
    });
  }

 private:
  pack<placed_axis<Env, Comm, Axes>...> all_;
  rank_groups<Env> groups_;
};

}  // namespace trireme::detail
