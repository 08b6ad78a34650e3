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

/// Ranks are the processes that mpirun has started; or, without MPI, those that torchrun has started on one machine.
///
/// Ranks    with launch, all ranks of MPI_COMM_WORLD, or all that torchrun has started if mpirun has started none; with
///          borrow(), those of the given communicator.
/// Bytes    on one machine ranks find each other by MPI and then use shared memory, without MPI. Between machines, or
///          with `.shared_memory = false`, MPI carries messages. A rank begins a collective with ceil(log2(size))
///          messages of 24 bytes, which also carry small values. Large values go directly from rank to rank; with
///          several ranks on each machine, partial sums of large values go from machine to machine
///          (docs/communicators.md).
/// Numerics sums in rank order. With `.order = sum_order::any` an all_reduce of 256 KiB or more over messages is MPI's
///          own (comm/sum_order.hpp): sums and means of float, double and integers of 32 and 64 bits, over all ranks.
///          Other sums, and sums of groups of only some ranks, are in rank order. On ordinary networks rank order is
///          as fast or faster (docs/communicators.md); `any` is for networks that compute sums in hardware.
/// Threads  works with every thread level of MPI. In shared memory the library makes no MPI calls. By messages, a
///          thread of the library makes them while the rank computes, if MPI provides MPI_THREAD_MULTIPLE or launch has
///          initialised it. Otherwise requests proceed only in calls of the rank (also `poll()`), so that programs may
///          call MPI between start and wait. Below MPI_THREAD_SERIALIZED only the thread that has initialised MPI may
///          use a world.
/// Errors   launch and borrow throw config_error if MPI has been finalised, if only another thread may call it, or if
///          the program is linked with another MPI than the launcher's; borrow also for MPI_COMM_NULL, an
///          intercommunicator or a communicator that has been freed. Calls on a world after MPI_Finalize throw
///          comm_error. After an error in a launch MPI is not finalised, so that mpirun ends the other ranks when this
///          one ends. After a borrowed world has failed, MPI_Finalize returns, other worlds work, and one can borrow
///          again.
struct mpi {
  using policy_category = slot::communicator;
  static constexpr std::string_view name = "mpi";

  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  bool shared_memory = true;           ///< whether ranks of one machine may use shared memory
  sum_order order = sum_order::ranks;  ///< of large sums by messages; `any` only if all ranks ask for it

  /// Collective. A world on the ranks of `theirs`, which is duplicated and never freed. MPI must be initialised.
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
/// Also runs it again after a failure, as comm::processes does, unless mpirun has started the ranks.
void recover_mpi(mpi const& description, recovery const& how, std::function<void(any_world&, int)> const& body);

}  // namespace detail

/// How trireme::launch runs a body on comm::mpi: in this process, as the rank that it is.
template <class Body>
auto launch_ranks(mpi const& description, Body& body) {
  return detail::result_of_body([&](auto const& once) { detail::run_mpi(description, once); }, body);
}

/// How trireme::launch recovers with comm::mpi: as with comm::processes, unless mpirun has started the ranks.
template <class Body>
auto recover_ranks(mpi const& description, recovery const& how, Body& body) {
  return detail::result_of_body([&](auto const& again) { detail::recover_mpi(description, how, again); }, body);
}

}  // namespace trireme::comm

// The library trireme::compiled_mpi, which is compiled for one MPI, has the bodies.
#ifndef TRIREME_COMPILED_MPI
#include "trireme/comm/mpi.ipp"
#endif
