#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>

#include "trireme/contract/strategy.hpp"

namespace trireme {

/// Which samples of a step the ranks along an axis get: all the same, different ones, or parts of the same samples
/// (some positions of each).
enum class axis_samples : std::uint8_t { same, split, shared };

/// Which parameters the ranks along an axis hold:
///   alike  every rank has all parameters;
///   sharded      tensors or boxes of them; the others are replicated, and units name the rank that owns them;
///   distributed  tensors marked so (parameter_info::distributed) are distributed, all others replicated;
///   units        each rank has some units of the model.
enum class axis_parameters : std::uint8_t { replicated, sharded, distributed, units };

/// What meshes, groups and trainers need to know about an axis of parallelism.
struct axis_facts {
  axis_samples samples = axis_samples::same;
  axis_parameters parameters = axis_parameters::replicated;
  bool equal_passes = false;  ///< all ranks along the axis run the same number of micro-batches
  std::string_view
      same_ranks_as{};    ///< kind of another axis whose ranks it uses; its degree is then 0 (the other's) or 1
  bool learners = false;  ///< ranks along it take steps apart: all others are axes within one learner

  /// Whether the ranks along the axis are replicas, over which the exchange sums gradients.
  [[nodiscard]] constexpr bool replicates() const noexcept {
    return parameters == axis_parameters::replicated && samples != axis_samples::same;
  }
  /// Whether all its ranks compute the same losses; those of the first rank are then counted.
  [[nodiscard]] constexpr bool same_losses() const noexcept {
    return samples == axis_samples::same && parameters != axis_parameters::units;
  }
  /// Whether gradients of replicated parameters must still be summed over its ranks.
  [[nodiscard]] constexpr bool sums_the_rest() const noexcept {
    return samples == axis_samples::split && parameters == axis_parameters::distributed;
  }
};

/// An axis of parallelism other than the one that splits samples: its name, and its properties.
///
/// Requires  static `kind` ("tensor") and `facts`; `ways`, the degree (0: the ranks that other axes leave), or
///           degree(); to_string(axis).
/// Optional  `rules`, a rule_list of unsupported combinations (contract/rule.hpp);
///           `instance<Env, Comm>`, its run state on a rank, made if the degree is above 1 by
///           instance(axis, parallel::grid<Comm>&), with any of these functions:
///             offer(rank_groups<Env>&)   offers groups to the units;
///             cut(std::span<samples const>) -> this rank's part of each sample, valid until the next call;
///             refuses_tree() -> why the axis does not support .reproducible; empty if it does;
///             mark(uses)                 may change infos (tied, is_owner) before parameters get memory;
///             join(exchange)             may name further sums (sum_also);
///             assignment(model), link()        if each rank gets some units: its stage, and the link to the other
///             stages.
template <class A>
concept described_axis = requires {
  { A::kind } -> std::convertible_to<std::string_view>;
  { A::facts } -> std::convertible_to<axis_facts>;
};

/// A valid axis of a mesh: a strategy that splits samples (data, zero, your own), or one of the other axes.
template <class A>
concept mesh_axis = strategy<A> || described_axis<A>;

/// The name of an axis's kind; "data" for a strategy that says none, its name if its ranks take steps apart.
template <mesh_axis A>
inline constexpr std::string_view kind_of_axis = [] {
  if constexpr (described_axis<A>) {
    return std::string_view(A::kind);
  } else if constexpr (takes_local_steps<A>) {
    std::string_view name = "learners";
    if constexpr (requires { std::string_view(A::name); }) {
      if (std::string_view(A::name) != "data") name = A::name;
    }
    return name;
  } else {
    return std::string_view("data");
  }
}();
/// The facts that an axis states, or those of data.
template <mesh_axis A>
inline constexpr axis_facts facts_of_axis = [] {
  if constexpr (described_axis<A>) {
    return axis_facts(A::facts);
  } else {
    return axis_facts{.samples = axis_samples::split, .learners = takes_local_steps<A>};
  }
}();

namespace detail {

template <template <class, class> class>
struct names_instance {};

}  // namespace detail

/// An axis whose ranks have a run state.
template <class A>
concept has_axis_instance = described_axis<A> && requires {
  typename detail::names_instance<A::template instance>;
};

}  // namespace trireme
