#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/detail/failure.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/node/setup.hpp"
#include "trireme/comm/process_world.hpp"
#include "trireme/comm/recovery.hpp"
#include "trireme/comm/rendezvous.hpp"
#include "trireme/comm/report.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm {

namespace detail {

/// The engine of this process's rank, by a rendezvous with the others of its machine. `who` begins every message.
[[nodiscard]] inline std::shared_ptr<process_engine> engine_by_rendezvous(std::string_view who,
                                                                          bootstrap::place const& here,
                                                                          std::chrono::milliseconds deadline) {
  if (here.size < 1)
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because,
                            ") does not say how many ranks there are; set TRIREME_RANK and TRIREME_SIZE"));
  if (!here.is_one_machine())
    throw config_error(
        text(who, ": ", how_many(here.size, "rank"), " with ", here.local_size,
             " on this machine are on several machines, between which MPI or NCCL are the engines; start "
             "a program with comm::mpi by mpirun, or use comm::nccl"));
  if (here.size > node_most_ranks)  // before memory is taken for each of them
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because, ") says that there are ",
                            how_many(here.size, "rank"), ", but shared memory holds at most ", node_most_ranks));
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

/// Calls `body(world, attempt)` until it succeeds. After a failure the processes that are left agree in shared memory
/// on who goes on (node_launch::survivors). They meet again, and get new ranks in the order of the old ones.
template <class World, class Body>
auto recover_processes(std::string_view who, bootstrap::place here, std::chrono::milliseconds deadline,
                       recovery const& how, Body& body) {
  check(how, here.size);
  last_report() = report::unsettled;
  auto engine = engine_by_rendezvous(who, here, deadline);
  for (int attempt = 0;; ++attempt) {
    std::exception_ptr failure;
    engine->worlds->leave_it_to_the_launch();
    try {
      World world(engine);
      return std::invoke(body, world, attempt);
    } catch (comm_error const&) {  // of this rank, because of another one
      failure = std::current_exception();
    } catch (...) {
      end_with_error(*engine, std::current_exception());
      throw;
    }
    auto const reason = sentence_of(failure);
    engine->abandon(reason);  // in case this rank has found the failure first
    auto const left = attempt == how.attempts ? std::vector<int>{} : engine->survivors();
    if (left.empty() || static_cast<int>(left.size()) < how.min_ranks) {
      end_with_error(*engine, failure);
      std::rethrow_exception(failure);
    }
    here.rank = here.local_rank = static_cast<int>(std::ranges::find(left, engine->rank()) - left.begin());
    here.size = here.local_size = static_cast<int>(left.size());
    if (!here.job.empty()) here.job += ".again";  // not the meeting of the attempt before, for which a rank may be late
    // The old engine stays until all have met: others would take its end for the end of this rank.
    engine = engine_by_rendezvous(who, here, deadline);
    if (how.on_failure) how.on_failure({attempt + 1, here.rank, here.size, reason});
  }
}

/// Runs the body as the rank that this process is.
template <class World, class Body>
auto run_process(std::shared_ptr<process_engine> const& engine, Body& body) {
  engine->worlds->leave_it_to_the_launch();
  World world(engine);
  try {
    return std::invoke(body, world);
  } catch (...) {
    end_with_error(*engine, std::current_exception());
    throw;
  }
}

}  // namespace detail

/// Ranks are processes of one machine that some launcher has started: torchrun, mpirun, srun, or a script that sets
/// TRIREME_RANK and TRIREME_SIZE (comm/bootstrap.hpp). They meet by a rendezvous and work in shared memory; no MPI.
///
/// Ranks    all that the launcher has started; one without a launcher.
/// Errors   launch throws config_error if the environment makes no sense, or the ranks are on several machines: between
///          machines comm::mpi or comm::nccl carry them. comm_error if ranks do not come before the deadline.
/// @example torchrun --no-python --nproc-per-node 2 ./program
struct processes {
  using policy_category = slot::communicator;
  static constexpr std::string_view name = "processes";

  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  friend bool operator==(processes const&, processes const&) = default;
};

[[nodiscard]] inline std::string to_string(processes const& it) {
  return text("comm::processes{.deadline = ", to_string(it.deadline), "}");
}

using processes_world = process_world<processes>;

/// How trireme::launch runs a body on comm::processes: in this process, as the rank that it is.
template <class Body>
auto launch_ranks(processes const& description, Body& body) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  detail::last_report() = detail::report::unsettled;
  return detail::run_process<processes_world>(
      detail::engine_by_rendezvous("trireme::comm::processes", here, description.deadline), body);
}

/// How trireme::launch recovers with comm::processes: the processes that are left go on.
template <class Body>
auto recover_ranks(processes const& description, recovery const& how, Body& body) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  return detail::recover_processes<processes_world>("trireme::comm::processes", here, description.deadline, how, body);
}

}  // namespace trireme::comm
