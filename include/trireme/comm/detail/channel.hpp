#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "trireme/comm/command.hpp"

namespace trireme::comm::detail {

/// The sends of exchanges from one rank to another, in the order in which they were started. The receiver copies
/// straight from the sender's memory, and then counts the send as taken.
class alignas(64) channel {
 public:
  /// Sender: appends a send and returns its number.
  [[nodiscard]] std::uint64_t post(part const& send) {
    std::lock_guard const lock(mutex_);
    if (posted_ - first_ == ring_.size()) grow();
    ring_[posted_ % ring_.size()] = {send, false};
    return posted_++;
  }
  /// Receiver: the number of the next receive.
  [[nodiscard]] std::uint64_t expect() noexcept { return expected_++; }

  /// Receiver: send `number`, if it is there.
  [[nodiscard]] bool find(std::uint64_t number, part& send) {
    std::lock_guard const lock(mutex_);
    if (number >= posted_) return false;
    send = ring_[number % ring_.size()].send;
    return true;
  }
  /// Receiver: its elements have been copied.
  void take(std::uint64_t number) {
    std::lock_guard const lock(mutex_);
    ring_[number % ring_.size()].taken = true;
    while (first_ < posted_ && ring_[first_ % ring_.size()].taken) ++first_;
    taken_.store(first_, std::memory_order_release);
  }
  /// Sender: whether send `number`, and all before it, have been taken.
  [[nodiscard]] bool taken(std::uint64_t number) const noexcept {
    return taken_.load(std::memory_order_acquire) > number;
  }

 private:
  struct entry {
    part send;
    bool taken = false;
  };
  void grow() {
    std::vector<entry> larger(ring_.empty() ? 8 : 2 * ring_.size());
    for (auto i = first_; i < posted_; ++i) larger[i % larger.size()] = ring_[i % ring_.size()];
    ring_.swap(larger);
  }

  std::mutex mutex_;
  std::vector<entry> ring_;
  std::uint64_t first_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t expected_ = 0;  // the receiver's own
  std::atomic<std::uint64_t> taken_{0};
};

}  // namespace trireme::comm::detail
