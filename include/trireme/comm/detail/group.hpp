#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/detail/channel.hpp"
#include "trireme/comm/detail/expectations.hpp"
#include "trireme/comm/detail/mailbox.hpp"
#include "trireme/comm/detail/team.hpp"

namespace trireme::comm::detail {

/// The ranks of one communicator, all threads of one team.
struct group {
  group(std::shared_ptr<team> whole, std::vector<int> ranks, std::chrono::milliseconds longest)
      : crew(std::move(whole)),
        members(std::move(ranks)),
        deadline(longest),
        boxes(new mailbox[members.size()]),
        channels(members.size() * members.size()) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members.size()); }
  [[nodiscard]] posting& at(int rank, std::uint64_t number) const noexcept {
    return boxes[static_cast<std::size_t>(rank)].at(number);
  }
  [[nodiscard]] std::uint64_t lowest_unfinished() const noexcept {
    auto low = boxes[0].unfinished();
    for (std::size_t rank = 1; rank < members.size(); ++rank) low = std::min(low, boxes[rank].unfinished());
    return low;
  }
  /// What goes from one rank to another in exchanges; made when first asked for.
  [[nodiscard]] channel& between(int from, int to) {
    auto& place = channels[static_cast<std::size_t>(from * size() + to)];
    if (auto* known = place.load(std::memory_order_acquire)) return *known;
    auto made = std::make_unique<channel>();
    channel* none = nullptr;
    if (place.compare_exchange_strong(none, made.get())) return *made.release();
    return *none;
  }
  ~group() {
    for (auto& each : channels) delete each.load();
  }
  group(group const&) = delete;
  group& operator=(group const&) = delete;

  std::shared_ptr<team> const crew;
  std::vector<int> const members;  ///< their ranks in the team, by rank in the group
  std::chrono::milliseconds const deadline;
  std::unique_ptr<mailbox[]> const boxes;
  std::vector<std::atomic<channel*>> channels;
};

/// A part of an exchange, and its number in its channel.
struct numbered_part {
  part what;
  std::uint64_t number = 0;
  bool done = false;
};

/// One rank's part in one collective. It advances when its owner asks, never by itself:
/// waiting for all to arrive -> this rank's share of the work -> waiting for the shares of all.
struct operation {
  enum class stage : std::uint8_t { arriving, sharing, finished };

  group* where = nullptr;
  std::uint64_t number = 0;
  call what;
  int rank = 0;
  int cursor = 0;  ///< ranks below it have been seen at the present stage
  stage at = stage::arriving;
  std::uint32_t polls = 0;
  element_kernels const* elements = nullptr;
  std::size_t element_bytes = 1;
  int divisor = 0;
  void const* from_ = nullptr;
  void* own = nullptr;                                                 ///< where this rank's results go
  void (*collect)(void* all, int rank, void const* theirs) = nullptr;  ///< peers and split: instead of a share
  std::span<std::int64_t const> counts;
  std::vector<numbered_part> transfers;  ///< of an exchange
  clock::time_point since{};
  bool told_late = false;

  // Asynchronous operations only:
  std::shared_ptr<group> keep;
  std::vector<std::int64_t> kept_counts;
  std::vector<part> kept_parts;
  operation* previous = nullptr;
  operation* next = nullptr;

  [[nodiscard]] team& crew() const noexcept { return *where->crew; }
  [[nodiscard]] rank_state& mine() const noexcept { return crew().ranks[static_cast<std::size_t>(world_rank(rank))]; }
  [[nodiscard]] int world_rank(int of) const noexcept { return where->members[static_cast<std::size_t>(of)]; }

  /// What `of` passed in: its own memory, or the copy that travelled with the announcement.
  [[nodiscard]] std::byte const* from(int of) const noexcept {
    auto const& theirs = where->at(of, number);
    return static_cast<std::byte const*>(what.by_value ? static_cast<void const*>(theirs.values) : theirs.memory.from);
  }
  [[nodiscard]] std::byte* to(int of) const noexcept {
    return static_cast<std::byte*>(where->at(of, number).memory.to);
  }
  [[nodiscard]] part const* parts(int of) const noexcept { return where->at(of, number).memory.parts; }
  [[nodiscard]] std::byte* result() const noexcept { return static_cast<std::byte*>(own); }

  /// As new, but with the memory of its lists.
  void reset() noexcept {
    auto a = std::move(transfers);
    auto b = std::move(kept_counts);
    auto c = std::move(kept_parts);
    a.clear();
    *this = operation{};
    transfers = std::move(a);
    kept_counts = std::move(b);
    kept_parts = std::move(c);
  }
};

/// "all_reduce(F32, 4 elements, sum) number 12"
[[nodiscard]] inline std::string describe(operation const& op) {
  if (op.what.kind == collective::exchange) return "exchange";
  return text(to_string(op.what), " number ", op.number);
}

/// Whether each rank sends what this one expects; if not, the team fails.
[[nodiscard]] inline bool parts_agree(operation const& op) {
  for (int rank = 0; rank < op.where->size(); ++rank) {
    auto const& sent = op.parts(rank)[op.rank];
    auto const& expected = op.parts(op.rank)[op.where->size() + rank];
    if (sent.count == expected.count) continue;
    op.crew().fail(op.world_rank(op.rank), differing_transfers("trireme::comm::threads", op.world_rank(rank), sent,
                                                               op.world_rank(op.rank), expected));
    return false;
  }
  return true;
}

/// Whether all ranks called the same; if not, the team fails.
[[nodiscard]] inline bool agreed(operation const& op) {
  for (int rank = 0; rank < op.where->size(); ++rank) {
    auto const& theirs = op.where->at(rank, op.number).what;
    if (theirs == op.what || !asserts(assertion_level::normal)) continue;
    auto const other = op.world_rank(rank);
    auto const self = op.world_rank(op.rank);
    op.crew().fail(self, other < self
                             ? differing_calls("trireme::comm::threads", op.number, other, theirs, self, op.what)
                             : differing_calls("trireme::comm::threads", op.number, self, op.what, other, theirs));
    return false;
  }
  return op.what.kind != collective::all_to_all || op.what.shape == 0 || parts_agree(op);
}

/// Runs `work`, which touches the memory of others. False if the team has failed, since somebody may be taking its
/// memory back then; and if the work throws, as that of a device may, which fails the team.
template <class Work>
bool work_inside(operation const& op, Work&& work) {
  auto& inside = op.mine().inside;
  inside.store(true);
  bool done = false;
  if (!op.crew().failed()) {
    try {
      work();
      done = true;
    } catch (std::exception const& problem) {
      op.crew().fail(op.world_rank(op.rank), text("trireme::comm::threads: rank ", op.world_rank(op.rank),
                                                  " could not do its share of ", describe(op), ": ", problem.what()));
    }
  }
  inside.store(false);
  return done;
}

/// Copies what has come, unless a send and its receive differ; then the team fails.
inline bool advance_exchange(operation& op) {
  bool all = true;
  for (auto& each : op.transfers) {
    if (each.done) continue;
    auto const peer = each.what.peer;
    auto& way = each.what.sent ? op.where->between(op.rank, peer) : op.where->between(peer, op.rank);
    if (each.what.sent) {
      each.done = way.taken(each.number);
    } else if (part send; way.find(each.number, send)) {
      if (send.type != each.what.type || send.count != each.what.count) {
        op.crew().fail(op.world_rank(op.rank), differing_transfers("trireme::comm::threads", op.world_rank(peer), send,
                                                                   op.world_rank(op.rank), each.what));
        return false;
      }
      auto const copied = work_inside(op, [&] {
        op.elements->copy(each.what.address, send.address, static_cast<std::size_t>(send.count) * size_of(send.type));
        if (op.elements->complete != nullptr) op.elements->complete();
      });
      if (!copied) return false;
      way.take(each.number);
      op.crew().ring();
      each.done = true;
    }
    all = all && each.done;
  }
  if (all) op.at = operation::stage::finished;
  return all;
}

}  // namespace trireme::comm::detail
