#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <fmt/core.h>

#include "trireme/train/patience.hpp"

/// While a checkpoint is written or read: prints the progress of this rank to standard error after 10 s, 20 s, 40 s,
/// ...
class save_watch {
 public:
  /// @param what  "saving", "loading".
  save_watch(std::string what, int rank, std::chrono::milliseconds deadline)
      : what_(std::move(what)), rank_(rank), deadline_(deadline), speaker_([this] { speak(); }) {}
  save_watch(save_watch const&) = delete;
  save_watch& operator=(save_watch const&) = delete;
  ~save_watch() {
    {
      std::lock_guard const lock(mutex_);
      over_ = true;
    }
    ended_.notify_one();
    speaker_.join();
  }

  /// For trainer.save() and load(); valid as long as this object.
  [[nodiscard]] trireme::checkpoint::patience patience() {
    return {deadline_, [this](std::int64_t done, std::int64_t all) {
              all_ = all;
              done_ = done;
            }};
  }

 private:
  void speak() {
    std::unique_lock lock(mutex_);
    auto pause = std::chrono::seconds(10);
    for (auto passed = pause; !ended_.wait_for(lock, pause, [this] { return over_; }); passed += pause) {
      auto const all = all_.load(), done = done_.load();
      auto const seconds = static_cast<long long>(passed.count());
      if (all == 0 || done < all) {
        fmt::print(stderr, "{}: rank {} is at {:.0f} % of {:.1f} MB after {} s\n", what_, rank_,
                   all == 0 ? 0.0 : 100 * static_cast<double>(done) / static_cast<double>(all),
                   static_cast<double>(all) / 1e6, seconds);
      } else {
        std::fprintf(stderr, "%s: rank %d waits for its disk or for other ranks after %lld s\n", what_.c_str(), rank_,
                     seconds);
      }
      pause = passed;
    }
  }

  std::string what_;
  int rank_;
  std::chrono::milliseconds deadline_;
  std::atomic<std::int64_t> done_{0}, all_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread speaker_;  // last: it uses all of the above
};
