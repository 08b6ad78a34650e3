#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "trireme/comm/command.hpp"

namespace trireme::comm::detail {

/// One rank's announcement of one collective: one cache line, written by that rank alone.
struct alignas(64) posting {
  static constexpr std::size_t value_bytes = 32;
  struct buffers {
    void const* from;
    void* to;
    part const* parts;
  };

  /// number * 4 + (1: arrived, 2: this rank's share is done)
  std::atomic<std::uint64_t> word{0};
  call what;
  union {
    buffers memory;
    std::byte values[value_bytes];
  };
  posting() noexcept : memory{} {}

  void copy_from(posting const& other) noexcept {
    what = other.what;
    std::memcpy(values, other.values, value_bytes);
    word.store(other.word.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
};

[[nodiscard]] constexpr std::uint64_t arrived_word(std::uint64_t number) noexcept { return number * 4 + 1; }
[[nodiscard]] constexpr std::uint64_t done_word(std::uint64_t number) noexcept { return number * 4 + 2; }

/// The announcements of one rank of one group, in a ring that doubles when more are in flight than it holds.
///
/// One writer, many readers. A ring that has been replaced stays readable until the group ends, so readers need no
/// lock: they load the address of the ring each time they look.
class alignas(64) mailbox {
 public:
  mailbox() { replace_ring(64); }

  /// The announcement of collective `number`, or an older one that used its place.
  [[nodiscard]] posting& at(std::uint64_t number) const noexcept {
    auto const* const now = current_.load(std::memory_order_acquire);
    return now->postings[number & now->mask];
  }
  /// The lowest number that this rank has not finished.
  [[nodiscard]] std::uint64_t unfinished() const noexcept { return unfinished_.load(std::memory_order_acquire); }

  /// Owner: the number of the next collective, whose place is free once this returns. `lowest()` gives the lowest
  /// number that any rank of the group has not finished.
  template <class Lowest>
  [[nodiscard]] std::uint64_t claim(Lowest&& lowest) {
    auto const number = next_++;
    auto const capacity = rings_.back()->mask + 1;
    if (number >= reusable_ + capacity) {
      reusable_ = lowest();
      if (number >= reusable_ + capacity) replace_ring(2 * capacity);
    }
    return number;
  }
  /// Owner: `number` is finished, here.
  void finish(std::uint64_t number) noexcept {
    auto& now = *rings_.back();
    now.finished[number & now.mask] = number;
    auto low = unfinished_.load(std::memory_order_relaxed);
    if (number != low) return;
    while (now.finished[low & now.mask] == low) ++low;
    unfinished_.store(low, std::memory_order_release);
  }

 private:
  struct ring {
    explicit ring(std::uint64_t capacity)
        : mask(capacity - 1), postings(new posting[capacity]), finished(new std::uint64_t[capacity]()) {}
    std::uint64_t const mask;
    std::unique_ptr<posting[]> const postings;
    std::unique_ptr<std::uint64_t[]> const finished;
  };

  void replace_ring(std::uint64_t capacity) {
    auto grown = std::make_unique<ring>(capacity);
    if (!rings_.empty()) {
      auto const& old = *rings_.back();
      for (std::uint64_t i = 0; i <= old.mask; ++i) {
        auto const number = old.postings[i].word.load(std::memory_order_relaxed) / 4;
        grown->postings[number & grown->mask].copy_from(old.postings[i]);
        grown->finished[old.finished[i] & grown->mask] = old.finished[i];
      }
    }
    current_.store(grown.get(), std::memory_order_release);
    rings_.push_back(std::move(grown));
  }

  std::atomic<ring*> current_{nullptr};
  alignas(64) std::atomic<std::uint64_t> unfinished_{1};
  alignas(64) std::uint64_t next_ = 1;
  std::uint64_t reusable_ = 1;
  std::vector<std::unique_ptr<ring>> rings_;
};

}  // namespace trireme::comm::detail
