#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/parallel/any_pipeline.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/parallel/tensor.hpp"

namespace trireme::parallel {

/// What an axis splits.
enum class axis : std::uint8_t { data, tensor, sequence, pipeline, context, expert };
inline constexpr int axis_count = 6;

[[nodiscard]] constexpr std::string_view name_of(axis it) noexcept {
  constexpr std::string_view names[axis_count] = {"data", "tensor", "sequence", "pipeline", "context", "expert"};
  return names[static_cast<int>(it)];
}

namespace detail {

template <class T>
struct axis_of {};
template <strategy T>
struct axis_of<T> {
  static constexpr axis value = axis::data;
};
template <>
struct axis_of<tensor> {
  static constexpr axis value = axis::tensor;
};
template <>
struct axis_of<sequence> {
  static constexpr axis value = axis::sequence;
};
template <>
struct axis_of<context> {
  static constexpr axis value = axis::context;
};
template <>
struct axis_of<expert> {
  static constexpr axis value = axis::expert;
};
template <class Schedule>
struct axis_of<pipeline<Schedule>> {
  static constexpr axis value = axis::pipeline;
};
template <>
struct axis_of<any_pipeline> {
  static constexpr axis value = axis::pipeline;
};

/// How many parts an axis asks for; 0: what is left of the world.
template <class Axis>
[[nodiscard]] int ways_of(Axis const& it) {
  if constexpr (requires { it.stages; }) {
    return it.stages;
  } else if constexpr (requires { it.ways; }) {
    return static_cast<int>(it.ways);
  } else {
    return 0;
  }
}

}  // namespace detail

/// What one axis of a mesh may be: a strategy that splits samples (data, zero, one's own), or one of the other axes.
template <class T>
concept mesh_axis = requires {
  detail::axis_of<T>::value;
};

/// Several axes of parallelism, outermost first: neighbouring ranks share the last one. Each axis has a degree, and one
/// of them may leave it out: it gets what is left of the world. Without an axis that splits samples, each rank gets all
/// of them. The order is a value: one type of mesh serves all orders of its axes.
///
/// Ranks    the product of the degrees is the size of the world. The degree of sequence is that of tensor, or 1.
/// Errors   config_error when a trainer is made, if the degrees do not fit the world.
/// @example parallel::mesh{parallel::zero<1>{}, parallel::pipeline<>{.stages = 2}, parallel::tensor{.ways = 2}}
template <mesh_axis... Axes>
struct mesh {
  using policy_category = slot::parallel;

  std::tuple<Axes...> axes;
  std::array<axis, sizeof...(Axes)> order{detail::axis_of<Axes>::value...};  ///< outermost first
  constexpr explicit mesh(Axes... all) : axes(std::move(all)...) {}
  friend bool operator==(mesh const&, mesh const&) = default;

  static constexpr std::string_view name = "mesh";
};

template <mesh_axis... Axes>
[[nodiscard]] std::string to_string(mesh<Axes...> const& m) {
  std::string all;
  for (auto const kind : m.order) {
    auto const add = [&]<class Axis>(Axis const& each) {
      if (detail::axis_of<Axis>::value == kind) all += text(all.empty() ? "" : ", ", to_string(each));
    };
    std::apply([&](auto const&... each) { (add(each), ...); }, m.axes);
  }
  return text("parallel::mesh{", all, "}");
}

namespace detail {

template <class T>
inline constexpr bool is_mesh = false;
template <mesh_axis... Axes>
inline constexpr bool is_mesh<mesh<Axes...>> = true;

template <class Mesh>
struct mesh_traits;
template <mesh_axis... Axes>
struct mesh_traits<mesh<Axes...>> {
  static constexpr bool once = [] {
    int seen[axis_count]{};
    (++seen[static_cast<int>(axis_of<Axes>::value)], ...);
    for (int const times : seen)
      if (times > 1) return false;
    return true;
  }();
  template <axis Kind>
  static constexpr int count = (0 + ... + int{axis_of<Axes>::value == Kind});

  template <class... Rest>
  struct first_data {
    using type = data;
  };
  template <class First, class... Rest>
  struct first_data<First, Rest...>
      : std::conditional_t<axis_of<First>::value == axis::data, std::type_identity<First>, first_data<Rest...>> {};
  using data_axis = typename first_data<Axes...>::type;
};

}  // namespace detail

/// A parallel policy is a mesh, or one axis, which is a mesh of one.
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
template <parallel_policy P, axis Kind>
inline constexpr bool has_axis = detail::mesh_traits<mesh_of_t<P>>::template count<Kind> > 0;

/// Whether no two axes are of one kind.
template <parallel_policy P>
inline constexpr bool no_axis_twice = detail::mesh_traits<mesh_of_t<P>>::once;

/// Whether all ranks hold the same part of the model: no axis but those of samples and positions.
template <parallel_policy P>
inline constexpr bool all_are_replicas = !has_axis<P, axis::tensor> && !has_axis<P, axis::sequence> &&
                                         !has_axis<P, axis::pipeline> && !has_axis<P, axis::expert>;

/// The axis that splits samples, `parallel::data` if there is none.
template <parallel_policy P>
using data_axis_t = typename detail::mesh_traits<mesh_of_t<P>>::data_axis;

namespace detail {

/// Calls f(axis) for each axis of a policy.
template <class P, class F>
void for_each_axis(P const& policy, F&& f) {
  if constexpr (is_mesh<P>) {
    std::apply([&](auto const&... each) { (f(each), ...); }, policy.axes);
  } else {
    f(policy);
  }
}

}  // namespace detail

template <parallel_policy P>
[[nodiscard]] data_axis_t<P> data_axis_of(P const& policy) {
  data_axis_t<P> found{};
  detail::for_each_axis(policy, [&]<class Axis>(Axis const& each) {
    if constexpr (std::is_same_v<Axis, data_axis_t<P>>) found = each;
  });
  return found;
}

/// The degrees of a mesh in a world of some size, and where its ranks stand.
class mesh_shape {
 public:
  /// Errors  config_error that names the numbers if they do not fit.
  template <parallel_policy P>
  mesh_shape(P const& policy, int world) : world_(world) {
    int sequence_ways = 1;
    detail::for_each_axis(policy, [&]<class Axis>(Axis const& each) {
      constexpr auto kind = detail::axis_of<Axis>::value;
      if constexpr (kind == axis::sequence) {
        sequence_ways = static_cast<int>(each.ways);
      } else {
        axes_.push_back({kind, detail::ways_of(each)});
      }
    });
    if constexpr (detail::is_mesh<P>) sort_by(policy.order);
    fit();
    auto const tensor_ways = ways(axis::tensor);
    if (sequence_ways != 1 && sequence_ways != 0 && sequence_ways != tensor_ways)
      throw config_error(text("trireme::parallel::sequence: ", sequence_ways, " ways beside tensor's ", tensor_ways,
                              "; sequence is cut as tensor is: leave .ways out, or give 1 to switch it off"));
    cuts_rows_ = sequence_ways != 1 && tensor_ways > 1;
  }

  [[nodiscard]] int world() const noexcept { return world_; }
  /// Whether tensor groups also cut rows.
  [[nodiscard]] bool cuts_rows() const noexcept { return cuts_rows_; }
  [[nodiscard]] int ways(axis kind) const noexcept { return share_of(0, kind).ways; }
  /// Where a rank stands on an axis; {0, 1} if the mesh has no such axis.
  [[nodiscard]] share share_of(int rank, axis kind) const noexcept {
    for (auto a = axes_.size(); a-- > 0;) {
      auto const [each, ways] = axes_[a];
      if (each == kind) return {rank % ways, ways};
      rank /= ways;
    }
    return {};
  }
  /// A number that is the same for ranks which differ on this axis only.
  [[nodiscard]] int group_along(axis kind, int rank) const noexcept {
    int number = 0;
    for (auto const& each : axes_)
      if (each.kind != kind) number = number * each.ways + share_of(rank, each.kind).place;
    return number;
  }
  /// Where a rank stands among those that hold the same part of the model, and a number that is the same for them: they
  /// differ on the axes of samples and positions only.
  [[nodiscard]] share among_replicas(int rank) const noexcept {
    share own;
    for (auto const& each : axes_)
      if (replicates(each.kind)) own = {own.place * each.ways + share_of(rank, each.kind).place, own.ways * each.ways};
    return own;
  }
  [[nodiscard]] int group_of_replicas(int rank) const noexcept {
    int number = 0;
    for (auto const& each : axes_)
      if (!replicates(each.kind)) number = number * each.ways + share_of(rank, each.kind).place;
    return number;
  }
  /// "data=2, tensor=2"
  [[nodiscard]] std::string to_string() const {
    std::string all;
    for (auto const& each : axes_) all += text(all.empty() ? "" : ", ", name_of(each.kind), "=", each.ways);
    return all;
  }

 private:
  struct degree {
    axis kind;
    int ways;
  };

  [[nodiscard]] static constexpr bool replicates(axis kind) noexcept {
    return kind == axis::data || kind == axis::context;
  }

  template <class Order>
  void sort_by(Order const& order) {
    std::ranges::sort(axes_, {}, [&](degree const& each) { return std::ranges::find(order, each.kind); });
  }

  void fit() {
    degree* open = nullptr;
    int product = 1;
    for (auto& each : axes_) {
      if (each.ways < 0)
        throw config_error(text("trireme::parallel::mesh: ", name_of(each.kind), " has ", each.ways,
                                " ways; give at least 1, or 0 for what is left of the world"));
      if (each.ways == 0) {
        if (open != nullptr)
          throw config_error(text("trireme::parallel::mesh: ", name_of(open->kind), " and ", name_of(each.kind),
                                  " both ask for what is left of the world; give one of them a degree"));
        open = &each;
      } else {
        product *= each.ways;
      }
    }
    if (open != nullptr && world_ % product == 0) {
      open->ways = world_ / product;
      return;
    }
    if (open == nullptr && product == world_) return;
    auto const given = product == 1 && axes_.empty() ? std::string("no axes") : to_string();
    throw config_error(text("trireme::parallel::mesh: ", given, open != nullptr ? " (0: what is left) takes" : " takes",
                            open != nullptr ? " a multiple of " : " ", product, " ranks, but the world has ", world_,
                            "; change a degree or the number of ranks"));
  }

  int world_;
  bool cuts_rows_ = false;
  std::vector<degree> axes_;
};

}  // namespace trireme::parallel
