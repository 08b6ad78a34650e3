#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/contract/strategy.hpp"
#include "trireme/core/text.hpp"
#include "trireme/core/type_name.hpp"

namespace trireme::parallel {

/// Two strategies of one mesh: learners take steps apart and meet as `outer` says; within a learner, ranks share each
/// step as `inner` says. A mesh makes it of its axes: `mesh{diloco{.ways = 2}, zero<2>{}}`.
///
/// Bytes    within a learner those of `inner`. In an outer step each rank sends the slice of the parameters that it
///          moves, to the ranks with the same slice in the other learners: all ranks of a learner together send what
///          one rank would. If `inner` does not shard, the slices are then gathered within the learner.
/// Numerics those of `outer` over as many ranks as there are learners, if `inner` takes the same steps as one rank.
/// Ranks    the learners are along the axis of `outer`; all other axes of the mesh are within a learner.
template <class Outer, class Inner>
struct learners {
  Outer outer{};
  Inner inner{};
  std::int64_t bucket_bytes = 0;  ///< inner's
  bool reproducible = false;      ///< inner's
  int fragments = 1;              ///< outer's
  double outer_momentum = 0;      ///< outer's

  [[nodiscard]] static learners of(Outer const& outer, Inner const& inner) {
    learners out{outer, inner, static_cast<std::int64_t>(inner.bucket_bytes), sums_in_a_tree(inner)};
    if constexpr (requires { outer.fragments; }) out.fragments = outer.fragments;
    if constexpr (requires { outer.outer_momentum; }) out.outer_momentum = outer.outer_momentum;
    return out;
  }
  friend bool operator==(learners const&, learners const&) = default;

  static constexpr distribution optimizer_state = Inner::optimizer_state;
  static constexpr distribution gradients = Inner::gradients;
  static constexpr distribution parameters = Inner::parameters;
  static constexpr bool local_steps = true;
  static constexpr bool sends_changes = requires { requires Outer::sends_changes; };
  static constexpr bool mean_of_own_samples = requires { requires Outer::mean_of_own_samples; };
  static constexpr std::string_view name = [] {
    if constexpr (requires { std::string_view(Inner::name); }) return std::string_view(Inner::name);
    return std::string_view("learners");
  }();
};

/// Where ranks take steps apart: the groups of one rank among those that hold the same part of the model. Null where
/// the exchange makes them itself: each rank is a learner.
template <class Comm>
struct learner_ranks {
  Comm* within = nullptr;  ///< those of its learner
  Comm* across = nullptr;  ///< those of all learners with the same place in them, in the order of the learners
};

template <class Outer, class Inner>
[[nodiscard]] std::string to_string(learners<Outer, Inner> const& l) {
  return text("parallel::learners{", describe(l.outer), ", ", describe(l.inner), "}");
}

namespace detail {

template <class S>
inline constexpr bool is_learners_of_two = false;
template <class Outer, class Inner>
inline constexpr bool is_learners_of_two<learners<Outer, Inner>> = true;

}  // namespace detail
}  // namespace trireme::parallel
