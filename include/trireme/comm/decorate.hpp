#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "trireme/comm/detail/decorator.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

/// Something that wraps a world: a description with a type `world<Inner>` that is made from (Inner, description).
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
/// comm::recorded{}, comm::checked{})` throttles, records what is throttled, and checks all of it.
///
/// A description gives a description for launch; a world gives a world that has calls of its own. Whoever decorates
/// nothing pays nothing.
///
/// Ranks    on a description local; on a world collective, as duplicate() is: every rank decorates alike.
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
