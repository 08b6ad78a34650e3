#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "trireme/comm/any_world.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/processes.hpp"
#include "trireme/comm/sum_order.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

/// One rank of comm::mpi.
using mpi_world = any_world;

/// Ranks are the processes that mpirun has started, or on one machine torchrun, without MPI.
///
/// Ranks    with launch all of MPI_COMM_WORLD, or all that torchrun has started, if no MPI has; with borrow() those of
///          somebody's communicator.
/// Bytes    on one machine ranks meet by MPI and then work in shared memory, without MPI. Between machines, or with
///          `.shared_memory = false`, MPI carries messages. A rank begins a collective with ceil(log2(size)) messages
///          of 24 bytes, in which small values travel, too. Large values go between each two ranks directly; with
///          several ranks on each machine, large sums are carried from machine to machine (docs/communicators.md).
/// Numerics sums in rank order. With `.order = sum_order::any` an all_reduce of 256 KiB or more over messages is MPI's
///          own (comm/sum_order.hpp): sums and means of float, double and integers of 32 and 64 bits, over all ranks.
///          All others, and those of groups of only some ranks, stay in rank order. On plain networks rank order is as
///          quick or quicker (docs/communicators.md); `any` is for networks that add up themselves.
/// Threads  Any level of MPI serves. In shared memory the library makes no MPI calls. By messages a thread of its own
///          makes them while the rank computes, if MPI provides MPI_THREAD_MULTIPLE or launch has initialised it.
///          Otherwise requests proceed only in calls of the rank (also `poll()`), so that programs may call MPI
///          between start and wait. Below MPI_THREAD_SERIALIZED only the thread that has initialised MPI may use a
///          world of it.
/// Errors   launch and borrow throw config_error if MPI is finalised, lets only another thread call, or is not the
///          launcher's MPI; borrow also if it is given MPI_COMM_NULL, an intercommunicator or one that has been freed.
///          Calls on a world whose MPI is finalised meanwhile throw comm_error. After an error of a launch MPI is not
///          finalised, so that mpirun ends the other ranks when this one ends. A borrowed world that has failed keeps
///          nobody from MPI_Finalize, from other worlds or from borrowing again.
struct mpi {
  using policy_category = slot::communicator;
  static constexpr std::string_view name = "mpi";

  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  bool shared_memory = true;           ///< whether ranks of one machine may use it
  sum_order order = sum_order::ranks;  ///< of large sums over messages; `any` if all ranks say so

  /// A world on the ranks of `theirs`, which is duplicated (so: collective) and never freed. MPI must be initialised.
  [[nodiscard]] static mpi_world borrow(MPI_Comm theirs, std::chrono::milliseconds deadline = std::chrono::seconds(60),
                                        bool shared_memory = true, sum_order order = sum_order::ranks);

  friend bool operator==(mpi const&, mpi const&) = default;
};

[[nodiscard]] inline std::string to_string(mpi const& it) {
  return text("comm::mpi{.deadline = ", to_string(it.deadline), it.shared_memory ? "" : ", .shared_memory = false",
              it.order == sum_order::any ? ", .order = sum_order::any}" : "}");
}

namespace detail {

/// Runs `body(world, attempt)` as the rank that this process is.
void run_mpi(mpi const& description, std::function<void(any_world&, int)> const& body);
/// Runs it again after a failure, as comm::processes does, if mpirun has not started the ranks; else once.
void recover_mpi(mpi const& description, recovery const& how, std::function<void(any_world&, int)> const& body);

}  // namespace detail

/// How trireme::launch runs a body on comm::mpi: in this process, as the rank that it is.
template <class Body>
auto launch_ranks(mpi const& description, Body& body) {
  return detail::answer_of([&](auto const& once) { detail::run_mpi(description, once); }, body);
}

/// How trireme::launch recovers with comm::mpi: as comm::processes if mpirun has not started the ranks; else not.
template <class Body>
auto recover_ranks(mpi const& description, recovery const& how, Body& body) {
  return detail::answer_of([&](auto const& again) { detail::recover_mpi(description, how, again); }, body);
}

}  // namespace trireme::comm

// The bodies are in the library trireme::compiled_mpi, which belongs to one MPI.
#ifndef TRIREME_COMPILED_MPI
#include "trireme/comm/mpi.ipp"
#endif
