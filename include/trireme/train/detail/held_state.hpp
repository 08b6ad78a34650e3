#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trireme/train/state_shard.hpp"

namespace trireme::checkpoint::detail {

/// A copy of a rank's state at one step. The next copy reuses its memory.
///
/// Threads  the copy must have ended before another thread uses shards().
class held_state {
 public:
  void copy(std::span<state_shard const> shards) {
    shards_.clear();
    std::size_t bytes = 0;
    for (auto const& each : shards) bytes += padded(each.bytes());
    if (bytes > memory_.size()) memory_ = std::vector<std::byte>(bytes);
    std::size_t at = 0;
    for (auto const& each : shards) {
      std::span const to(memory_.data() + at, each.bytes());
      each.download(to);
      shards_.emplace_back(each, to);
      at += padded(each.bytes());
    }
  }
  [[nodiscard]] std::span<state_shard const> shards() const noexcept { return shards_; }

 private:
  static std::size_t padded(std::size_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

  std::vector<std::byte> memory_;
  std::vector<state_shard> shards_;
};

}  // namespace trireme::checkpoint::detail
