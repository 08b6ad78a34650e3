#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/mpi/engine.hpp"
#include "trireme/comm/mpi/handle.hpp"
#include "trireme/comm/node/setup.hpp"
#include "trireme/comm/process_world.hpp"
#include "trireme/comm/processes.hpp"
#include "trireme/comm/sum_order.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

struct mpi;

/// One rank of comm::mpi.
using mpi_world = process_world<mpi>;

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

/// Collective over `theirs`: shared memory if all ranks wish it and are on one machine, otherwise messages.
[[nodiscard]] inline std::shared_ptr<process_engine> engine_by_mpi(MPI_Comm theirs, std::chrono::milliseconds deadline,
                                                                   bool shared_memory, sum_order order) {
  if (deadline.count() < 1) throw config_error("trireme::comm::mpi: the deadline must be at least 1ms");
  mpi_session::instance().begin();
  auto messages = message_engine::on_duplicate(theirs, deadline);
  bool const together = messages->on_one_machine(shared_memory, order);
  messages->end_set_up();
  auto const by_messages = [&] {
    auto const& session = mpi_session::instance();
    if (messages->rank() == 0 && !session.has_helper() && bootstrap::environment_variable("TRIREME_LOG") == "1")
      std::fputs(
          text("trireme: MPI provides ", session.level(),
               ", so messages proceed only in calls of the rank; with MPI_THREAD_MULTIPLE they overlap with what "
               "it computes\n")
              .c_str(),
          stderr);
    return messages;
  };
  if (!together) return by_messages();
  std::string why;  // some machines forbid shared memory: then messages
  // In shared memory nobody calls MPI, so MPI (Open MPI 5) does not notice that mpirun has ended: hence needs_launcher.
  auto node = try_node_engine(
      mpi_name, messages->rank(), messages->size(), deadline,
      [&](std::string const& own) { return messages->gather_texts(own); }, why, true);
  messages->end_set_up();
  if (node == nullptr) return by_messages();
  return node;
}

/// Whether the launcher of some MPI has started this process, whoever else has set variables.
[[nodiscard]] inline bool launched_by_mpi() {
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun != 0) return true;
  for (auto const* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"})
    if (bootstrap::environment_variable(name)) return true;
  return false;
}

[[nodiscard]] inline bool launched_by_others(bootstrap::place const& here) noexcept {
  return here.started_by == bootstrap::launcher::torchrun || here.started_by == bootstrap::launcher::stated;
}

[[nodiscard]] inline std::shared_ptr<process_engine> engine_of(mpi const& description) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  bool const by_others = launched_by_others(here);
  if (by_others && !launched_by_mpi()) {
    if (!description.shared_memory)
      throw config_error(text(mpi_name, ": .shared_memory = false needs MPI's messages, but ", name_of(here.started_by),
                              " (", here.because, ") has started this process; start it by mpirun"));
    return engine_by_rendezvous(mpi_name, here, description.deadline);
  }
  auto engine = engine_by_mpi(MPI_COMM_WORLD, description.deadline, description.shared_memory, description.order);
  // Otherwise each process would train a model of its own, and nobody would notice.
  if (engine->size() == 1 && here.size > 1 && !by_others)
    throw config_error(text(mpi_name, ": ", name_of(here.started_by), " has started ", here.size, " ranks (",
                            here.because,
                            "), but the MPI that this program is linked with sees only one; use that MPI's own mpirun, "
                            "or srun --mpi=pmix, or set TRIREME_RANK=0 and TRIREME_SIZE=1 to run this process alone"));
  return engine;
}

}  // namespace detail

inline mpi_world mpi::borrow(MPI_Comm theirs, std::chrono::milliseconds deadline, bool shared_memory, sum_order order) {
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun == 0)
    throw config_error(
        "trireme::comm::mpi: borrow needs an initialised MPI; call MPI_Init_thread first, or use launch");
  detail::mpi_session::instance().begin();  // MPI may be over, and then no handle may be asked anything
  detail::check_communicator(theirs);
  detail::returned_errors const as_codes(theirs);
  return mpi_world(detail::engine_by_mpi(theirs, deadline, shared_memory, order));
}

/// How trireme::launch runs a body on comm::mpi: in this process, as the rank that it is.
template <class Body>
auto launch_ranks(mpi const& description, Body& body) {
  detail::last_report() = detail::report::unsettled;
  struct leaving {
    std::shared_ptr<detail::process_engine> engine;
    ~leaving() {
      if (engine->failed()) detail::mpi_session::instance().abandon();
    }
  } const guard{detail::engine_of(description)};
  return detail::run_process<mpi_world>(guard.engine, body);
}

/// How trireme::launch recovers with comm::mpi: as comm::processes if mpirun has not started the ranks; else not.
template <class Body>
auto recover_ranks(mpi const& description, recovery const& how, Body& body) {
  auto const here = bootstrap::detect();
  if (description.shared_memory && detail::launched_by_others(here) && !detail::launched_by_mpi()) {
    bootstrap::log(here);
    return detail::recover_processes<mpi_world>(detail::mpi_name, here, description.deadline, how, body);
  }
  auto once = [&](mpi_world& world) { return std::invoke(body, world, 0); };
  return launch_ranks(description, once);
}

}  // namespace trireme::comm
