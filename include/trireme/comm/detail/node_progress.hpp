#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "trireme/comm/detail/node_exchange.hpp"
#include "trireme/comm/detail/node_paths.hpp"
#include "trireme/comm/late.hpp"

namespace trireme::comm::detail {

enum class node_outcome : std::uint8_t { stuck, moved, finished };

/// Says to the other ranks, and to itself, that this one works in memory that is not its own; not after a failure.
class node_presence {
 public:
  explicit node_presence(node_launch& launch) noexcept : launch_(launch) {
    launch.mine().inside.store(1);
    allowed = !launch.failed();
  }
  node_presence(node_presence const&) = delete;
  node_presence& operator=(node_presence const&) = delete;
  ~node_presence() { launch_.mine().inside.store(0); }
  bool allowed = false;

 private:
  node_launch& launch_;
};

/// Whether the others may work in what this rank passes in, as far as that matters to the collective.
[[nodiscard]] inline std::uint32_t reach_of(node_operation const& op) noexcept {
  if (!op.touches()) return node_posting::reachable | node_posting::untouchable;
  auto const& heap = op.launch().heap;
  auto const holds = [&](void const* address, std::int64_t count) {
    return count == 0 || heap.contains(address, static_cast<std::size_t>(op.bytes(count)));
  };
  auto const count = op.what().count;
  auto const whole = count * op.where->size();
  auto const reachable = [&]() -> bool {
    switch (op.what().kind) {
      case collective::all_reduce:
        return holds(op.it.from, count) && holds(op.it.to, count);
      case collective::reduce:
        return holds(op.it.from, count) && (!op.is_root() || holds(op.it.to, count));
      case collective::gather:
        return !op.is_root() || holds(op.it.to, whole);
      case collective::scatter:
        return !op.is_root() || holds(op.it.from, whole);
      case collective::broadcast:
        return !op.is_root() || holds(op.it.from, count);
      case collective::all_to_all: {
        std::int64_t sum = count;
        for (int rank = 0; op.is_ragged() && rank < op.where->size(); ++rank)
          sum += op.parts[static_cast<std::size_t>(rank)].count;
        return holds(op.it.from, sum);
      }
      default:
        return holds(op.it.from, count);
    }
  };
  bool const writable = op.what().kind == collective::broadcast && holds(op.is_root() ? op.it.from : op.it.to, count);
  return (reachable() ? node_posting::reachable : 0U) | (writable ? node_posting::writable : 0U);
}

/// Whether this rank's slot for a round is free, and what has to be reduced before has been.
[[nodiscard]] inline bool may_fill(node_operation const& op, std::uint64_t round) noexcept {
  if (!combines(op) && op.where->mine().combined.load(std::memory_order_relaxed) != round) return false;
  for (int rank = 0; rank < op.where->size(); ++rank)
    if (op.where->board(rank).drained.load() + node_board::slots <= round) return false;
  return true;
}
inline void fill_round(node_operation const& op, std::uint64_t round) {
  fill_slot(op, round);
  auto& mine = op.where->mine();
  if (!combines(op)) mine.combined.store(op.base + round + 1);  // there is nothing to reduce
  mine.filled.store(op.base + round + 1);
}

/// Announces the collective; false while its posting is still in use for an earlier one.
inline bool post(node_operation& op) {
  auto& where = *op.where;
  if (op.number >= where.reusable + node_board::ring) {
    where.reusable = where.lowest_unfinished();
    if (op.number >= where.reusable + node_board::ring) return false;
  }
  auto& posting = where.mine().at(op.number);
  posting.what = op.it.what;
  if (op.by_value) {
    give_values(op);
  } else {
    auto const flags = reach_of(op);
    posting.memory = {op.launch().offset(op.it.from), op.launch().offset(op.it.to), flags};
    bool const ragged_pairs = op.what().kind == collective::all_to_all && op.is_ragged();
    if (ragged_pairs)
      for (int rank = 0; rank < where.size(); ++rank)
        reinterpret_cast<std::int64_t*>(posting.more)[rank] = op.parts[static_cast<std::size_t>(rank)].count;
    op.chunk = staged_chunk(op);
    // If it is going to be staged for sure, the first piece goes with the announcement.
    if ((flags & node_posting::reachable) == 0 && !ragged_pairs && where.decided + 1 == op.number &&
        where.mine().filled.load(std::memory_order_relaxed) == where.rounds && may_fill(op, where.rounds)) {
      op.base = where.rounds;
      fill_round(op, 0);
    }
  }
  posting.word.store(node_arrived(op.number));
  where.ring();
  op.become(node_operation::stage::arriving);
  return true;
}

/// Whether `rank` called the same; if not, the launch fails.
[[nodiscard]] inline bool agrees(node_operation const& op, int rank) {
  auto const& theirs = op.posting(rank).what;
  if (theirs == op.it.what || !asserts(assertion_level::normal)) return true;
  auto const other = op.where->world_rank(rank);
  auto const self = op.where->world_rank(op.where->rank);
  auto& launch = op.launch();
  launch.fail(other < self ? differing_calls(launch.who, op.number, other, theirs, self, op.it.what)
                           : differing_calls(launch.who, op.number, self, op.it.what, other, theirs));
  return false;
}

inline node_outcome finish(node_operation& op) noexcept {
  op.where->finish(op.number);
  op.become(node_operation::stage::finished);
  return node_outcome::finished;
}

/// All ranks have arrived: from their postings each of them sees how the work is done.
inline node_outcome decide(node_operation& op) {
  using enum node_operation::stage;
  auto& where = *op.where;
  if (where.decided + 1 != op.number) return node_outcome::stuck;
  op.cursor = 0;
  if (op.by_value) {
    take_values(op);
    ++where.decided;
    return finish(op);
  }
  auto flags = ~std::uint32_t{0};
  bool untouchable = false;
  for (int rank = 0; rank < where.size(); ++rank) {
    flags &= op.posting(rank).memory.flags;
    untouchable = untouchable || (op.posting(rank).memory.flags & node_posting::untouchable) != 0;
  }
  if (untouchable) {
    ++where.decided;
    return finish(op);
  }
  if (op.what().kind == collective::all_to_all && op.is_ragged() && !counts_agree(op)) return node_outcome::stuck;
  ++where.decided;
  if ((flags & node_posting::reachable) != 0) {
    op.for_all = (flags & node_posting::writable) != 0;
    op.become(sharing);
    return node_outcome::moved;
  }
  op.rounds = staged_rounds(op);
  op.base = where.rounds;
  where.rounds += op.rounds;
  if (op.rounds == 0) return finish(op);
  op.become(staging);
  return node_outcome::moved;
}

/// Whether a rank must stay until the others have done their share: not if nobody works in its memory.
[[nodiscard]] inline bool must_stay(node_operation const& op) noexcept {
  bool const rooted = op.what().root >= 0 && op.what().kind != collective::reduce && !op.for_all;
  return !rooted || op.is_root();
}

inline node_outcome share(node_operation& op) {
  auto& launch = op.launch();
  bool over = false;
  {
    node_presence const inside(launch);
    if (!inside.allowed) return node_outcome::stuck;
    over = work_directly(op);
  }
  if (!over) return node_outcome::moved;
  op.posting(op.where->rank).word.store(node_shared(op.number));
  op.where->ring();
  if (!must_stay(op)) return finish(op);
  op.cursor = 0;
  op.become(node_operation::stage::closing);
  return node_outcome::moved;
}

/// One step of one round: copies out what is ready first, so that pieces are still in the cache.
inline node_outcome stage_round(node_operation& op) {
  auto& where = *op.where;
  auto& mine = where.mine();
  auto const round_of = [&](std::atomic<std::uint64_t> const& done) {
    return done.load(std::memory_order_relaxed) - op.base;
  };
  auto const all_have = [&](std::atomic<std::uint64_t> node_board::*done, std::uint64_t round) {
    for (int rank = 0; rank < where.size(); ++rank)
      if ((where.board(rank).*done).load() <= op.base + round) return false;
    return true;
  };
  auto const said = [&](std::atomic<std::uint64_t>& done, std::uint64_t round) {
    done.store(op.base + round + 1);
    where.ring();
    return node_outcome::moved;
  };
  auto const drained = round_of(mine.drained);
  auto const combined = round_of(mine.combined);
  auto const filled = round_of(mine.filled);
  auto const last = op.rounds;
  if (drained < last && drained < combined && all_have(&node_board::combined, drained)) {
    drain_slots(op, drained);
    auto const out = said(mine.drained, drained);
    return drained + 1 == last ? finish(op) : out;
  }
  if (combined < last && combined < filled && all_have(&node_board::filled, combined)) {
    combine_slots(op, combined);
    return said(mine.combined, combined);
  }
  if (filled < last && may_fill(op, op.base + filled)) {
    fill_round(op, filled);
    where.ring();
    return node_outcome::moved;
  }
  return node_outcome::stuck;
}

/// Makes some of the progress that is possible now.
inline node_outcome advance(node_operation& op) {
  using enum node_operation::stage;
  auto& where = *op.where;
  switch (op.now()) {
    case posting:
      if (!post(op)) return node_outcome::stuck;
      [[fallthrough]];
    case arriving:
      for (; op.cursor < where.size(); ++op.cursor)
        if (op.posting(op.cursor).word.load() < node_arrived(op.number) || !agrees(op, op.cursor))
          return node_outcome::stuck;
      return decide(op);
    case sharing:
      return share(op);
    case closing:
      for (; op.cursor < where.size(); ++op.cursor)
        if (op.posting(op.cursor).word.load() < node_shared(op.number)) return node_outcome::stuck;
      return finish(op);
    case staging:
      return stage_round(op);
    case exchanging:
      if (!exchange_step(op)) return node_outcome::stuck;
      return op.finished() ? node_outcome::finished : node_outcome::moved;
    default:
      return node_outcome::finished;
  }
}

/// Whether `rank` is somebody whom `op` waits for.
[[nodiscard]] inline bool awaits(node_operation const& op, int rank) noexcept {
  using enum node_operation::stage;
  auto const& board = op.where->board(rank);
  switch (op.now()) {
    case posting:
      return board.unfinished.load() + node_board::ring <= op.number;
    case arriving:
      return op.posting(rank).word.load() < node_arrived(op.number);
    case closing:
      return op.posting(rank).word.load() < node_shared(op.number);
    case staging: {
      auto const& mine = op.where->mine();
      return board.filled.load() <= mine.combined.load() || board.combined.load() <= mine.drained.load() ||
             board.drained.load() + node_board::slots <= mine.filled.load();
    }
    case exchanging:
      return std::ranges::any_of(op.messages,
                                 [&](auto const& each) { return each.what.peer == rank && awaits(op, each); });
    default:
      return false;
  }
}

/// "rank 1" or "ranks 1, 3": those that `op` waits for and that are `such`, by their ranks in the launch.
template <class Such>
[[nodiscard]] std::string awaited_ranks(node_operation const& op, Such&& such) {
  std::string out;
  int count = 0;
  for (int rank = 0; rank < op.where->size(); ++rank) {
    // Such first: a rank that has left or died has announced everything it ever will.
    if (rank == op.where->rank || !such(rank) || !awaits(op, rank)) continue;
    out += text(count++ == 0 ? "" : ", ", op.where->world_rank(rank));
  }
  return count == 0 ? out : text(count == 1 ? "rank " : "ranks ", out);
}

/// Fails the launch if `op` can never finish, or has been waited for too long (if `since` is given).
inline void check_patience(node_operation& op, clock::time_point since) {
  auto& launch = op.launch();
  auto const now = clock::now();
  if (launch.failed() || op.finished()) return;  // who has left after it is not awaited
  auto const begin = [&] { return text(launch.who, ": ", describe(op)); };
  if (now >= op.next_look) {  // asking the system costs a microsecond a rank
    op.next_look = now + std::chrono::milliseconds(50);
    if (launch.is_orphaned())
      return launch.fail(text(begin(), " cannot finish, because what started rank ", launch.rank,
                              " (mpirun, or its daemon) has ended; start the job again"));
    auto const left = awaited_ranks(op, [&](int rank) { return op.where->board(rank).left.load() != 0; });
    if (!left.empty())
      return launch.fail(text(begin(), " cannot finish, because ", left,
                              " has left without calling it; make every rank call the same collectives"));
    auto const dead = awaited_ranks(op, [&](int rank) { return launch.is_dead(op.where->world_rank(rank)); });
    if (!dead.empty())
      return launch.fail(
          text(launch.who, ": ", dead, " has died; ", describe(op), " cannot finish; look at what ended it"));
  }
  if (since == clock::time_point{}) return;
  if (now - since <= op.where->deadline) {
    return tell_if_late(op.told_late, now - since, op.where->deadline, [&] {
      return late_call{launch.rank, describe(op), static_cast<std::uint64_t>(op.bytes(op.what().count)),
                       awaited_ranks(op, [](int) { return true; })};
    });
  }
  auto const missing = awaited_ranks(op, [](int) { return true; });
  if (missing.empty()) return;
  auto const stage = op.now();
  auto const offence = stage == node_operation::stage::arriving     ? ", which did not call it"
                       : stage == node_operation::stage::exchanging ? ", which did not take its part"
                                                                    : ", which did not finish its share";
  launch.fail(text(begin(), " waited ", to_string(op.where->deadline), " for ", missing, offence,
                   "; look at what is keeping it, or raise ", launch.who.substr(launch.who.find("comm::")),
                   "{.deadline}"));
}

/// Leaves an operation of a failed launch: from here on nobody works in this rank's memory.
[[noreturn]] inline void throw_failure(node_launch& launch, collective kind) {
  launch.settle();
  throw comm_error(launch.sentence(), {launch.rank, std::string(name_of(kind))});
}

}  // namespace trireme::comm::detail
