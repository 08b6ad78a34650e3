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
#include "trireme/comm/node/setup.hpp"
#include "trireme/comm/processes.hpp"
#include "trireme/comm/rendezvous.hpp"
#include "trireme/core/plural.hpp"

// Bodies of processes.hpp (see core/compiled.hpp).

namespace trireme::comm::detail {

TRIREME_BODY std::shared_ptr<collective_engine> engine_by_rendezvous(std::string_view who,
                                                                     bootstrap::launch_info const& here,
                                                                     std::chrono::milliseconds deadline) {
  if (here.size < 1)
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because,
                            ") does not give the number of ranks; set TRIREME_RANK and TRIREME_SIZE"));
  if (!here.is_one_machine())
    throw config_error(
        text(who, ": the ", how_many(here.size, "rank"), " are on several machines (", here.local_size,
             " on this one), but comm::processes connects one machine; use comm::mpi with mpirun, or comm::nccl"));
  if (here.size > node_most_ranks)  // before memory is taken for each of them
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because, ") sets the number of ranks to ",
                            how_many(here.size, "rank"), ", but shared memory holds at most ", node_most_ranks));
  rendezvous where = here.size == 1 ? rendezvous{} : rendezvous::from(here);
  where.deadline = deadline;
  meeting met(where, here.rank, here.size, who);
  return make_node_engine(who, here.rank, here.size, deadline,
                          [&met](std::string const& own) { return met.all_gather(own); });
}

TRIREME_BODY std::shared_ptr<collective_engine> engine_of(processes const& description) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  last_report() = report::unsettled;
  return engine_by_rendezvous("trireme::comm::processes", here, description.deadline);
}

/// Reports to the other ranks that this one ends with an error, which ends their waits, and settles who prints it.
inline void end_with_error(collective_engine& engine, std::exception_ptr const& failure) noexcept {
  try {
    engine.abandon(sentence_of(failure));
  } catch (...) {  // no memory for the message: the others' waits end at their deadlines
  }
  last_report() = engine.reports() ? report::by_this_process : report::by_another;
}

TRIREME_BODY void recover_processes(std::string_view who, bootstrap::launch_info here,
                                    std::chrono::milliseconds deadline, recovery const& how,
                                    std::function<void(any_world&, int)> const& body) {
  check(how, here.size);
  last_report() = report::unsettled;
  auto engine = engine_by_rendezvous(who, here, deadline);
  for (int attempt = 0;; ++attempt) {
    std::exception_ptr failure;
    engine->worlds->leave_it_to_the_launch();
    try {
      any_world world(engine);
      return body(world, attempt);
    } catch (comm_error const&) {  // this rank ended because of another one
      failure = std::current_exception();
    } catch (...) {
      end_with_error(*engine, std::current_exception());
      throw;
    }
    auto const reason = sentence_of(failure);
    engine->abandon(reason);  // this rank may have found the failure first
    auto const left = attempt == how.attempts ? std::vector<int>{} : engine->survivors();
    if (left.empty() || static_cast<int>(left.size()) < how.min_ranks) {
      end_with_error(*engine, failure);
      std::rethrow_exception(failure);
    }
    here.rank = here.local_rank = static_cast<int>(std::ranges::find(left, engine->rank()) - left.begin());
    here.size = here.local_size = static_cast<int>(left.size());
    if (!here.job.empty()) here.job += ".again";  // a rank may still be late for the previous meeting
    // The old engine lives until all have met: otherwise the others would take its end for the end of this rank.
    engine = engine_by_rendezvous(who, here, deadline);
    if (how.on_failure) how.on_failure({attempt + 1, here.rank, here.size, reason});
  }
}

TRIREME_BODY void run_process(std::shared_ptr<collective_engine> const& engine,
                              std::function<void(any_world&, int)> const& body) {
  engine->worlds->leave_it_to_the_launch();
  any_world world(engine);
  try {
    body(world, 0);
  } catch (...) {
    end_with_error(*engine, std::current_exception());
    throw;
  }
}

}  // namespace trireme::comm::detail
