#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/detail/process_start.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/process_world.hpp"
#include "trireme/comm/rendezvous.hpp"
#include "trireme/comm/report.hpp"

namespace trireme::comm {

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
  auto const engine = detail::engine_by_rendezvous("trireme::comm::processes", here, description.deadline);
  processes_world world(engine);
  try {
    return std::invoke(body, world);
  } catch (...) {
    detail::end_with_error(*engine, std::current_exception());
    throw;
  }
}

/// How trireme::launch recovers with comm::processes: the processes that are left go on.
template <class Body>
auto recover_ranks(processes const& description, recovery const& how, Body& body) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  return detail::recover_processes<processes_world>("trireme::comm::processes", here, description.deadline, how, body);
}

}  // namespace trireme::comm
