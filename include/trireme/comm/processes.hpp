#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "trireme/comm/any_world.hpp"
#include "trireme/comm/detail/answer.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/recovery.hpp"
#include "trireme/comm/report.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/compiled.hpp"

namespace trireme::comm {

/// Ranks are processes on one machine, started by a launcher: torchrun, mpirun, srun, or a script that sets
/// TRIREME_RANK and TRIREME_SIZE (comm/bootstrap.hpp). They meet by a rendezvous and communicate through shared memory,
/// without MPI.
///
/// Ranks    all that the launcher has started; one without a launcher.
/// Errors   launch throws config_error if the environment is inconsistent, or the ranks are on several machines: use
///          comm::mpi or comm::nccl there. comm_error if ranks do not arrive before the deadline.
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

/// One rank of comm::processes.
using processes_world = any_world;

namespace detail {

/// Makes the engine of this process's rank by a rendezvous with the others on its machine. `who` begins every message.
[[nodiscard]] std::shared_ptr<collective_engine> engine_by_rendezvous(std::string_view who,
                                                                      bootstrap::launch_info const& here,
                                                                      std::chrono::milliseconds deadline);
/// The same, with this process's rank from the environment.
[[nodiscard]] std::shared_ptr<collective_engine> engine_of(processes const& description);
/// Runs `body(world, attempt)` as this process's rank, and reports to the other ranks how it ended.
void run_process(std::shared_ptr<collective_engine> const& engine, std::function<void(any_world&, int)> const& body);
/// Runs `body(world, attempt)` until it succeeds. After a failure the remaining processes agree in shared memory which
/// of them go on (node_launch::survivors). They meet again, and get new ranks in the order of the old ones.
void recover_processes(std::string_view who, bootstrap::launch_info here, std::chrono::milliseconds deadline,
                       recovery const& how, std::function<void(any_world&, int)> const& body);

/// Passes `body` to `run` as a function of a world and an attempt's number, and returns the result of the body.
template <class Run, class Body>
auto result_of_body(Run const& run, Body& body) {
  constexpr bool counts = std::invocable<Body&, any_world&, int>;
  auto const call = [&body](any_world& world, [[maybe_unused]] int attempt) -> decltype(auto) {
    if constexpr (counts)
      return std::invoke(body, world, attempt);
    else
      return std::invoke(body, world);
  };
  using result = std::decay_t<decltype(call(std::declval<any_world&>(), 0))>;
  return returned_by<result>([&](auto const& keep) {
    run([&](any_world& world, int attempt) { keep([&]() -> decltype(auto) { return call(world, attempt); }); });
  });
}

}  // namespace detail

/// How trireme::launch runs a body on comm::processes: in this process, as its rank.
template <class Body>
auto launch_ranks(processes const& description, Body& body) {
  return detail::result_of_body([&](auto const& once) { detail::run_process(detail::engine_of(description), once); },
                                body);
}

/// How trireme::launch recovers with comm::processes: the remaining processes go on.
template <class Body>
auto recover_ranks(processes const& description, recovery const& how, Body& body) {
  return detail::result_of_body(
      [&](auto const& again) {
        auto const here = bootstrap::detect();
        bootstrap::log(here);
        detail::recover_processes("trireme::comm::processes", here, description.deadline, how, again);
      },
      body);
}

}  // namespace trireme::comm

#ifndef TRIREME_COMPILED
#include "trireme/comm/processes.ipp"
#endif
