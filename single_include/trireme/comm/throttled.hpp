// Trireme 0.1.0: trireme/comm/throttled.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: f82a103d4180134e57296c0e72bd2556785ca38efbdd0bc44e5b99798771574e
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/decorate.hpp"

// ---- trireme/comm/throttled.hpp
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::comm {

/// The cost of a message between two ranks.
struct link {
  std::chrono::nanoseconds latency = std::chrono::microseconds(50);
  double bytes_per_second = 125e6;  ///< 1 Gbit/s
  friend bool operator==(link const&, link const&) = default;
};

[[nodiscard]] inline std::string to_string(link const& it) {
  return text("{.latency = ", it.latency.count(), "ns, .bytes_per_second = ", it.bytes_per_second, "}");
}

template <communicator Inner>
class throttled_world;

/// Decorator: makes commands take as long as on a slow network, to study such a network in one process.
///
/// `links`, if given, has a link for each pair of ranks, row by row: links[from * size + to]. Otherwise all links are
/// `.every`.
///
/// Errors  config_error if a latency is negative, a bandwidth is not positive, or `links` is not size() * size() long.
struct throttled {
  using is_decorator_description = void;
  template <class Inner>
  using world = throttled_world<Inner>;

  link every{};
  std::vector<link> links{};

  friend bool operator==(throttled const&, throttled const&) = default;
};

[[nodiscard]] inline std::string to_string(throttled const& it) {
  std::string out = text("comm::throttled{.every = ", to_string(it.every));
  for (std::size_t i = 0; i < it.links.size(); ++i) out += text(i == 0 ? ", .links = {" : ", ", to_string(it.links[i]));
  return out + (it.links.empty() ? "}" : "}}");
}

/// A pending command of a throttled world: done when the command is done and its modelled time has passed.
///
/// Threads  as the request below.   Errors  as the request below.
template <communication_request Inner>
class throttled_request {
 public:
  throttled_request() = default;
  throttled_request(Inner pending, std::chrono::steady_clock::time_point due) noexcept
      : pending_(std::move(pending)), due_(due) {}
  throttled_request(throttled_request&&) = default;
  throttled_request& operator=(throttled_request&&) = default;
  ~throttled_request() = default;

  [[nodiscard]] bool test() { return pending_.test() && std::chrono::steady_clock::now() >= due_; }
  void wait() {
    pending_.wait();
    std::this_thread::sleep_until(due_);
  }

 private:
  Inner pending_;
  std::chrono::steady_clock::time_point due_{};
};

/// A world whose commands take at least the time that a model of its links predicts; waiting sleeps.
///
/// Let sent(q) and received(q) be the bytes between this rank and rank q in a command, which comm::bytes_sent and
/// traffic() add up (all_reduce: its slice and q's, each way; reduce_scatter, all_gather, all_to_all: a slice each way;
/// broadcast: from each rank to the next; scatter: from the root; reduce, gather: to the root; exchange: its parts).
/// A command
///   occupies the rank's link for  max(sum of sent(q) / bandwidth(to q), sum of received(q) / bandwidth(from q)),
///                                 after the commands that already occupy it; sending and receiving overlap;
///   then ends after               rounds * the largest latency to or from a q that takes part;
///   rounds                        comm::latencies_of, which plans count, too: ceil(log2(size())), twice that in an
///                                 all_reduce of middle size; 1 in an exchange, 0 for one rank, and for a rank that has
///                                 no message in an exchange.
/// Time runs from the rank's own start of the command, so requests overlap with computing and queue behind each other.
/// Splits and duplicates share the link of their rank.
///
/// Threads  one caller a rank; the worlds of one rank may be used by several threads.
/// Errors   as Inner. If the model is slower than the deadline of Inner, a rank that waits for a rank that is still
///          sending ends with the error of that deadline.
///          ends with the error of that deadline.
/// @models  communicator, and every capability that Inner has.
template <communicator Inner>
class throttled_world : public detail::decorator<throttled_world<Inner>, Inner> {
  using base = detail::decorator<throttled_world, Inner>;
  using clock = std::chrono::steady_clock;

 public:
  using request = throttled_request<typename base::request>;
  static constexpr std::string_view name = "throttled";

  explicit throttled_world(Inner inner, throttled how = {})
      : base(std::move(inner)), line_(std::make_shared<line>(std::move(how), this->size())) {
    check();
  }
  throttled_world(Inner inner, throttled_world const& parent, detail::descent how, int /*color*/)
      : base(std::move(inner), parent, how), line_(parent.line_) {}

  [[nodiscard]] request start(command const& it) {
    auto const due = due_of(it);
    return {this->inner().submit(it), due};
  }
  template <class F>
  auto around(command const& it, F&& f) {
    auto const due = due_of(it);
    if constexpr (std::is_void_v<decltype(f())>) {
      f();
      std::this_thread::sleep_until(due);
    } else {
      auto result = f();
      std::this_thread::sleep_until(due);
      return result;
    }
  }

 private:
  struct line {
    line(throttled model, int ranks) : how(std::move(model)), size(ranks) {}
    throttled const how;
    int const size;
    std::atomic<clock::rep> busy_until{0};
  };

  [[nodiscard]] link const& between(int from, int to) const noexcept {
    if (line_->how.links.empty()) return line_->how.every;
    auto const row = static_cast<std::size_t>(this->name_of_rank(from)) * static_cast<std::size_t>(line_->size);
    return line_->how.links[row + static_cast<std::size_t>(this->name_of_rank(to))];
  }

  /// Reserves the link, and returns when the command may end.
  [[nodiscard]] clock::time_point due_of(command const& it) {
    auto const now = clock::now();
    auto const rounds = latencies_of(it, this->size());
    if (rounds == 0) return now;
    double out = 0;
    double in = 0;
    std::chrono::nanoseconds latency{0};
    for (int peer = 0; peer < this->size(); ++peer) {
      if (peer == this->rank()) continue;
      auto const& to = between(this->rank(), peer);
      auto const& from = between(peer, this->rank());
      auto const moved = detail::traffic_with(peer, it, this->rank(), this->size());
      out += static_cast<double>(moved.sent) / to.bytes_per_second;
      in += static_cast<double>(moved.received) / from.bytes_per_second;
      // A barrier, or a command without bytes: it still synchronises.
      bool const synchronises = it.bytes == 0 && it.what.kind != collective::exchange;
      if (moved.sent > 0 || synchronises) latency = std::max(latency, to.latency);
      if (moved.received > 0 || synchronises) latency = std::max(latency, from.latency);
    }
    auto const occupied =
        std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(std::max(out, in))).count();
    auto free_at = line_->busy_until.load();
    clock::rep end = 0;
    do {
      end = std::max(free_at, now.time_since_epoch().count()) + occupied;
    } while (occupied > 0 && !line_->busy_until.compare_exchange_weak(free_at, end));
    return clock::time_point(clock::duration(end)) + rounds * latency;
  }

  void check() const {
    auto const right = [](link const& each) { return each.latency.count() >= 0 && each.bytes_per_second > 0; };
    if (!right(line_->how.every) || !std::ranges::all_of(line_->how.links, right))
      throw config_error(
          "trireme::comm::throttled: a link has a negative latency or a bandwidth that is not positive; "
          "give each a .latency >= 0ns and a .bytes_per_second > 0");
    auto const pairs = static_cast<std::size_t>(line_->size) * static_cast<std::size_t>(line_->size);
    if (!line_->how.links.empty() && line_->how.links.size() != pairs)
      throw config_error(text("trireme::comm::throttled: .links has ", how_many(line_->how.links.size(), "link"),
                              ", but ", how_many(line_->size, "rank"), agreeing(line_->size, " needs ", " need "),
                              pairs, "; give one for each pair, links[from * ", line_->size, " + to]"));
    if (!line_->how.links.empty() && !has_all_gather<detail::undecorated_t<Inner>, std::int32_t, host>)
      throw config_error(
          "trireme::comm::throttled: .links needs a communicator that gathers in host memory; use .every");
  }

  std::shared_ptr<line> line_;
};

}  // namespace trireme::comm
