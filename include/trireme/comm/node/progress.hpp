#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "trireme/comm/late.hpp"
#include "trireme/comm/node/exchange.hpp"
#include "trireme/comm/node/paths.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm::detail {

enum class node_outcome : std::uint8_t { stuck, moved, finished };

/// The flags of this rank's posting: whether the others can access its views in which they work directly.
[[nodiscard]] inline std::uint32_t reach_of(node_operation const& op) noexcept {
  if (!op.touches()) return node_posting::reachable | node_posting::phantom;
  bool const broadcasts = op.what().kind == collective::broadcast;
  if (op.launch().backend->one_process) return node_posting::reachable | (broadcasts ? node_posting::writable : 0U);
  auto const holds = [&](void const* address, std::int64_t count) {
    return count == 0 || op.launch().is_reached(address, static_cast<std::uint64_t>(op.bytes(count)));
  };
  auto const all = geometry_of(op).all();
  auto const others = touched(op);
  bool const reachable =
      has_transfers(op) ? std::all_of(op.raw_transfers.begin(), op.raw_transfers.end(),
                                      [&](auto const& each) { return !each.sent || holds(each.address, each.count); })
                        : (!others.from || holds(op.it.from, all)) && (!others.to || holds(op.it.to, all));
  bool const writable = broadcasts && holds(op.is_root() ? op.it.from : op.it.to, all);
  return (reachable ? node_posting::reachable : 0U) | (writable ? node_posting::writable : 0U);
}

/// Whether this rank may fill its slot for a round: all ranks have copied its previous contents. A collective without a
/// reduction also waits until this rank has reduced all earlier rounds, because fill_round() counts its own as reduced.
[[nodiscard]] inline bool may_fill(node_operation const& op, std::uint64_t round) noexcept {
  if (!combines(op) && op.where->mine().combined.load(std::memory_order_relaxed) != round) return false;
  for (int rank = 0; rank < op.where->size(); ++rank)
    if (op.where->board(rank).drained.load() + node_board::slot_count <= round) return false;
  return true;
}
inline void fill_round(node_operation const& op, std::uint64_t round) {
  fill_slot(op, round);
  auto& mine = op.where->mine();
  if (!combines(op)) mine.combined.store(op.base + round + 1);  // nothing to reduce
  mine.filled.store(op.base + round + 1);
}

/// Whether `rank` called `mine` as collective `number`; if not, the launch fails.
[[nodiscard]] inline bool agrees(node_group const& where, std::uint64_t number, call const& mine, int rank) {
  auto const& posted = where.board(rank).at(number).what;
  if (std::memcmp(&posted, &mine, sizeof mine) == 0 || !asserts(assertion_level::normal)) return true;
  auto const other = where.world_rank(rank);
  auto const self = where.world_rank(where.rank);
  auto& launch = *where.launch;
  call theirs;
  if (!read_call(theirs, &posted)) {
    launch.fail(text(launch.who, ": call number ", number, ": the data of rank ", other,
                     " in shared memory is not a valid call; check for a write out of bounds there"));
    return false;
  }
  launch.fail(other < self ? differing_calls(launch.who, number, other, theirs, self, mine)
                           : differing_calls(launch.who, number, self, mine, other, theirs));
  return false;
}

/// A root finishes a small broadcast without waiting for the others. This compares their calls with it, as far as they
/// have announced them, and marks those broadcasts as finished; false if a call differs, which fails the launch. Other
/// ranks may wait for that mark: a letter or posting is only reused when all ranks have finished its collective.
inline bool check_eager(node_group& where) {
  auto const before = where.eager_checked;
  bool agree = true;
  while (agree && where.eager_checked < where.eager_count) {
    auto const number = where.eager_numbers[where.eager_checked % node_board::ring];
    auto const has_joined = [&](int rank) { return where.board(rank).at(number).word.load() >= node_arrived(number); };
    bool joined = true;
    for (int rank = 0; rank < where.size(); ++rank) joined = joined && has_joined(rank);
    if (!joined) break;
    for (int rank = 0; rank < where.size(); ++rank)
      agree = agree && agrees(where, number, where.mine().at(number).what, rank);
    if (!agree) break;
    where.finish(number, std::memory_order_seq_cst);
    ++where.eager_checked;
  }
  if (where.eager_checked != before) where.ring();
  return agree;
}

/// Copies the values of a broadcast into a letter of its root; false while an earlier broadcast still uses that letter.
inline bool write_eager_buffer(node_operation& op, node_posting& posting) {
  auto& where = *op.where;
  auto& last = where.eager_buffer_use[where.eager_buffers % node_board::eager_buffers];
  if (last >= where.reusable) {
    static_cast<void>(check_eager(where));
    where.reusable = where.lowest_unfinished();
    if (last >= where.reusable) {
      op.behind = last;
      return false;
    }
  }
  auto* const eager_buffer = where.mine().eager_buffer(where.eager_buffers++, where.size());
  std::memcpy(eager_buffer, op.from(), static_cast<std::size_t>(op.bytes(op.what().count)));
  posting.memory.from = op.launch().offset(eager_buffer);
  last = op.number;
  return true;
}

/// Announces the collective; false while its posting is in use for an earlier collective, or an earlier one is not
/// announced yet: announcements have the order of the calls.
inline bool post(node_operation& op) {
  auto& where = *op.where;
  if (op.number != where.posted + 1) return false;
  if (op.checks_eager && where.eager_checked < where.eager_count &&
      (!check_eager(where) || where.eager_checked < where.eager_count))
    return false;
  if (op.number >= where.reusable + node_board::ring) {
    static_cast<void>(check_eager(where));
    where.reusable = where.lowest_unfinished();
    if (op.number >= where.reusable + node_board::ring) return false;
  }
  auto& posting = where.mine().at(op.number);
  posting.what = op.it.what;
  if (op.what().by_value) {
    give_values(op);
  } else if (op.eager) {
    if (op.is_root() && !write_eager_buffer(op, posting)) return false;
  } else {
    auto const flags = reach_of(op);
    posting.memory = {op.launch().offset(op.it.from), op.launch().offset(op.it.to), flags};
    if (has_transfers(op))
      for (auto const& each : std::span(op.raw_transfers).first(op.where->members.size()))
        where.portions(where.rank, op.number)[static_cast<std::size_t>(each.peer)] = {each.count,
                                                                                      op.launch().offset(each.address)};
    if (!op.launch().backend->one_process) op.chunk = staged_chunk(op);
    // The others cannot access this rank's memory, so the collective is staged; its first block goes with the
    // announcement.
    if ((flags & node_posting::reachable) == 0 && !has_transfers(op) && where.decided + 1 == op.number &&
        where.mine().filled.load(std::memory_order_relaxed) == where.rounds && may_fill(op, where.rounds)) {
      op.base = where.rounds;
      fill_round(op, 0);
    }
  }
  where.posted = op.number;
  posting.word.store(node_arrived(op.number));
  if (!op.eager || op.is_root()) where.ring();  // else only the root may wait, and tell() wakes it
  op.become(node_operation::stage::arriving);
  return true;
}

inline node_outcome finish(node_operation& op) noexcept {
  op.where->finish(op.number);
  op.become(node_operation::stage::finished);
  return node_outcome::finished;
}

/// The root of a small broadcast has announced it, and no rank waits for more. The root is done, and compares the calls
/// of the others later (check_eager()).
inline node_outcome finish_eager(node_operation& op) {
  auto& where = *op.where;
  if (where.decided + 1 != op.number) return node_outcome::stuck;
  if (op.is_root()) {
    where.eager_numbers[where.eager_count++ % node_board::ring] = op.number;
    op.become(node_operation::stage::finished);
  } else {
    auto const root = op.what().root;
    if (!agrees(where, op.number, op.it.what, root)) return node_outcome::stuck;
    if (op.what().by_value)
      take_values(op);
    else
      copied(op, incoming(op, root), from_of(op, root), 0, op.what().count);
    where.finish(op.number, std::memory_order_seq_cst);
    op.launch().ring(*where.headers[static_cast<std::size_t>(root)]);  // it may wait for the letter or posting
    op.become(node_operation::stage::finished);
  }
  ++where.decided;
  return node_outcome::finished;
}

/// All ranks have arrived: each compares the calls, and chooses the path from the postings, with the same result on
/// all.
inline node_outcome decide(node_operation& op) {
  using enum node_operation::stage;
  auto& where = *op.where;
  if (where.decided + 1 != op.number) return node_outcome::stuck;
  if (!check_eager(where)) return node_outcome::stuck;
  for (int rank = 0; rank < where.size(); ++rank)
    if (!agrees(where, op.number, op.it.what, rank)) return node_outcome::stuck;
  op.cursor = 0;
  if (op.what().by_value) {
    take_values(op);
    ++where.decided;
    return finish(op);
  }
  auto flags = ~std::uint32_t{0};
  bool phantom = false;
  for (int rank = 0; rank < where.size(); ++rank) {
    flags &= op.posting(rank).memory.flags;
    phantom = phantom || (op.posting(rank).memory.flags & node_posting::phantom) != 0;
  }
  if (has_transfers(op) && !counts_agree(op)) return node_outcome::stuck;
  ++where.decided;
  if (phantom) return finish(op);
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

/// Whether a rank must wait until the others have done their share: only if they access its memory.
[[nodiscard]] inline bool must_stay(node_operation const& op) noexcept {
  auto const others = touched(op);
  return op.for_all || others.from || others.to;
}

inline node_outcome do_own_slice(node_operation& op) {
  bool over = false;
  if (!work_inside(op, [&] { over = work_directly(op); })) return node_outcome::stuck;
  if (!over) return node_outcome::moved;
  op.posting(op.where->rank).word.store(node_shared(op.number));
  op.where->ring();
  if (!must_stay(op)) return finish(op);
  op.cursor = 0;
  op.become(node_operation::stage::closing);
  return node_outcome::moved;
}

/// One step of one round. Copying out comes first, because those blocks are still in the cache.
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
      if (op.eager) {
        if (op.posting(op.what().root).word.load() >= node_arrived(op.number)) return finish_eager(op);
        if (where.eager_checked < where.eager_count)
          static_cast<void>(check_eager(where));  // the root may wait for this
        return node_outcome::stuck;
      }
      for (; op.cursor < where.size(); ++op.cursor)
        if (op.posting(op.cursor).word.load() < node_arrived(op.number)) return node_outcome::stuck;
      return decide(op);
    case sharing:
      if (auto const outcome = do_own_slice(op); op.now() != closing) return outcome;
      [[fallthrough]];
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

/// Whether `op` waits for `rank`.
[[nodiscard]] inline bool awaits(node_operation const& op, int rank) noexcept {
  using enum node_operation::stage;
  auto const& board = op.where->board(rank);
  switch (op.now()) {
    case posting:
      if (op.checks_eager && op.where->eager_checked < op.where->eager_count) {
        auto const number = op.where->eager_numbers[op.where->eager_checked % node_board::ring];
        return op.where->board(rank).at(number).word.load() < node_arrived(number);
      }
      return board.unfinished.load() + node_board::ring <= op.number || board.unfinished.load() <= op.behind;
    case arriving: {
      bool const all = !op.eager || op.where->decided + 1 != op.number;  // an earlier call waits for all
      return (all || rank == op.what().root) && op.posting(rank).word.load() < node_arrived(op.number);
    }
    case closing:
      return op.posting(rank).word.load() < node_shared(op.number);
    case staging: {
      // Waits end at the last round: in the work that a rank does alone after it, such as its last copying out, it does
      // not wait for ranks that have finished, and perhaps left.
      auto const waits_with = [end = op.base + op.rounds](std::uint64_t done, std::uint64_t theirs) {
        return done < end && theirs <= done;
      };
      auto const& mine = op.where->mine();
      return waits_with(mine.combined.load(), board.filled.load()) ||
             waits_with(mine.drained.load(), board.combined.load()) ||
             waits_with(mine.filled.load(), board.drained.load() + node_board::slot_count);
    }
    case exchanging:
      return std::any_of(op.messages.begin(), op.messages.end(),
                         [&](auto const& each) { return each.what.peer == rank && awaits(op, each); });
    default:
      return false;
  }
}

/// The ranks that `op` waits for and for which such(rank) is true, by their ranks in the launch.
template <class Such>
[[nodiscard]] std::vector<int> awaited_ranks(node_operation const& op, Such&& such) {
  std::vector<int> out;
  for (int rank = 0; rank < op.where->size(); ++rank) {
    // such() first: a rank that has left or died has already made all its announcements.
    if (rank == op.where->rank || !such(rank) || !awaits(op, rank)) continue;
    out.push_back(op.where->world_rank(rank));
  }
  return out;
}

/// Fails the launch if `op` can never finish, or has waited too long (if `since` is given).
inline void check_patience(node_operation& op, clock::time_point since) {
  auto& launch = op.launch();
  auto const now = clock::now();
  if (launch.failed() || op.finished()) return;  // ranks may leave after it
  auto const begin = [&] { return text(launch.who, ": ", describe(op)); };
  if (now >= op.next_look) {  // the query takes a microsecond a rank
    op.next_look = now + std::chrono::milliseconds(50);
    if (launch.backend->is_orphaned())
      return launch.fail(text(begin(), " cannot finish, because the process that started rank ", launch.rank,
                              " (mpirun, or its daemon) has ended; start the job again"));
    // The header records that the body of a thread has ended, or that a process ends by exit(). For threads only this
    // counts: a thread also leaves its group while an exception leaves its body, and then the exception is the error to
    // report.
    bool const together = launch.backend->one_process;
    auto const left = awaited_ranks(op, [&](int rank) {
      return launch.header(op.where->world_rank(rank)).left.load() != 0 ||
             (!together && op.where->board(rank).left.load() != 0);
    });
    if (!left.empty())
      return launch.fail(text(begin(), " cannot finish, because ",
                              !together          ? ""
                              : left.size() == 1 ? "the body of "
                                                 : "the bodies of ",
                              list_of("rank", left), agreeing(left.size(), " has ", " have "),
                              together ? "returned" : "left",
                              " without calling it; make every rank call the same collectives"));
    auto const dead = awaited_ranks(op, [&](int rank) { return launch.is_dead(op.where->world_rank(rank)); });
    if (!dead.empty())
      return launch.fail(text(launch.who, ": ", list_of("rank", dead), agreeing(dead.size(), " has", " have"),
                              " died; ", describe(op), " cannot finish; look at what ended it"));
  }
  if (since == clock::time_point{}) return;
  if (now - since <= op.where->deadline) {
    return report_if_late(op.reported_late, now - since, op.where->deadline, [&] {
      return late_call{launch.rank, describe(op), static_cast<std::uint64_t>(op.bytes(op.what().count)),
                       list_of("rank", awaited_ranks(op, [](int) { return true; }))};
    });
  }
  auto const missing = awaited_ranks(op, [](int) { return true; });
  if (missing.empty()) return;
  auto const stage = op.now();
  auto const offence = stage == node_operation::stage::arriving     ? ", which did not call it"
                       : stage == node_operation::stage::exchanging ? ", which did not take part"
                                                                    : ", which did not finish its share";
  launch.fail(too_late(launch.who, describe(op), op.where->deadline, missing, offence));
}

/// Throws the failure of the launch, once the others have stopped accessing this rank's memory (settle()).
[[noreturn]] inline void throw_failure(node_launch& launch, collective kind) {
  launch.settle();
  throw comm_error(launch.sentence(), {launch.rank, std::string(name_of(kind))});
}

}  // namespace trireme::comm::detail
