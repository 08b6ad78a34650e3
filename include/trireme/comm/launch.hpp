#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "trireme/comm/detail/launch_body.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"

namespace trireme::comm {

/// How trireme::launch runs a body on comm::self: here and now.
template <class Body>
auto launch_ranks(self const&, Body& body) {
  self_world world;
  return std::invoke(body, world);
}

}  // namespace trireme::comm

namespace trireme {

/// The description of a communicator: something with a `launch_ranks(description, body)` beside it.
template <class Description, class Body>
concept launchable = requires(Description const& description, Body& body) {
  launch_ranks(description, body);
};

/// Runs `body(world)` on every rank that `description` asks for.
///
/// Ranks    comm::self runs it here; comm::threads in a thread a rank, at the same time and on one copy of the body;
///          comm::mpi, comm::processes and comm::nccl here, in each process that the launcher has started. `world`
///          lives as long as the call.
/// Threads  returns when the body has returned everywhere in this process.
/// Errors   an exception on one rank ends the waits of the others with a comm_error that names it; once all have ended,
///          the first one is thrown again here. config_error if the description makes no sense.
///
/// @returns what the body returns on the first rank of this process.
/// @example trireme::launch(comm::threads{.ranks = 2}, [](auto& world) { world.barrier(); });
template <class Description, class Body>
decltype(auto) launch(Description const& description, Body&& body) {
  // Stands before the body for every kind of world, so that a wrong one is one sentence however it is launched.
  auto checked = [&body]<class World>(World& world) -> decltype(auto) {
    constexpr auto slip = comm::detail::slip_of<std::remove_reference_t<Body>, World>();
    comm::detail::expect_body<slip>();
    if constexpr (slip == comm::detail::body_slip::none) return std::invoke(body, world);
  };
  constexpr bool described = launchable<Description, decltype(checked)>;
  static_assert(
      described,
      "trireme::launch: needs a communicator's description, comm::self{}, comm::threads{...} or comm::mpi{...} "
      "(trireme/comm/mpi.hpp), and then a body that takes a world.");
  if constexpr (described) return launch_ranks(description, checked);
}

}  // namespace trireme
