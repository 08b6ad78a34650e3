#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "trireme/comm/detail/collective_engine.hpp"
#include "trireme/comm/detail/expectations.hpp"
#include "trireme/comm/detail/kernels.hpp"
#include "trireme/comm/node/launch.hpp"
#include "trireme/comm/traffic.hpp"
#include "trireme/core/address.hpp"

namespace trireme::comm::detail {

/// From this size on, copied data does not stay in the caches anyway.
inline constexpr std::uint64_t streamed_bytes = 8 << 20;

/// Whether messages of this size are copied past the caches.
[[nodiscard]] inline bool is_streamed(element_kernels const* elements, std::uint64_t bytes) noexcept {
  return bytes >= streamed_bytes && elements != nullptr && elements->copy == &space_kernels<host>::copy;
}

/// Copies past the caches, so that the old contents of `to` are not read: a third less memory traffic.
inline void stream_copy(std::byte* to, std::byte const* from, std::size_t bytes) noexcept {
  if (to == from) return;
#if defined(__SSE2__)
  auto const skip = std::min<std::size_t>(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
  std::memmove(to, from, skip);
  std::size_t at = skip;
  for (; at + 64 <= bytes; at += 64)
    for (std::size_t part = at; part < at + 64; part += 16)
      _mm_stream_si128(static_cast<__m128i*>(static_cast<void*>(to + part)),
                       _mm_loadu_si128(static_cast<__m128i const*>(static_cast<void const*>(from + part))));
  std::memmove(to + at, from + at, bytes - at);
  _mm_sfence();
#else
  std::memmove(to, from, bytes);
#endif
}

/// The ranks of one communicator, as one of them sees it.
struct node_group {
  /// Messages to and from one rank: how many have been started, which numbers them, and how many are done.
  struct pair_state {
    std::uint64_t sends = 0, receives = 0;
    std::uint64_t sent = 0, received = 0;
  };

  std::shared_ptr<node_launch> launch;
  std::vector<int> members;  ///< their ranks in the launch, by rank in the group
  int rank = 0;
  std::chrono::milliseconds deadline{};
  std::vector<node_board*> boards;
  std::vector<node_header*> headers;

  std::uint64_t next = 1;      ///< the number of the next collective
  std::uint64_t posted = 0;    ///< the latest announced one; announcements have the order of the calls
  std::uint64_t decided = 0;   ///< the latest whose path has been chosen
  std::uint64_t reusable = 1;  ///< postings below it are free: every rank has finished with them
  std::uint64_t rounds = 0;    ///< rounds of the staged collectives decided so far
  std::array<std::uint64_t, node_board::ring> done{};
  /// Small broadcasts that this rank has finished as their root without waiting: the numbers of the latest ones, how
  /// many there were, and for how many the calls of all others have been compared since (check_eager()). Then the
  /// letters written so far, and the collective that last used each letter.
  std::array<std::uint64_t, node_board::ring> eager_numbers{};
  std::uint64_t eager_count = 0, eager_checked = 0;
  std::uint64_t eager_buffers = 0;
  std::array<std::uint64_t, node_board::eager_buffers> eager_buffer_use{};
  std::vector<pair_state> pairs;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members.size()); }
  [[nodiscard]] node_board& board(int of) const noexcept { return *boards[static_cast<std::size_t>(of)]; }
  [[nodiscard]] node_board& mine() const noexcept { return board(rank); }
  [[nodiscard]] int world_rank(int of) const noexcept { return members[static_cast<std::size_t>(of)]; }
  /// The address of an offset in another rank's memory.
  [[nodiscard]] std::byte* at(int of, std::uint64_t offset) const noexcept {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(launch->base(world_rank(of))) + offset);
  }
  /// The elements that rank `of` sends to each rank in a ragged all_to_all.
  [[nodiscard]] std::span<node_portion> portions(int of, std::uint64_t number) const noexcept {
    return {elements_at<node_portion>(board(of).more(number, size())), members.size()};
  }

  /// Wakes sleeping ranks. Called after every change that they may wait for.
  void ring() const noexcept {
    for (int each = 0; each < size(); ++each)
      if (each != rank) launch->ring(*headers[static_cast<std::size_t>(each)]);
  }
  [[nodiscard]] std::uint64_t lowest_unfinished() const noexcept {
    auto low = board(0).unfinished.load();
    for (int each = 1; each < size(); ++each) low = std::min(low, board(each).unfinished.load());
    return low;
  }
  /// This rank has finished collective `number`.
  void finish(std::uint64_t number, std::memory_order order = std::memory_order_release) noexcept {
    done[number % node_board::ring] = number;
    auto low = mine().unfinished.load(std::memory_order_relaxed);
    if (number != low) return;
    while (done[low % node_board::ring] == low) ++low;
    mine().unfinished.store(low, order);
  }
};

/// `count` elements from `first` on of the whole view that begins at `whole`.
struct node_segment {
  std::byte* whole = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// One rank's part in one collective or exchange. It only advances when it is called:
///   posting -> arriving -> finished                           by value, by letter, or if there are no elements
///                       -> sharing -> closing -> finished     directly in the memory of all
///                       -> staging -> finished                block by block through the staging slots
///   exchanging -> finished
struct node_operation final : collective_operation {
  enum class stage : std::uint8_t { posting, arriving, sharing, closing, staging, exchanging, finished };
  struct message {
    raw_transfer what;
    std::uint64_t number = 0;  ///< among those of its pair and direction
    std::uint64_t moved = 0;   ///< bytes
    std::uint64_t target = 0;  ///< of the channel's tail, when the receiver has everything
    enum class state : std::uint8_t { waiting, moving, closing, finished } at = state::waiting;
  };

  node_group* where = nullptr;
  command it;
  std::vector<std::int64_t> counts;         ///< the elements of it.counts
  std::vector<raw_transfer> raw_transfers;  ///< the elements of it.raw_transfers
  std::vector<message> messages;            ///< messages of an exchange
  std::uint64_t number = 0;
  std::atomic<stage> at{stage::finished};
  bool eager = false;  ///< a small broadcast: ranks wait for the root only, and the root does not wait
  bool checks_eager =
      false;  ///< another blocking call: waits until this rank has compared the calls of all earlier small broadcasts
  bool for_all = false;      ///< a broadcast in which each rank copies a slice for all
  bool streams = false;      ///< copies past the caches, because it is large
  int cursor = 0;            ///< ranks below it have been checked in the current stage
  std::int64_t moved = 0;    ///< of this rank's share of direct work: elements, of the rank at `cursor`
  std::int64_t chunk = 0;    ///< elements a round
  std::uint64_t base = 0;    ///< the number of the first round
  std::uint64_t behind = 0;  ///< a collective that all ranks must finish before this is posted
  std::uint64_t rounds = 0;
  std::uint32_t polls = 0;
  clock::time_point since{};
  clock::time_point next_look{};
  bool reported_late = false;
  node_operation* previous = nullptr;  ///< only for pending operations
  node_operation* next = nullptr;

  [[nodiscard]] bool finished() const noexcept { return at.load(std::memory_order_acquire) == stage::finished; }
  [[nodiscard]] stage now() const noexcept { return at.load(std::memory_order_relaxed); }
  void become(stage next_stage) noexcept { at.store(next_stage, std::memory_order_release); }
  [[nodiscard]] node_launch& launch() const noexcept { return *where->launch; }
  [[nodiscard]] node_posting& posting(int of) const noexcept { return where->board(of).at(number); }
  [[nodiscard]] call const& what() const noexcept { return it.what; }
  [[nodiscard]] bool touches() const noexcept { return it.elements == nullptr || !it.elements->phantom; }
  /// Whether the CPU may read and write its elements.
  [[nodiscard]] bool is_touchable() const noexcept { return it.elements == nullptr || it.elements->touchable; }
  [[nodiscard]] std::int64_t bytes(std::int64_t count) const noexcept {
    return count * static_cast<std::int64_t>(it.element_bytes);
  }
  [[nodiscard]] std::byte* from() const noexcept { return static_cast<std::byte*>(const_cast<void*>(it.from)); }
  [[nodiscard]] std::byte* to() const noexcept { return static_cast<std::byte*>(it.to); }
  [[nodiscard]] bool is_root() const noexcept { return where->rank == it.what.root; }
  [[nodiscard]] bool is_ragged() const noexcept { return it.what.shape != 0; }
};

[[nodiscard]] inline geometry geometry_of(node_operation const& op) noexcept {
  return {op.what(), op.it.element_bytes, op.where->size(), op.counts};
}
/// The move of a collective that only moves elements.
[[nodiscard]] inline move const& move_of(node_operation const& op) noexcept { return row_of(op.what().kind).moves[0]; }
[[nodiscard]] inline bool has_transfers(node_operation const& op) noexcept {
  return op.is_ragged() && op.what().kind == collective::all_to_all;
}

/// The view of a rank that the other ranks access, if they work directly. They read what a rank sends. But elements for
/// the root only are written into the root's memory by their senders; and a sum is written by the ranks that compute
/// its slices.
struct node_touched {
  bool from, to;
};
[[nodiscard]] inline node_touched touched(node_operation const& op) noexcept {
  auto const geometry = geometry_of(op);
  auto const& move = move_of(op);
  bool const for_one = move.receivers == side::root;
  return {geometry.gives(move, op.where->rank) && (move.folds || !for_one),
          geometry.takes(move, op.where->rank) && (for_one || (move.folds && geometry.of().into == cut::lines))};
}

/// The elements that this rank sends to `rank`, if the collective only moves elements.
[[nodiscard]] inline node_segment outgoing(node_operation const& op, int rank) noexcept {
  if (has_transfers(op)) {
    auto const& sent = op.raw_transfers[static_cast<std::size_t>(rank)];
    return {sent.address, 0, sent.count};
  }
  auto const given = geometry_of(op).given(move_of(op), op.where->rank, rank);
  return {op.from(), given.first, given.count};
}

/// Where this rank receives the elements of `rank`, if the collective only moves elements.
[[nodiscard]] inline node_segment incoming(node_operation const& op, int rank) noexcept {
  if (has_transfers(op)) {
    auto const& received = op.raw_transfers[static_cast<std::size_t>(op.where->size() + rank)];
    return {received.address, 0, received.count};
  }
  auto const taken = geometry_of(op).taken(move_of(op), rank, op.where->rank);
  return {op.to(), taken.first, taken.count};
}

/// Bytes of a rank's values if they travel with the announcement: the same number on every rank.
[[nodiscard]] inline std::int64_t value_bytes(node_operation const& op) noexcept {
  auto const given = move_of(op).given;
  if (given == region::whole) return op.bytes(op.what().count);
  auto const where = geometry_of(op);
  return op.bytes(given == region::of_sender ? where.largest() : where.all());
}

/// The number of elements, of `count`, that one step of direct work handles. In a process several threads take turns
/// between steps (node_driver), so steps are short: 1 MiB. A rank that is a thread does not share its driver.
[[nodiscard]] inline std::int64_t direct_step(node_operation const& op, std::int64_t count,
                                              std::size_t element_bytes) noexcept {
  if (op.launch().backend->one_process) return count;
  return std::min(count, static_cast<std::int64_t>((std::size_t{1} << 20) / element_bytes));
}

/// "all_reduce(F32, 4 elements, sum) number 12"
[[nodiscard]] inline std::string describe(node_operation const& op) {
  if (op.what().kind == collective::exchange) return to_string(op.what());
  return text(to_string(op.what()), " number ", op.number, to_string(op.what().label));
}

/// Copies elements [first, first + most) of a segment into `to`, as far as they exist; returns their number.
inline std::int64_t copied(node_operation const& op, node_segment const& to, std::byte const* from, std::int64_t first,
                           std::int64_t most) {
  auto const count = std::clamp<std::int64_t>(to.count - first, 0, most);
  if (count <= 0) return count;
  auto const bytes = static_cast<std::size_t>(op.bytes(count));
  auto* const at = to.whole + op.bytes(to.first + first);
  if (op.streams)
    stream_copy(at, from, bytes);
  else
    op.it.elements->copy(at, from, bytes);
  return count;
}

/// Runs `work`, which accesses memory of other ranks, and marks that in this rank's header meanwhile. False if the
/// launch has failed, because the others may then release their memory; or if `work` throws, as kernels of a device
/// may: that fails the launch.
template <class Work>
[[nodiscard]] bool work_inside(node_operation const& op, Work&& work) {
  auto& launch = op.launch();
  struct stay {
    std::atomic<std::uint32_t>& inside;
    explicit stay(std::atomic<std::uint32_t>& here) : inside(here) { inside.store(1); }
    stay(stay const&) = delete;
    stay& operator=(stay const&) = delete;
    ~stay() { inside.store(0, std::memory_order_release); }
  } const here(launch.mine().inside);
  bool done = false;
  if (!launch.failed()) {
    try {
      work();
      if (op.it.elements->complete != nullptr && op.where->size() > 1) op.it.elements->complete();
      done = true;
    } catch (std::exception const& problem) {
      launch.fail(
          text(launch.who, ": rank ", launch.rank, " could not do its share of ", describe(op), ": ", problem.what()));
    }
  }
  return done;
}

/// Prepares an operation from a command. Spans of the command are copied; nothing is announced yet.
inline void prepare(node_operation& op, node_group& where, command const& it) {
  if (it.elements != nullptr && it.elements->complete != nullptr && where.size() > 1)
    it.elements->complete();  // others may read it from now on; a rank alone goes on in the order of its queue
  op.where = &where;
  op.it = it;
  op.counts.assign(it.counts.begin(), it.counts.end());
  op.raw_transfers.assign(it.raw_transfers.begin(), it.raw_transfers.end());
  op.cursor = 0;
  op.moved = 0;
  op.rounds = 0;
  op.polls = 0;
  op.checks_eager = op.for_all = op.reported_late = false;
  op.since = op.next_look = {};
  if (it.what.kind == collective::exchange) {
    op.number = 0;
    op.messages.clear();
    for (auto const& each : op.raw_transfers) {
      auto& pair = where.pairs[static_cast<std::size_t>(each.peer)];
      op.messages.push_back({each, each.sent ? pair.sends++ : pair.receives++});
    }
    op.become(node_operation::stage::exchanging);
    return;
  }
  op.number = where.next++;
  op.it.what.by_value =
      op.is_touchable() && !has_transfers(op) && value_bytes(op) <= std::int64_t{node_board::value_bytes};
  op.eager = op.what().kind == collective::broadcast && op.is_touchable() && where.size() > 1 &&
             op.bytes(op.what().count) <= std::int64_t{node_board::eager_bytes};
  op.behind = 0;
  auto moves = op.bytes(it.what.count);
  for (auto const& each : op.raw_transfers) moves += op.bytes(each.count);
  op.streams = op.it.what.op == reduction_kind::none && is_streamed(it.elements, static_cast<std::uint64_t>(moves));
  op.become(node_operation::stage::posting);
}

}  // namespace trireme::comm::detail
