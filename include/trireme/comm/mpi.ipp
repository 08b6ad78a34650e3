#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/mpi.hpp"
#include "trireme/comm/mpi/engine.hpp"
#include "trireme/comm/mpi/handle.hpp"
#include "trireme/comm/node/setup.hpp"

// Bodies of mpi.hpp (see core/compiled.hpp).
#ifdef TRIREME_COMPILED_MPI
#define TRIREME_MPI_BODY
#else
#define TRIREME_MPI_BODY inline
#endif

namespace trireme::comm {

namespace detail {

/// Collective over `theirs`: shared memory if all ranks wish it and are on one machine, otherwise messages.
[[nodiscard]] inline std::shared_ptr<collective_engine> engine_by_mpi(MPI_Comm theirs,
                                                                      std::chrono::milliseconds deadline,
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

[[nodiscard]] inline bool launched_by_others(bootstrap::launch_info const& here) noexcept {
  return here.started_by == bootstrap::launcher::torchrun || here.started_by == bootstrap::launcher::stated;
}

[[nodiscard]] inline std::shared_ptr<collective_engine> engine_of(mpi const& description) {
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

TRIREME_MPI_BODY void run_mpi(mpi const& description, std::function<void(any_world&, int)> const& body) {
  last_report() = report::unsettled;
  struct leaving {
    std::shared_ptr<collective_engine> engine;
    ~leaving() {
      if (engine->failed()) mpi_session::instance().abandon();
    }
  } const guard{engine_of(description)};
  run_process(guard.engine, body);
}

TRIREME_MPI_BODY void recover_mpi(mpi const& description, recovery const& how,
                                  std::function<void(any_world&, int)> const& body) {
  auto const here = bootstrap::detect();
  if (!description.shared_memory || !launched_by_others(here) || launched_by_mpi()) return run_mpi(description, body);
  bootstrap::log(here);
  recover_processes(mpi_name, here, description.deadline, how, body);
}

}  // namespace detail

TRIREME_MPI_BODY mpi_world mpi::borrow(MPI_Comm theirs, std::chrono::milliseconds deadline, bool shared_memory,
                                       sum_order order) {
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

}  // namespace trireme::comm

#undef TRIREME_MPI_BODY
