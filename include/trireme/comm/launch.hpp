#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"

namespace trireme::comm {

namespace detail {

/// The possible mistakes in the body of a launch.
enum class body_slip : std::uint8_t { none, by_value, takes_nothing, not_callable, result };

template <class Body, class World>
[[nodiscard]] consteval body_slip slip_of() {
  if constexpr (std::invocable<Body&, World&>) {
    using result = std::invoke_result_t<Body&, World&>;
    bool const leaves = std::is_void_v<result> || std::is_constructible_v<std::decay_t<result>, result>;
    return leaves ? body_slip::none : body_slip::result;
  } else if constexpr (std::invocable<Body&, World>) {
    return body_slip::by_value;
  } else if constexpr (std::invocable<Body&>) {
    return body_slip::takes_nothing;
  } else {
    return body_slip::not_callable;
  }
}

/// The compiler's error for a body that cannot be launched.
template <body_slip Slip>
struct check_body {
  static_assert(Slip != body_slip::by_value,
                "trireme::launch: the body takes its world by value, and a world cannot be copied; take a reference: "
                "[](auto& world) { ... }");
  static_assert(Slip != body_slip::takes_nothing,
                "trireme::launch: the body takes no argument, but is called with this rank's world; "
                "write [](auto& world) { ... }");
  static_assert(Slip != body_slip::not_callable,
                "trireme::launch: the body cannot be called with this rank's world alone, or does not compile with it "
                "(see the other errors); write [](auto& world) { ... }");
  static_assert(Slip != body_slip::result,
                "trireme::launch: the body returns an object that can be neither copied nor moved, "
                "such as a trainer or the world, which end with the launch; return values, or nothing");
};

/// Raises the error. A separate function: if the body's own call were invalid, clang would print further errors.
template <body_slip Slip>
constexpr void expect_body() noexcept {
  static_cast<void>(sizeof(check_body<Slip>));
}

}  // namespace detail

/// How trireme::launch runs a body on comm::self: directly, in this thread.
template <class Body>
auto launch_ranks(self const&, Body& body) {
  self_world world;
  return std::invoke(body, world);
}

}  // namespace trireme::comm

namespace trireme {

/// The description of a communicator: a type with a function `launch_ranks(description, body)` in its namespace.
template <class Description, class Body>
concept launchable = requires(Description const& description, Body& body) {
  launch_ranks(description, body);
};

/// Runs `body(world)` on every rank that `description` asks for.
///
/// Ranks    comm::self runs it in this thread; comm::threads in one thread a rank, concurrently, on one copy of the
///          body; comm::mpi, comm::processes and comm::nccl here, in each process that the launcher has started.
///          `world` lives as long as the call.
/// Threads  returns when the body has returned on every rank of this process.
/// Errors   an exception on one rank ends the waits of the others with a comm_error that names it; once all have ended,
///          the first exception is rethrown here. config_error if the description is invalid.
///
/// @returns what the body returns on the first rank of this process.
/// @example trireme::launch(comm::threads{.ranks = 2}, [](auto& world) { world.barrier(); });
template <class Description, class Body>
decltype(auto) launch(Description const& description, Body&& body) {
  // Checked before any kind of world is made, so that a wrong body gives the same error for all of them.
  auto checked = [&body]<class World>(World& world) -> decltype(auto) {
    constexpr auto slip = comm::detail::slip_of<std::remove_reference_t<Body>, World>();
    comm::detail::expect_body<slip>();
    if constexpr (slip == comm::detail::body_slip::none) return std::invoke(body, world);
  };
  constexpr bool described = launchable<Description, decltype(checked)>;
  static_assert(described,
                "trireme::launch: pass a communicator's description (comm::self{}, comm::threads{...}, "
                "or comm::mpi{...} from trireme/comm/mpi.hpp), and then a body that takes a world.");
  if constexpr (described) return launch_ranks(description, checked);
}

}  // namespace trireme
