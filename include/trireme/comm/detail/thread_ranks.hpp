#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "trireme/comm/threads.hpp"

namespace trireme::comm::detail {

/// The cores that this thread may use.
[[nodiscard]] inline std::vector<int> usable_cores() {
  std::vector<int> cores;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
#endif
  if (cores.empty()) {
    cores.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

/// Keeps the calling thread on one core. Without effect where that is not allowed: it is an optimisation.
inline void stay_on([[maybe_unused]] int core) noexcept {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
#endif
}

/// The sentence of an exception of any type.
[[nodiscard]] inline std::string sentence_of(std::exception_ptr const& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (std::exception const& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

inline void check(threads const& description) {
  if (description.ranks < 1 || description.ranks > most_ranks)
    throw config_error(text("trireme::comm::threads: .ranks is ", description.ranks, "; choose 1 to ", most_ranks));
  if (description.deadline.count() < 1)
    throw config_error(text("trireme::comm::threads: .deadline is ", to_string(description.deadline),
                            "; give the ranks at least 1ms"));
}

/// Runs `body(rank, world)` in a thread a rank, joins all, and rethrows what first went wrong.
template <class RankBody>
void run_ranks(threads const& description, RankBody const& body) {
  check(description);
  auto const ranks = static_cast<std::size_t>(description.ranks);
  auto const cores = usable_cores();
  bool const core_each = ranks <= cores.size();
  auto const crew = std::make_shared<team>(description.ranks, core_each);
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  auto const members = std::make_shared<group>(crew, std::move(everyone), description.deadline);

  std::vector<std::exception_ptr> failures(ranks + 1);
  auto const run = [&](int rank) noexcept {
    auto& failure = failures[static_cast<std::size_t>(rank)];
    try {
      if (core_each && description.pin) stay_on(cores[static_cast<std::size_t>(rank)]);
      threads_world world(members, rank);
      body(rank, world);
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure != nullptr)
      crew->fail(rank, text("trireme::comm::threads: rank ", rank, " ended with an error: ", sentence_of(failure)));
    crew->ranks[static_cast<std::size_t>(rank)].left.store(true);
    crew->ring();
  };

  std::vector<std::thread> workers;
  workers.reserve(ranks);
  try {
    for (int rank = 0; rank < description.ranks; ++rank) workers.emplace_back(run, rank);
  } catch (...) {
    failures[ranks] = std::current_exception();
    crew->fail(description.ranks, text("trireme::comm::threads: rank ", workers.size(),
                                       " could not be started: ", sentence_of(failures[ranks])));
  }
  for (auto& each : workers) each.join();

  // The first in time; or, where that rank has dealt with it, the first in rank order.
  auto const first = crew->culprit();
  if (first >= 0 && failures[static_cast<std::size_t>(first)] != nullptr)
    std::rethrow_exception(failures[static_cast<std::size_t>(first)]);
  for (auto const& failure : failures)
    if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace trireme::comm::detail

namespace trireme::comm {

/// How trireme::launch runs a body on comm::threads: what rank 0's body returns is returned.
template <class Body>
auto launch_ranks(threads const& description, Body& body) {
  using result = std::decay_t<std::invoke_result_t<Body&, threads_world&>>;
  if constexpr (std::is_void_v<result>) {
    detail::run_ranks(description, [&](int, threads_world& world) { std::invoke(body, world); });
  } else {
    std::optional<result> answer;
    detail::run_ranks(description, [&](int rank, threads_world& world) {
      if (rank == 0)
        answer.emplace(std::invoke(body, world));
      else
        std::invoke(body, world);
    });
    return std::move(*answer);
  }
}

}  // namespace trireme::comm
