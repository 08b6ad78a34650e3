#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/axis.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/pack.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/parallel/learners.hpp"
#include "trireme/parallel/strategies.hpp"

namespace trireme::parallel {

namespace detail {

/// The degree that an axis asks for; 0: the ranks that other axes leave.
template <class Axis>
[[nodiscard]] int degree_of(Axis const& it) {
  if constexpr (requires { it.degree(); }) {
    return static_cast<int>(it.degree());
  } else if constexpr (requires { it.ways; }) {
    return static_cast<int>(it.ways);
  } else {
    return 0;
  }
}

}  // namespace detail

/// Several axes of parallelism, outermost first: neighbouring ranks are along the last one. Each axis has a degree; one
/// of them may leave it out, and gets the remaining ranks. Without an axis that splits samples, each rank gets all
/// samples. The order, a list of kinds, is a value: all orders of the axes have one type.
///
/// Ranks    the product of the degrees is the size of the world. An axis beside another one (sequence) has that one's
///          degree, or 1.
/// Errors   config_error when a trainer is made, if the degrees do not fit the world.
/// @example parallel::mesh{parallel::zero<1>{}, parallel::pipeline<>{.stages = 2}, parallel::tensor{.ways = 2}}
template <mesh_axis... Axes>
struct mesh {
  using policy_category = slot::parallel;

  pack<Axes...> axes;
  std::array<std::string_view, sizeof...(Axes)> order{kind_of_axis<Axes>...};  ///< outermost first
  constexpr explicit mesh(Axes... all) : axes(std::move(all)...) {}
  friend bool operator==(mesh const&, mesh const&) = default;

  void validate() const {
    axes.each([](auto const& axis) { expect_valid(axis); });
  }

  static constexpr std::string_view name = "mesh";
};

template <mesh_axis... Axes>
[[nodiscard]] std::string to_string(mesh<Axes...> const& m) {
  std::string all;
  for (auto const kind : m.order) {
    auto const add = [&]<class Axis>(Axis const& each) {
      if (kind_of_axis<Axis> == kind) all += text(all.empty() ? "" : ", ", to_string(each));
    };
    m.axes.each(add);
  }
  return text("parallel::mesh{", all, "}");
}

namespace detail {

template <class Axis>
inline constexpr bool is_learners = strategy<Axis>&& takes_local_steps<Axis>;

// The strategy of an exchange under a mesh with both kinds of strategies, one of them, or neither.
template <class Outer, class Inner>
struct data_axis_of_two {
  using type = learners<Outer, Inner>;
};
template <class Outer>
struct data_axis_of_two<Outer, void> {
  using type = Outer;
};
template <class Inner>
struct data_axis_of_two<void, Inner> {
  using type = Inner;
};
template <>
struct data_axis_of_two<void, void> {
  using type = data;
};

template <class T>
inline constexpr bool is_mesh = false;
template <mesh_axis... Axes>
inline constexpr bool is_mesh<mesh<Axes...>> = true;

template <class Mesh>
struct mesh_traits;
template <mesh_axis... Axes>
struct mesh_traits<mesh<Axes...>> {
  [[nodiscard]] static constexpr int count(std::string_view kind) {
    return (0 + ... + int{kind_of_axis<Axes> == kind});
  }
  /// Whether the facts of some axis satisfy the predicate.
  template <class Predicate>
  [[nodiscard]] static constexpr bool any(Predicate is) {
    return (is(facts_of_axis<Axes>) || ...);
  }
  static constexpr bool once = ((count(kind_of_axis<Axes>) == 1) && ...) && (0 + ... + int{is_learners<Axes>}) <= 1 &&
                               (0 + ... + int{strategy<Axes> && !is_learners<Axes>}) <= 1;

  // The first strategy whose ranks take steps apart, or the first other one; void if there is none.
  template <bool Apart, class... Rest>
  struct first_strategy {
    using type = void;
  };
  template <bool Apart, class First, class... Rest>
  struct first_strategy<Apart, First, Rest...>
      : std::conditional_t<strategy<First> && is_learners<First> == Apart, std::type_identity<First>,
                           first_strategy<Apart, Rest...>> {};
  using outer = typename first_strategy<true, Axes...>::type;
  using inner = typename first_strategy<false, Axes...>::type;
  using data_axis = typename data_axis_of_two<outer, inner>::type;
};

}  // namespace detail

/// A parallel policy is a mesh, or a single axis.
template <class P>
concept parallel_policy = mesh_axis<P> || detail::is_mesh<P>;

namespace detail {

template <class P>
struct mesh_of {
  using type = P;
};
template <mesh_axis P>
struct mesh_of<P> {
  using type = mesh<P>;
};

}  // namespace detail

template <parallel_policy P>
using mesh_of_t = typename detail::mesh_of<P>::type;

/// Whether a policy has an axis of this kind, at whatever degree.
template <parallel_policy P>
[[nodiscard]] constexpr bool has_axis(std::string_view kind) {
  return detail::mesh_traits<mesh_of_t<P>>::count(kind) > 0;
}
/// Whether it has an axis whose facts satisfy is(facts).
template <parallel_policy P, class Predicate>
[[nodiscard]] constexpr bool any_axis(Predicate is) {
  return detail::mesh_traits<mesh_of_t<P>>::any(is);
}

/// Whether all axes are of different kinds.
template <parallel_policy P>
inline constexpr bool no_axis_twice = detail::mesh_traits<mesh_of_t<P>>::once;

/// Whether all ranks hold the same part of the model.
template <parallel_policy P>
inline constexpr bool all_are_replicas = !any_axis<P>([](axis_facts const& is) { return !is.replicates(); });

/// The axis that splits samples, `parallel::data` if there is none; learners<Outer, Inner> if there are two.
template <parallel_policy P>
using data_axis_t = typename detail::mesh_traits<mesh_of_t<P>>::data_axis;

namespace detail {

/// Calls f(axis) for each axis of a policy.
template <class P, class F>
void for_each_axis(P const& policy, F&& f) {
  if constexpr (is_mesh<P>) {
    policy.axes.each(f);
  } else {
    f(policy);
  }
}

}  // namespace detail

namespace detail {

template <class Found, class Axis>
void add_data_axis(Found& found, Axis const& each) {
  if constexpr (std::is_same_v<Axis, Found>) {
    found = each;
  } else if constexpr (strategy<Axis> && is_learners_of_two<Found>) {
    if constexpr (takes_local_steps<Axis>) {
      found = Found::of(each, found.inner);
    } else {
      found = Found::of(found.outer, each);
    }
  }
}

}  // namespace detail

/// The axis of a policy that splits samples; one of degree 1 if it has none.
template <parallel_policy P>
[[nodiscard]] data_axis_t<P> data_axis_of(P const& policy) {
  data_axis_t<P> found{};
  detail::for_each_axis(policy, [&](auto const& each) { detail::add_data_axis(found, each); });
  return found;
}

/// The degrees of a mesh in a world of some size, and the coordinates of its ranks.
class mesh_shape {
 public:
  struct sized_axis {
    std::string_view kind;
    axis_facts facts;
    int degree;
  };

  /// Errors   config_error with the degrees if they do not fit.
  template <parallel_policy P>
  mesh_shape(P const& policy, int world) : world_(world) {
    detail::for_each_axis(policy, [&]<class Axis>(Axis const& each) {
      constexpr auto facts = facts_of_axis<Axis>;
      (facts.same_ranks_as.empty() ? axes_ : on_same_ranks_)
          .push_back({kind_of_axis<Axis>, facts, detail::degree_of(each)});
    });
    if constexpr (detail::is_mesh<P>) sort_by(policy.order);
    fit();
    for (auto& each : on_same_ranks_) {
      auto const theirs = degree_of(each.facts.same_ranks_as);
      if (each.degree != 0 && each.degree != 1 && each.degree != theirs) {
        throw config_error(text("trireme::parallel::", each.kind, ": .ways is ", each.degree, " beside ",
                                each.facts.same_ranks_as, " of ", theirs, "; ", each.kind, " uses the ranks of ",
                                each.facts.same_ranks_as, ": leave .ways out, or set it to 1 to switch it off"));
      }
      if (each.degree == 0) each.degree = theirs;
    }
  }

  [[nodiscard]] int world() const noexcept { return world_; }
  /// The axes with ranks of their own, outermost first.
  [[nodiscard]] std::vector<sized_axis> const& axes() const noexcept { return axes_; }
  /// The degree of an axis; 1 if the mesh has none of this kind.
  [[nodiscard]] int degree_of(std::string_view kind) const noexcept {
    for (auto const* const list : {&axes_, &on_same_ranks_}) {
      for (auto const& each : *list)
        if (each.kind == kind) return each.degree;
    }
    return 1;
  }
  /// A rank's coordinate on an axis; {0, 1} if the mesh has no such axis.
  [[nodiscard]] group_rank coordinate(int rank, std::string_view kind) const noexcept {
    for (auto a = axes_.size(); a-- > 0;) {
      auto const& each = axes_[a];
      if (each.kind == kind) return {rank % each.degree, each.degree};
      rank /= each.degree;
    }
    return {};
  }
  /// A number that is the same for all ranks that differ only on this axis.
  [[nodiscard]] int group_along(std::string_view kind, int rank) const noexcept {
    return number(rank, [&](sized_axis const& each) { return each.kind != kind; }).rank;
  }
  /// A rank's number among those with the same part of the model, and a number that is the same for all of these.
  [[nodiscard]] group_rank among_replicas(int rank) const noexcept {
    return number(rank, [](sized_axis const& each) { return each.facts.replicates(); });
  }
  [[nodiscard]] int group_of_replicas(int rank) const noexcept {
    return number(rank, [](sized_axis const& each) { return !each.facts.replicates(); }).rank;
  }
  /// The learner of a rank, and how many there are: 1 unless ranks take steps apart.
  [[nodiscard]] group_rank learner_of(int rank) const noexcept {
    return number(rank, [](sized_axis const& each) { return each.facts.learners; });
  }
  /// A rank's number among those of its learner with the same part of the model.
  [[nodiscard]] group_rank among_replicas_of_learner(int rank) const noexcept {
    return number(rank, [](sized_axis const& each) { return each.facts.replicates() && !each.facts.learners; });
  }
  /// The part of the samples of a rank: the replicas of one part of the model have neighbouring ones.
  [[nodiscard]] group_rank samples_of(int rank) const noexcept {
    auto const splits = [](sized_axis const& each) { return each.facts.samples == axis_samples::split; };
    auto const outer = number(rank, [&](sized_axis const& each) { return splits(each) && each.facts.replicates(); });
    auto const inner = number(rank, [&](sized_axis const& each) { return splits(each) && !each.facts.replicates(); });
    return {outer.rank * inner.size + inner.rank, outer.size * inner.size};
  }
  /// "data=2, tensor=2"
  [[nodiscard]] std::string to_string() const {
    std::string all;
    for (auto const& each : axes_) all += text(all.empty() ? "" : ", ", each.kind, "=", each.degree);
    return all;
  }

 private:
  // A rank's coordinate on some axes together.
  template <class Some>
  [[nodiscard]] group_rank number(int rank, Some const& some) const noexcept {
    group_rank own;
    for (auto const& each : axes_)
      if (some(each)) own = {own.rank * each.degree + coordinate(rank, each.kind).rank, own.size * each.degree};
    return own;
  }

  template <class Order>
  void sort_by(Order const& order) {
    auto const place = [&](sized_axis const& each) { return std::find(order.begin(), order.end(), each.kind); };
    std::sort(axes_.begin(), axes_.end(),
              [&](sized_axis const& a, sized_axis const& b) { return place(a) < place(b); });
  }

  void fit() {
    sized_axis* open = nullptr;
    int product = 1;
    for (auto& each : axes_) {
      if (each.degree < 0)
        throw config_error(text("trireme::parallel::mesh: ", each.kind, " has ", each.degree,
                                " ways; set at least 1, or 0 for the remaining ranks"));
      if (each.degree == 0) {
        if (open != nullptr)
          throw config_error(text("trireme::parallel::mesh: ", open->kind, " and ", each.kind,
                                  " both ask for the remaining ranks (0); give one of them a degree"));
        open = &each;
      } else {
        product *= each.degree;
      }
    }
    if (open != nullptr && world_ % product == 0) {
      open->degree = world_ / product;
      return;
    }
    if (open == nullptr && product == world_) return;
    auto const given = product == 1 && axes_.empty() ? std::string("no axes") : to_string();
    throw config_error(text("trireme::parallel::mesh: ", given,
                            open != nullptr ? " (0: the remaining ranks) takes" : " takes",
                            open != nullptr ? " a multiple of " : " ", how_many(product, "rank"),
                            ", but the world has ", world_, "; change a degree or the number of ranks"));
  }

  int world_;
  std::vector<sized_axis> axes_;
  std::vector<sized_axis> on_same_ranks_;  // axes that use the ranks of another one
};

}  // namespace trireme::parallel
