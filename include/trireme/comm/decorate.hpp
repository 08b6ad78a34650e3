#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

namespace detail {

template <class World>
concept is_decorator = requires {
  typename World::decorated_world;
};

/// The world below all decorators, through which decorators communicate.
template <class World>
[[nodiscard]] auto& undecorated(World& world) {
  if constexpr (is_decorator<World>)
    return undecorated(world.inner());
  else
    return world;
}
template <class World>
using undecorated_t = std::remove_reference_t<decltype(undecorated(std::declval<World&>()))>;

[[nodiscard]] inline std::vector<std::int32_t> first_ranks(int size) {
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// How a world was made from another.
enum class descent : std::uint8_t { split, duplicate };

/// The common base of decorators. A decorator has `around(command, f)`, which runs f, the command in the world below,
/// and a constructor (world below, parent, descent, color) for the results of split and duplicate.
template <class Derived, class Inner>
class decorator : public collectives<Derived> {
 public:
  using decorated_world = Inner;
  using request = decltype(std::declval<Inner&>().submit(std::declval<command const&>()));
  using space = typename space_of<Inner>::type;
  static constexpr bool progresses = progresses_alone<Inner>;
  [[nodiscard]] bool progresses_here() const noexcept { return requests_travel_alone(inner_); }

  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }
  [[nodiscard]] Inner& inner() noexcept { return inner_; }
  [[nodiscard]] Inner const& inner() const noexcept { return inner_; }

  template <class Space>
  static constexpr bool supports(collective kind, dtype type, reduction_kind op) noexcept {
    return Inner::template supports<Space>(kind, type, op);
  }
  void run(command const& it) {
    derived().around(it, [&] { inner_.execute(it); });
  }
  [[nodiscard]] request start(command const& it) {
    return derived().around(it, [&] { return inner_.submit(it); });
  }
  [[nodiscard]] Derived split(int color, int key) {
    expect_color(decorator::who(), color);
    return derived().around(command{.what = {.kind = collective::split}},
                            [&] { return Derived(inner_.split(color, key), derived(), descent::split, color); });
  }
  [[nodiscard]] Derived duplicate() {
    return derived().around(command{.what = {.kind = collective::duplicate}},
                            [&] { return Derived(inner_.duplicate(), derived(), descent::duplicate, 0); });
  }
  [[nodiscard]] Derived duplicate(std::chrono::milliseconds deadline) requires requires(Inner& it) {
    it.duplicate(deadline);
  }
  {
    return derived().around(command{.what = {.kind = collective::duplicate}},
                            [&] { return Derived(inner_.duplicate(deadline), derived(), descent::duplicate, 0); });
  }
  template <class T, class Space>
  requires has_peers<Inner, T, Space>
  [[nodiscard]] std::vector<tensor_view<T, Space>> peers(tensor_view<T, Space> view) {
    return derived().around(command{.what = {.kind = collective::peers, .type = dtype_of<std::remove_const_t<T>>}},
                            [&] { return inner_.peers(view); });
  }
  void open_routes(std::span<route const> routes) requires has_routes<Inner> { inner_.open_routes(routes); }
  template <element T>
  [[nodiscard]] auto allocate(shape extents) requires requires(Inner& it) {
    it.template allocate<T>(extents);
  }
  { return inner_.template allocate<T>(extents); }
  [[nodiscard]] auto deadline() const requires requires(Inner const& it) { it.deadline(); }
  { return inner_.deadline(); }
  void poll() requires requires(Inner& it) { it.poll(); }
  { inner_.poll(); }
  void abandon(std::string const& sentence) noexcept requires requires(Inner& it) { it.abandon(sentence); }
  { inner_.abandon(sentence); }

 protected:
  explicit decorator(Inner&& inner) : inner_(std::move(inner)), names_(first_ranks(inner_.size())) {}
  decorator(Inner&& inner, decorator const& parent, descent how) : inner_(std::move(inner)), names_(parent.names_) {
    if (how == descent::duplicate) return;
    auto const own = parent.names_[static_cast<std::size_t>(parent.rank())];
    names_ = first_ranks(inner_.size());
    if constexpr (has_all_gather<undecorated_t<Inner>, std::int32_t, host>) {
      names_[static_cast<std::size_t>(rank())] = own;
      undecorated(inner_).all_gather(tensor_view{names_});
    }
  }
  decorator(decorator&&) = default;
  decorator& operator=(decorator&&) = default;
  ~decorator() = default;

  /// The number of a rank of this world in the world that was decorated first.
  [[nodiscard]] int name_of_rank(int rank) const noexcept { return names_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::vector<std::int32_t> const& names() const noexcept { return names_; }

 private:
  [[nodiscard]] Derived& derived() noexcept { return static_cast<Derived&>(*this); }

  Inner inner_;
  std::vector<std::int32_t> names_;
};

}  // namespace detail

/// A decorator of worlds: a description with a type `world<Inner>` that is made from (Inner, description).
/// comm::checked, comm::recorded, comm::throttled and comm::counted are decorators.
template <class D>
concept decorator_description = std::copy_constructible<D> && std::equality_comparable<D> && requires {
  typename D::is_decorator_description;
};

/// The description of a decorated communicator, as comm::decorate makes it.
template <class Base, decorator_description Decorator>
struct decorated {
  using policy_category = slot::communicator;

  Base base;
  Decorator decorator;

  friend bool operator==(decorated const&, decorated const&) = default;
};

template <class Base, class Decorator>
[[nodiscard]] std::string to_string(decorated<Base, Decorator> const& it) {
  return text("comm::decorate(", to_string(it.base), ", ", to_string(it.decorator), ")");
}

/// Wraps a communicator, the first decorator innermost: `comm::decorate(comm::threads{.ranks = 2}, comm::throttled{},
/// comm::recorded{}, comm::checked{})` throttles, records the throttled calls, and checks all of it.
///
/// Given a description, it returns a description for launch; given a world, it returns a world with an order of calls
/// of its own. Undecorated communicators cost nothing extra.
///
/// Ranks    on a description local; on a world collective, as duplicate() is: every rank uses the same decorators.
/// @example auto noisy = comm::decorate(world, comm::recorded{.path = "flight"});
template <class Base, decorator_description First, decorator_description... More>
[[nodiscard]] auto decorate(Base const& base, First const& first, More const&... more) {
  if constexpr (sizeof...(More) == 0)
    return decorated<Base, First>{base, first};
  else
    return decorate(decorated<Base, First>{base, first}, more...);
}
template <communicator World, decorator_description First, decorator_description... More>
[[nodiscard]] auto decorate(World& world, First const& first, More const&... more) {
  auto wrap = []<class W, class D>(auto& self, W&& inner, D const& how, auto const&... rest) {
    typename D::template world<W> made(std::move(inner), how);
    if constexpr (sizeof...(rest) == 0)
      return made;
    else
      return self(self, std::move(made), rest...);
  };
  return wrap(wrap, world.duplicate(), first, more...);
}

/// How trireme::launch runs a body on a decorated communicator.
template <class Base, class Decorator, class Body>
auto launch_ranks(decorated<Base, Decorator> const& description, Body& body) {
  auto wrapped = [&](auto& world) {
    auto mine = decorate(world, description.decorator);
    return std::invoke(body, mine);
  };
  return launch_ranks(description.base, wrapped);
}

}  // namespace trireme::comm
