#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/text.hpp"
#include "trireme/core/trace_event.hpp"

namespace trireme::observe {

/// The activities of one rank: named spans of time, in lanes.
///
/// Recording writes into a block of fixed size and allocates nothing; when the block is full, further events are
/// counted and dropped. A timeline of capacity 0 is off: its spans do not even read the clock.
///
/// Bytes    48 per event of capacity.
/// Threads  record(), span and now() from any number of threads; everything else while none of them records.
class timeline {
 public:
  /// Records from its construction to its destruction.
  class [[nodiscard]] span {
   public:
    span(timeline& to, std::string_view name, std::string_view category = {}, std::uint32_t track = 0) noexcept
        : to_(to.capacity() == 0 ? nullptr : &to), event_{name, category, to_ == nullptr ? 0 : now(), 0, track} {}
    span(span const&) = delete;
    span& operator=(span const&) = delete;
    ~span() {
      if (to_ == nullptr) return;
      event_.end_ns = now();
      to_->record(event_);
    }

   private:
    timeline* to_;
    trace_event event_;
  };

  timeline() = default;
  explicit timeline(int rank, std::size_t capacity = std::size_t{1} << 16,
                    std::vector<std::string> tracks = {"compute", "exchange"})
      : rank_(rank), tracks_(std::move(tracks)), events_(capacity) {}
  timeline(timeline const&) = delete;
  timeline& operator=(timeline const&) = delete;

  /// Nanoseconds of the steady clock.
  [[nodiscard]] static std::uint64_t now() noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }

  /// Adds an event. Its names must outlive the timeline: literals, or what intern() returned.
  void record(trace_event const& what) noexcept {
    auto const place = next_.fetch_add(1, std::memory_order_relaxed);
    if (place < events_.size()) events_[place] = what;
  }

  /// A copy of a name that lives as long as the timeline; the same copy for the same name. Allocates: call it before
  /// the steps begin.
  [[nodiscard]] std::string_view intern(std::string_view name) {
    auto const known = std::find(names_.begin(), names_.end(), name);
    return known != names_.end() ? *known : names_.emplace_back(name);
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return events_.size(); }
  /// The number of events that were dropped because the block was full.
  [[nodiscard]] std::size_t dropped() const noexcept { return next_.load() - events().size(); }
  /// The events, in the order in which they ended.
  [[nodiscard]] std::span<trace_event const> events() const noexcept {
    return {events_.data(), std::min(next_.load(), events_.size())};
  }
  /// Removes all events and keeps the memory.
  void clear() noexcept { next_ = 0; }

  /// The content of a trace file; borrows the events.
  [[nodiscard]] trace_process process() const { return {rank_, text("rank ", rank_), tracks_, events()}; }

 private:
  int rank_ = 0;
  std::vector<std::string> tracks_;
  std::vector<trace_event> events_;
  std::deque<std::string> names_;  // a deque, because growing it moves no name
  std::atomic<std::size_t> next_{0};
};

/// The timelines of several ranks side by side, for formats::chrome_trace::write.
[[nodiscard]] inline std::vector<trace_process> merge(std::span<timeline const* const> ranks) {
  std::vector<trace_process> out;
  for (auto const* each : ranks) out.push_back(each->process());
  std::sort(out.begin(), out.end(), [](trace_process const& a, trace_process const& b) { return a.rank < b.rank; });
  return out;
}

}  // namespace trireme::observe

#include "trireme/observe/detail/timeline_pack.hpp"
