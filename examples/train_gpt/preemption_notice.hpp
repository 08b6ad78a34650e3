#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "trireme/core/error.hpp"

/// Checks twice per second for a file with which the machine's owner announces that it will be taken away; then this
/// process stops as on SIGTERM.
class preemption_notice {
 public:
  /// @param file    empty: no check.
  /// @param speaks  whether this process prints that it has found it.
  preemption_notice(std::string file, bool speaks) : file_(std::move(file)), speaks_(speaks) {
    if (file_.empty()) return;
    if (is_there()) {
      throw trireme::config_error(
          trireme::text("--preemption-notice: ", file_, " exists already; remove it, and start the run again"));
    }
    watcher_ = std::thread([this] { watch(); });
  }
  preemption_notice(preemption_notice const&) = delete;
  preemption_notice& operator=(preemption_notice const&) = delete;
  ~preemption_notice() {
    if (!watcher_.joinable()) return;
    {
      std::lock_guard const lock(mutex_);
      over_ = true;
    }
    ended_.notify_one();
    watcher_.join();
  }

 private:
  [[nodiscard]] bool is_there() const { return ::access(file_.c_str(), F_OK) == 0; }
  void watch() {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, std::chrono::milliseconds(500), [this] { return over_; })) {
      if (!is_there()) continue;
      if (speaks_) std::fprintf(stderr, "train_gpt: %s exists, so the run saves and exits\n", file_.c_str());
      ::kill(::getpid(), SIGTERM);
      return;
    }
  }

  std::string file_;
  bool speaks_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread watcher_;  // last: it uses all of the above
};
