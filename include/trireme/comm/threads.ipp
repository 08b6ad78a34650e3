#pragma once

#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "trireme/comm/detail/failure.hpp"
#include "trireme/comm/node/engine.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/core/cores.hpp"

// Bodies of threads.hpp (see core/compiled.hpp).

namespace trireme::comm::detail {

/// Ranks that are threads of one process: each can access all memory.
class thread_backend final : public node_backend {
 public:
  explicit thread_backend(int ranks)
      : thread_backend(std::make_unique<node_header[]>(static_cast<std::size_t>(ranks)),
                       static_cast<std::size_t>(ranks)) {}
  ~thread_backend() override {
    for (auto* const each : blocks_) ::operator delete(each, alignment);
  }

  [[nodiscard]] void* allocate(std::size_t bytes) override {
    std::lock_guard const lock(mutex_);
    blocks_.push_back(nullptr);  // first: if this throws, no block leaks
    return blocks_.back() = ::operator new(bytes, alignment);
  }
  void deallocate(void* block, std::size_t) noexcept override {
    std::lock_guard const lock(mutex_);
    std::erase(blocks_, block);
    ::operator delete(block, alignment);
  }

 private:
  /// Two cache lines, because processors fetch lines in pairs.
  static constexpr std::align_val_t alignment{128};

  thread_backend(std::unique_ptr<node_header[]> made, std::size_t ranks)
      : node_backend(true, std::vector<std::byte*>(ranks), addresses_of(made.get(), ranks),
                     std::numeric_limits<std::uintptr_t>::max()),
        own_(std::move(made)) {}
  [[nodiscard]] static std::vector<node_header*> addresses_of(node_header* first, std::size_t count) {
    std::vector<node_header*> all(count);
    std::iota(all.begin(), all.end(), first);
    return all;
  }

  std::unique_ptr<node_header[]> const own_;
  std::mutex mutex_;
  std::vector<void*> blocks_;  ///< the shared boards of groups that some rank has not left
};

/// Pins the calling thread to one core. Has no effect where the system forbids it, since it is only an optimisation.
inline void stay_on([[maybe_unused]] int core) noexcept {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
#endif
}

TRIREME_BODY void check(threads const& description) {
  if (description.ranks < 1 || description.ranks > node_most_ranks)
    throw config_error(
        text("trireme::comm::threads: .ranks is ", description.ranks, "; choose 1 to ", node_most_ranks));
  if (description.deadline.count() < 1)
    throw config_error(text("trireme::comm::threads: .deadline is ", to_string(description.deadline),
                            "; give the ranks at least 1ms"));
}

TRIREME_BODY void run_ranks(threads const& description, std::function<void(int, threads_world&)> const& body) {
  check(description);
  auto const ranks = static_cast<std::size_t>(description.ranks);
  bool const core_each = description.ranks <= usable_cores();
  auto const cores = trireme::detail::allowed_cores();
  bool const pins = description.pin && core_each && ranks == cores.size();
  auto const backend = std::make_shared<thread_backend>(description.ranks);
  std::vector<std::shared_ptr<node_launch>> launches;
  std::vector<node_board*> boards;
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  for (int const rank : everyone) {
    launches.push_back(std::make_shared<node_launch>("trireme::comm::threads", rank, backend, core_each));
    boards.push_back(launches.back()->make_board(description.ranks));
  }

  std::vector<std::exception_ptr> failures(ranks);
  auto const end_with = [&](std::size_t rank, std::exception_ptr failure, std::string_view how) {
    failures[rank] = std::move(failure);
    launches[rank]->fail(text("trireme::comm::threads: rank ", rank, how, sentence_of(failures[rank])));
  };
  auto const run = [&](std::size_t rank) noexcept {
    auto& launch = launches[rank];
    auto const leave = [&] {
      launch->mine().left.store(1);
      for (auto* const each : backend->headers) launch->ring(*each);
    };
    try {
      if (pins) stay_on(cores[rank]);
      auto const engine = std::make_shared<node_engine>(std::make_shared<node_driver>(launch), everyone,
                                                        static_cast<int>(rank), description.deadline, boards);
      engine->worlds->leave_it_to_the_launch();
      threads_world world(engine);
      try {
        body(static_cast<int>(rank), world);
      } catch (...) {
        end_with(rank, std::current_exception(), " ended with an error: ");
      }
      leave();  // before its group ends, so that the others report the right error
    } catch (...) {
      end_with(rank, std::current_exception(), " could not start: ");
      leave();
    }
  };

  std::vector<std::thread> workers;
  workers.reserve(ranks);
  try {
    while (workers.size() < ranks) workers.emplace_back(run, workers.size());
  } catch (...) {
    end_with(workers.size(), std::current_exception(), " could not be started: ");
  }
  for (auto& each : workers) each.join();

  // The exception of the rank that failed first; if its body has caught it, the first one in rank order.
  auto const first = backend->headers[0]->failure.load();
  if (first > 0 && failures[first - 1] != nullptr) std::rethrow_exception(failures[first - 1]);
  for (auto const& failure : failures)
    if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace trireme::comm::detail
