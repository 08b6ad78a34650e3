// Trireme 0.1.0: trireme/comm/counted.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 0d5341c00ab13dabbf49f759b5babbd9a8b3d6f29032c8ec28925b2e28e25505
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/decorate.hpp"

// ---- trireme/comm/counted.hpp
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::comm {

template <communicator Inner>
class counted_world;

/// Decorator: counts the messages and bytes that a rank sends, by operation and by peer.
struct counted {
  using is_decorator_description = void;
  template <class Inner>
  using world = counted_world<Inner>;

  friend bool operator==(counted const&, counted const&) = default;
};

[[nodiscard]] inline std::string to_string(counted const&) { return "comm::counted{}"; }

/// What one rank has sent; see counted_world::counts.
struct traffic_table {
  struct row {
    std::uint64_t calls = 0;  ///< for a peer: calls that sent something to it
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
    friend bool operator==(row const&, row const&) = default;
  };
  int rank = 0;
  row by_operation[collective_kinds];
  std::vector<row> by_peer;  ///< by rank in the world that was decorated
  friend bool operator==(traffic_table const&, traffic_table const&) = default;

  [[nodiscard]] row const& operator[](collective kind) const noexcept {
    return by_operation[static_cast<std::size_t>(kind)];
  }
};

/// The table as lines of "rank 0 all_reduce: 3 calls, 3 messages, 12288 bytes"; without operations that were not called
/// and peers that received nothing.
[[nodiscard]] inline std::string to_string(traffic_table const& it) {
  std::string out;
  auto const line = [&](std::string_view what, traffic_table::row const& each) {
    if (each.calls == 0) return;
    out += text("rank ", it.rank, " ", what, ": ", how_many(each.calls, "call"), ", ",
                how_many(each.messages, "message"), ", ", how_many(each.bytes, "byte"), "\n");
  };
  for (int kind = 0; kind < collective_kinds; ++kind)
    line(name_of(static_cast<collective>(kind)), it.by_operation[kind]);
  for (std::size_t peer = 0; peer < it.by_peer.size(); ++peer) line(text("to rank ", peer), it.by_peer[peer]);
  return out;
}

/// A world that counts by operation and by peer.
///
/// Bytes    by the formulas of comm::bytes_sent: the two halves of the table add up to traffic().
/// Threads  one caller; counts() may be read by any thread.
/// @models  communicator, and every capability that Inner has.
template <communicator Inner>
class counted_world : public detail::decorator<counted_world<Inner>, Inner> {
  using base = detail::decorator<counted_world, Inner>;

 public:
  static constexpr std::string_view name = "counted";

  explicit counted_world(Inner inner, counted const& = {})
      : base(std::move(inner)), sums_(std::make_shared<sums>(this->rank(), this->size())) {}
  counted_world(Inner inner, counted_world const& parent, detail::descent how, int /*color*/)
      : base(std::move(inner), parent, how), sums_(parent.sums_) {}

  /// What this rank has sent so far, in this world and in all that were split off or duplicated from it.
  [[nodiscard]] traffic_table counts() const {
    traffic_table out{.rank = sums_->rank, .by_operation = {}, .by_peer = {}};
    for (std::size_t kind = 0; kind < collective_kinds; ++kind) out.by_operation[kind] = sums_->rows[kind].read();
    for (std::size_t at = collective_kinds; at < sums_->rows.size(); ++at)
      out.by_peer.push_back(sums_->rows[at].read());
    return out;
  }

  template <class F>
  decltype(auto) around(command const& it, F&& f) {
    sums_->rows[static_cast<std::size_t>(it.what.kind)].add(it.messages, it.bytes);
    for (int peer = 0; peer < this->size(); ++peer) {
      if (peer == this->rank()) continue;
      auto const moved = detail::traffic_with(peer, it, this->rank(), this->size());
      if (moved.messages == 0) continue;
      sums_->rows[static_cast<std::size_t>(collective_kinds + this->name_of_rank(peer))].add(moved.messages,
                                                                                             moved.sent);
    }
    return f();
  }

 private:
  struct sum {
    std::atomic<std::uint64_t> calls{0}, messages{0}, bytes{0};
    void add(std::uint64_t more_messages, std::uint64_t more_bytes) noexcept {
      calls.fetch_add(1, std::memory_order_relaxed);
      messages.fetch_add(more_messages, std::memory_order_relaxed);
      bytes.fetch_add(more_bytes, std::memory_order_relaxed);
    }
    [[nodiscard]] traffic_table::row read() const noexcept { return {calls.load(), messages.load(), bytes.load()}; }
  };
  struct sums {
    sums(int own, int size) : rank(own), rows(static_cast<std::size_t>(collective_kinds + size)) {}
    int const rank;
    std::vector<sum> rows;  ///< of operations, then of peers
  };

  std::shared_ptr<sums> sums_;
};

}  // namespace trireme::comm
