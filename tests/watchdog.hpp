#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

/// Ends the test program if it lives longer than `limit`, and says what it was doing: a hang becomes a failure.
///
/// A test may fork once it is made: its thread then only waits. A process forked while another thread allocates
/// inherits a sanitizer's allocator as that thread had it, locked, and would wait for ever.
class watchdog {
 public:
  explicit watchdog(std::string doing, std::chrono::seconds limit = std::chrono::seconds(90))
      : doing_(std::move(doing)), guard_([this, limit] { watch(limit); }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return watches_; });
  }
  watchdog(watchdog const&) = delete;
  watchdog& operator=(watchdog const&) = delete;
  ~watchdog() {
    {
      std::lock_guard const lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    guard_.join();
  }
  /// What is being done from here on.
  void now(std::string doing) {
    std::lock_guard const lock(mutex_);
    doing_ = std::move(doing);
  }

 private:
  void watch(std::chrono::seconds limit) {
    std::unique_lock lock(mutex_);
    watches_ = true;
    changed_.notify_all();
    if (changed_.wait_for(lock, limit, [this] { return over_; })) return;
    std::fprintf(stderr, "watchdog: stuck for %lld s in: %s\n", static_cast<long long>(limit.count()), doing_.c_str());
    std::fflush(stderr);
    std::_Exit(3);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string doing_;
  bool watches_ = false, over_ = false;
  std::thread guard_;
};
