#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/detail/failure.hpp"
#include "trireme/comm/node/setup.hpp"
#include "trireme/comm/process_world.hpp"
#include "trireme/comm/rendezvous.hpp"
#include "trireme/comm/report.hpp"

namespace trireme::comm::detail {

/// The engine of this process's rank, by a rendezvous with the others of its machine. `who` begins every message.
[[nodiscard]] inline std::shared_ptr<process_engine> engine_by_rendezvous(std::string_view who,
                                                                          bootstrap::place const& here,
                                                                          std::chrono::milliseconds deadline) {
  if (here.size < 1)
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because,
                            ") does not say how many ranks there are; set TRIREME_RANK and TRIREME_SIZE"));
  if (!here.is_one_machine())
    throw config_error(
        text(who, ": ", here.size, " ranks with ", here.local_size,
             " on this machine are on several machines, between which MPI or NCCL are the engines; start "
             "a program with comm::mpi by mpirun, or use comm::nccl"));
  if (here.size > node_most_ranks)  // before memory is taken for each of them
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because, ") says that there are ",
                            here.size, " ranks, but shared memory holds at most ", node_most_ranks));
  rendezvous where = here.size == 1 ? rendezvous{} : rendezvous::from(here);
  where.deadline = deadline;
  meeting met(where, here.rank, here.size, who);
  return make_node_engine(who, here.rank, here.size, deadline,
                          [&met](std::string const& own) { return met.all_gather(own); });
}

/// Tells the other ranks that this one ends with an error, which ends their waits, and settles who tells the user.
inline void end_with_error(process_engine& engine, std::exception_ptr const& failure) noexcept {
  try {
    engine.abandon(sentence_of(failure));
  } catch (...) {  // without memory for a sentence their deadlines end the waits
  }
  last_report() = engine.reports() ? report::by_this_process : report::by_another;
}

}  // namespace trireme::comm::detail
