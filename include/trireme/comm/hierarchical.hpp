#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/decorate.hpp"
#include "trireme/comm/detail/colors.hpp"
#include "trireme/comm/detail/failure.hpp"
#include "trireme/comm/detail/hierarchy.hpp"
#include "trireme/comm/launch.hpp"

namespace trireme::comm {

/// The description of a hierarchical communicator: each rank of `outer` is a node, which runs the ranks of `inner`:
/// `comm::hierarchical{comm::threads{.ranks = 4}, comm::mpi{}}`.
///
/// Inner has `.ranks`, threads of one process (comm::threads); Outer's ranks are processes (comm::mpi,
/// comm::processes), or one (comm::self).
template <class Inner, class Outer>
struct hierarchical {
  using policy_category = slot::communicator;

  Inner inner;
  Outer outer;

  friend bool operator==(hierarchical const&, hierarchical const&) = default;
};
template <class Inner, class Outer>
hierarchical(Inner, Outer) -> hierarchical<Inner, Outer>;

template <class Inner, class Outer>
[[nodiscard]] std::string to_string(hierarchical<Inner, Outer> const& it) {
  return text("comm::hierarchical{", to_string(it.inner), ", ", to_string(it.outer), "}");
}

/// A world of nodes x places, composed of one world inside each node and, for each place, one world across the nodes:
/// rank = outer.rank() * inner.size() + inner.rank().
///
/// Large messages are reduced inside a node first, so that each node sends only one slice of them to other nodes:
///   all_reduce      inner reduce_scatter, outer all_reduce of the slice, inner all_gather; small ones and the elements
///                   that do not divide: inner, then outer all_reduce
///   reduce_scatter  inner for each node, then outer (ragged: an outer reduce for each node)
///   all_gather  to the same place of each node, then inside
///   broadcast, scatter  outer to the root's place, then inside           reduce, gather  inside, then outer
///   all_to_all      inside to the place, then between to the node        barrier         inside, then between
///
/// Bytes    traffic() counts by the formulas of comm::bytes_sent for all ranks; inner() and outer() count the traffic
///          inside and between nodes.
/// Ranks    every rank calls the same collectives in the same order. split: the members of every color must form a grid
///          of whole places and whole nodes, in rank order; otherwise config_error on every rank.
/// Numerics deterministic: the values of a node are combined in the order of its places, then those of the nodes in the
///          order of nodes, each time rounded to the element type. The bits differ from those of a flat world. A mean
///          is divided once, by size().
/// Threads  one caller a rank. Requests progress while their rank tests or waits.
/// Errors   as the worlds below, with their rank numbers. An exchange with a rank of another node and another place
///          needs a world of all ranks: the third argument of the constructor, or a world made by launch; otherwise
///          config_error.
/// @models  communicator; reduce, gather, scatter and all_to_all in host and phantom memory only.
template <communicator Inner, communicator Outer>
class hierarchical_world : public collectives<hierarchical_world<Inner, Outer>> {
  using hierarchy = detail::hierarchy<Inner, Outer>;

 public:
  /// Progresses while this rank tests or waits for any request of this world, or of one that was split or duplicated
  /// from it.
  using request = engine_request<hierarchy, typename hierarchy::operation>;
  using space = typename space_of<Inner>::type;
  static constexpr std::string_view name = "hierarchical";
  static constexpr bool ordered = false;  // node by node

  /// Collective over both. `inner` holds this node's ranks, `outer` the ranks with this place of every node. Without
  /// `whole`, exchanges can only reach ranks of this node or this place.
  hierarchical_world(Inner inner, Outer outer)
      : core_(std::make_shared<hierarchy>(std::move(inner), std::move(outer), nullptr)) {
    expect_grid();
    core_->carry_with(std::make_shared<detail::column_relay<Inner, Outer>>(this->outer().duplicate(), core_->here()));
  }
  /// `whole` holds all ranks in the same order as here: the world that both were split from.
  template <communicator Whole>
  hierarchical_world(Inner inner, Outer outer, Whole& whole)
      : core_(std::make_shared<hierarchy>(std::move(inner), std::move(outer), nullptr)) {
    expect_grid();
    if (whole.rank() != rank() || whole.size() != size())
      throw config_error(text("trireme::comm::hierarchical: this is rank ", whole.rank(), " of ", whole.size(),
                              " in the whole world, but rank ", rank(), " of ", size(),
                              " by its parts; split it by rank / places and by rank % places"));
    core_->carry_with(std::make_shared<detail::whole_relay<Inner, Outer, Whole>>(whole.duplicate()));
  }
  explicit hierarchical_world(std::shared_ptr<hierarchy> core) : core_(std::move(core)) {}

  [[nodiscard]] int rank() const noexcept { return core_->here().rank(); }
  [[nodiscard]] int size() const noexcept { return core_->here().size(); }
  [[nodiscard]] Inner& inner() noexcept { return core_->inner(); }
  [[nodiscard]] Outer& outer() noexcept { return core_->outer(); }

  template <class Space>
  static constexpr bool supports(collective kind, dtype type, reduction_kind op) noexcept {
    using enum collective;
    if (op == reduction_kind::pairwise) return false;  // the tree over all ranks does not follow the two levels
    constexpr collective staged[] = {barrier, all_reduce, reduce_scatter, reduce,     all_gather,
                                     gather,  scatter,    broadcast,      all_to_all, exchange};
    if (std::ranges::find(staged, kind) == std::ranges::end(staged))
      return false;  // the collectives that detail/hierarchy.hpp implements
    auto const below = [&](collective each, reduction_kind how) {
      return Inner::template supports<Space>(each, type, how) && Outer::template supports<Space>(each, type, how);
    };
    bool const scratch = kind == reduce || kind == gather || kind == scatter || kind == all_to_all;
    if (scratch && !std::same_as<Space, host> && !std::same_as<Space, phantom>) return false;
    if (kind == all_reduce && !(below(reduce_scatter, op) && below(all_gather, reduction_kind::none))) return false;
    if (kind == reduce_scatter && !below(reduce, op)) return false;  // ragged
    if (kind == all_gather && !below(exchange, reduction_kind::none)) return false;
    return below(kind, op);
  }
  void run(command const& it) { start(it).wait(); }
  [[nodiscard]] request start(command const& it) { return {core_, core_->start(it)}; }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] hierarchical_world split(int color, int key) {
    detail::expect_color(hierarchical_world::who(), color);
    auto const part = choose(color, key);
    return hierarchical_world(core_->split(part.group, part.local_rank, part.node));
  }
  /// The same ranks again, with counters and an order of calls of its own.
  [[nodiscard]] hierarchical_world duplicate() {
    return hierarchical_world(core_->split(0, core_->here().local_rank, core_->here().node));
  }
  [[nodiscard]] hierarchical_world duplicate(std::chrono::milliseconds deadline) requires
      requires(Inner& inside, Outer& between) {
    Inner(inside.duplicate(deadline));
    Outer(between.duplicate(deadline));
  }
  { return hierarchical_world(core_->duplicate(deadline)); }

  template <element T>
  [[nodiscard]] auto allocate(shape extents) {
    if constexpr (requires { outer().template allocate<T>(extents); })
      return outer().template allocate<T>(extents);
    else if constexpr (requires { inner().template allocate<T>(extents); })
      return inner().template allocate<T>(extents);
    else
      return tensor<T>(extents);
  }
  /// Reports to the other ranks that this one ends with an error, which ends their waits.
  void abandon(std::string const& sentence) noexcept {
    if constexpr (requires { inner().abandon(sentence); }) inner().abandon(sentence);
    if constexpr (requires { outer().abandon(sentence); }) outer().abandon(sentence);
  }

 private:
  struct chosen {
    int group = 0, local_rank = 0, node = 0;
  };

  /// All ranks see the choices of all, so either all ranks throw or none.
  [[nodiscard]] chosen choose(int color, int key) {
    std::vector<detail::color_and_key> wishes(static_cast<std::size_t>(size()));
    wishes[static_cast<std::size_t>(rank())] = {color, key};
    command gather{.what = {collective::all_gather, dtype::i32, reduction_kind::none, false, -1,
                            2 * static_cast<std::int64_t>(wishes.size())},
                   .from = wishes.data(),
                   .to = wishes.data(),
                   .element_bytes = sizeof(std::int32_t),
                   .elements = &detail::moving_kernels<host>};
    run(gather);

    auto const color_of = [&](int rank) { return wishes[static_cast<std::size_t>(rank)].color; };
    int const local_size = core_->here().local_size;
    chosen out;
    for (int first = 0; first < size(); ++first) {
      bool seen = false;
      for (int rank = 0; rank < first; ++rank) seen = seen || color_of(rank) == color_of(first);
      if (seen) continue;
      auto const members = detail::ranks_of_color(wishes, color_of(first));
      // A grid: rows of one node each, all with the same places in the same order.
      int wide = 1;
      while (wide < static_cast<int>(members.size()) &&
             members[static_cast<std::size_t>(wide)] / local_size == members[0] / local_size)
        ++wide;
      for (int i = 0; i < static_cast<int>(members.size()); ++i) {
        auto const it = members[static_cast<std::size_t>(i)];
        auto const node = members[static_cast<std::size_t>(i / wide * wide)] / local_size;
        auto const local_rank = members[static_cast<std::size_t>(i % wide)] % local_size;
        if (it != node * local_size + local_rank || static_cast<int>(members.size()) % wide != 0)
          throw config_error(text("trireme::comm::hierarchical::split: the ranks of color ", color_of(first),
                                  " do not form a grid of nodes and places (rank ", it,
                                  " does not fit); "
                                  "give one color to the same places of whole nodes, "
                                  "or split the world that this one was made of"));
        if (it == rank()) out = {first, i % wide, i / wide};
      }
    }
    return out;
  }

  /// Every node has as many places, and every place as many nodes.
  void expect_grid() {
    auto const here = core_->here();
    std::vector<std::int32_t> seen(4 * static_cast<std::size_t>(here.local_size));
    auto const mine = 4 * static_cast<std::size_t>(here.local_rank);
    seen[mine] = here.node;
    seen[mine + 1] = here.nodes;
    seen[mine + 2] = here.local_rank;
    seen[mine + 3] = here.local_size;
    inner().all_gather(tensor_view{seen});
    bool right = true;
    for (std::size_t i = 0; i < seen.size(); i += 4) right = right && seen[i] == here.node && seen[i + 1] == here.nodes;
    std::int32_t extremes[] = {here.local_rank, -here.local_rank, here.local_size, -here.local_size, right ? 0 : 1};
    outer().all_reduce(tensor_view<std::int32_t>(extremes, shape{5}), reduction::max{});
    if (!(extremes[0] == -extremes[1] && extremes[2] == -extremes[3] && extremes[4] == 0))
      throw config_error(
          "trireme::comm::hierarchical: the worlds do not form a grid; "
          "split one world by rank / places for the inner worlds and by rank % places for the outer worlds");
  }

  std::shared_ptr<hierarchy> core_;
};

/// How trireme::launch runs a body on comm::hierarchical: in each process of Outer, on the ranks of Inner.
template <class Inner, class Outer, class Body>
auto launch_ranks(hierarchical<Inner, Outer> const& description, Body& body) {
  auto node = [&](auto& between) {
    using outer_world = std::remove_reference_t<decltype(between)>;
    static_assert(std::same_as<outer_world, self_world> || !has_peers<outer_world, std::uint8_t, host>,
                  "trireme::launch: comm::hierarchical needs processes as outer communicator (comm::mpi{...} or "
                  "comm::processes{...}); "
                  "for threads alone, split one world of threads.");
    auto local_rank = [&](auto& inside) {
      using inner_world = std::remove_reference_t<decltype(inside)>;
      using hierarchy = detail::hierarchy<inner_world, outer_world>;
      std::optional<outer_world> own;
      detail::in_turn(inside, [&] { own.emplace(between.duplicate()); });
      auto core = std::make_shared<hierarchy>(inside.duplicate(), std::move(*own), nullptr);
      core->carry_with(
          std::make_shared<detail::crossing_relay<inner_world, outer_world>>(core->inner(), core->outer()));
      hierarchical_world<inner_world, outer_world> world(std::move(core));
      try {
        return std::invoke(body, world);
      } catch (...) {
        world.abandon(detail::sentence_of(std::current_exception()));
        throw;
      }
    };
    if constexpr (requires { between.expect_several_callers(); }) between.expect_several_callers();
    return launch_ranks(description.inner, local_rank);
  };
  return launch_ranks(description.outer, node);
}

}  // namespace trireme::comm
