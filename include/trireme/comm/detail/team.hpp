#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/detail/waiting.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm::detail {

struct operation;

/// What one rank of a team keeps for all of its communicators. Others read the two flags only.
struct alignas(64) rank_state {
  std::atomic<bool> inside{false};           ///< it reads or writes memory of other ranks at this moment
  std::atomic<bool> left{false};             ///< its body has returned
  alignas(64) operation* pending = nullptr;  ///< its asynchronous operations, oldest first
  operation* newest = nullptr;
  operation* unused = nullptr;                    ///< operations to use again
  std::vector<std::shared_ptr<operation>> owned;  // shared, because an operation is not complete here
};

/// The threads of one launch: their failure, and the bell that wakes sleepers.
class team {
 public:
  team(int size, bool core_each)
      : spins(core_each ? 200 : 20),
        patience(core_each ? std::chrono::microseconds(1000) : std::chrono::microseconds(200)),
        ranks(static_cast<std::size_t>(size)) {}

  int const spins;                           ///< pauses before the first yield
  std::chrono::microseconds const patience;  ///< how long to yield before sleeping
  std::vector<rank_state> ranks;

  [[nodiscard]] bool failed() const noexcept { return failed_.load(); }

  /// Ends all waits with `message`; `rank` is who noticed. Only the first call counts.
  void fail(int rank, std::string message) {
    {
      std::lock_guard const lock(mutex_);
      if (failed_.load()) return;
      message_ = std::move(message);
      culprit_ = rank;
      failed_.store(true);
    }
    bell_.fetch_add(1);
    wake_all(bell_);
  }
  [[nodiscard]] std::string message() const {
    std::lock_guard const lock(mutex_);
    return message_;
  }
  [[nodiscard]] int culprit() const {
    std::lock_guard const lock(mutex_);
    return culprit_;
  }

  /// After a failure: returns once no rank touches memory of others any more.
  void settle() const noexcept {
    for (auto const& each : ranks)
      while (each.inside.load()) std::this_thread::yield();
  }

  /// Called after every change that somebody may wait for.
  void ring() noexcept {
    if (sleepers_.load() == 0) return;
    bell_.fetch_add(1);
    wake_all(bell_);
  }
  /// Sleeps until the next ring, unless `done()`, which is asked after the bell has been armed.
  template <class Done>
  bool sleep(std::chrono::nanoseconds limit, Done&& done) {
    sleepers_.fetch_add(1);
    auto const value = bell_.load();
    bool const ready = done() || failed();
    if (!ready) sleep_while(bell_, value, limit);
    sleepers_.fetch_sub(1);
    return ready;
  }

 private:
  alignas(64) std::atomic<bool> failed_{false};
  alignas(64) std::atomic<std::uint32_t> sleepers_{0};
  alignas(64) std::atomic<std::uint32_t> bell_{0};
  mutable std::mutex mutex_;
  std::string message_;
  int culprit_ = -1;
};

}  // namespace trireme::comm::detail
