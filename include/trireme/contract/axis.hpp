#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>

#include "trireme/contract/strategy.hpp"

namespace trireme {

/// What the ranks along an axis see of the samples of a step: all the same, different ones, or parts of the same
/// samples (some positions of each).
enum class axis_samples : std::uint8_t { same, split, shared };

/// What they hold of the parameters:
///   alike  all of them have all parameters;
///   cut    tensors or boxes of them; what is not cut is alike, and units say who answers for it;
///   dealt  tensors that say so (parameter_info::dealt) are parts, all others are alike;
///   units  each has some units of the model.
enum class axis_parameters : std::uint8_t { alike, cut, dealt, units };

/// What meshes, groups and trainers have to know of an axis of parallelism.
struct axis_facts {
  axis_samples samples = axis_samples::same;
  axis_parameters parameters = axis_parameters::alike;
  bool equal_passes = false;  ///< a pass through a unit takes all ranks along the axis: each runs as many micro-batches
  std::string_view beside{};  ///< the kind of another axis whose ranks it uses; then its degree is 0 (that one's) or 1

  /// Whether the ranks along it are replicas, over which the exchange sums gradients.
  [[nodiscard]] constexpr bool replicates() const noexcept {
    return parameters == axis_parameters::alike && samples != axis_samples::same;
  }
  /// Whether they come to the same losses, of which the first rank's count.
  [[nodiscard]] constexpr bool same_losses() const noexcept {
    return samples == axis_samples::same && parameters != axis_parameters::units;
  }
  /// Whether gradients of what they hold alike still have to be summed over them.
  [[nodiscard]] constexpr bool sums_the_rest() const noexcept {
    return samples == axis_samples::split && parameters == axis_parameters::dealt;
  }
};

/// An axis of parallelism beside the one that splits samples: what it is called, and what is known of it.
///
/// Requires  static `kind` ("tensor") and `facts`; `ways`, the degree (0: what is left of the world), or degree();
///           to_string(axis).
/// May have  `rules`, a rule_list of what it refuses (contract/rule.hpp);
///           `instance<Env, Comm>`, its run state on a rank, made where the axis has more than one way by
///           instance(axis, parallel::grid<Comm>&), in which any of these functions may be:
///             offer(rank_groups<Env>&)   offers groups to the units;
///             cut(std::span<samples const>) -> the same, of each sample what this rank has; until the next call;
///             refuses_tree() -> why the axis cannot do with .reproducible; empty if it can;
///             mark(uses)                 may change infos (tied, answers) before parameters get memory;
///             join(exchange)             may name further sums (sum_also);
///             seat(model), link()        where it gives each rank some units: its seat, and the way to the others.
template <class A>
concept described_axis = requires {
  { A::kind } -> std::convertible_to<std::string_view>;
  { A::facts } -> std::convertible_to<axis_facts>;
};

/// What one axis of a mesh may be: a strategy that splits samples (data, zero, your own), or one of the other axes.
template <class A>
concept mesh_axis = strategy<A> || described_axis<A>;

template <mesh_axis A>
inline constexpr std::string_view kind_of_axis = [] {
  if constexpr (described_axis<A>) {
    return std::string_view(A::kind);
  } else {
    return std::string_view("data");
  }
}();
template <mesh_axis A>
inline constexpr axis_facts facts_of_axis = [] {
  if constexpr (described_axis<A>) {
    return axis_facts(A::facts);
  } else {
    return axis_facts{.samples = axis_samples::split};
  }
}();

namespace detail {

template <template <class, class> class>
struct names_instance {};

}  // namespace detail

/// An axis with a run state besides its ranks.
template <class A>
concept has_axis_instance = described_axis<A> && requires {
  typename detail::names_instance<A::template instance>;
};

}  // namespace trireme
