#pragma once

#include <algorithm>
#include <string>

#include "trireme/comm/detail/group.hpp"
#include "trireme/comm/detail/shares.hpp"
#include "trireme/comm/late.hpp"

namespace trireme::comm::detail {

/// Makes the progress that is possible now; true once the operation is finished.
inline bool advance(operation& op) {
  if (op.what.kind == collective::exchange) return advance_exchange(op);
  auto& where = *op.where;
  if (op.at == operation::stage::arriving) {
    for (; op.cursor < where.size(); ++op.cursor)
      if (where.at(op.cursor, op.number).word.load() < arrived_word(op.number)) return false;
    if (!agreed(op)) {
      op.cursor = 0;
      return false;
    }
    if (op.what.by_value) {
      share(op);
      op.at = operation::stage::finished;
      where.boxes[static_cast<std::size_t>(op.rank)].finish(op.number);
      return true;
    }
    if (!work_inside(op, [&] { share(op); })) return false;
    op.at = operation::stage::sharing;
    op.cursor = 0;
    where.at(op.rank, op.number).word.store(done_word(op.number));
    op.crew().ring();
  }
  if (op.at == operation::stage::sharing) {
    for (; op.cursor < where.size(); ++op.cursor)
      if (where.at(op.cursor, op.number).word.load() < done_word(op.number)) return false;
    op.at = operation::stage::finished;
    where.boxes[static_cast<std::size_t>(op.rank)].finish(op.number);
  }
  return true;
}

/// Ranks that keep `op` waiting, as "rank 1" or "ranks 1, 3"; only those whose body has returned if `left`.
[[nodiscard]] inline std::string missing_ranks(operation const& op, bool left) {
  auto const wanted = op.at == operation::stage::arriving ? arrived_word(op.number) : done_word(op.number);
  auto const waits_for = [&](int rank) {
    if (op.what.kind != collective::exchange) return op.where->at(rank, op.number).word.load() < wanted;
    return std::ranges::any_of(op.transfers, [&](auto const& each) { return !each.done && each.what.peer == rank; });
  };
  std::string out;
  int count = 0;
  for (int rank = 0; rank < op.where->size(); ++rank) {
    auto const world_rank = op.world_rank(rank);
    // The flag first: a rank that has left has announced everything it ever will.
    if (left && !op.crew().ranks[static_cast<std::size_t>(world_rank)].left.load()) continue;
    if (!waits_for(rank)) continue;
    out += text(count++ == 0 ? "" : ", ", world_rank);
  }
  return count == 0 ? out : text(count == 1 ? "rank " : "ranks ", out);
}

/// Fails the team if `op` can never finish, or has waited too long.
inline void check_patience(operation& op, clock::time_point since) {
  auto& crew = op.crew();
  // What was finished meanwhile waits for nobody: those whose body has returned since are not missing.
  if (crew.failed() || op.at == operation::stage::finished) return;
  if (auto const gone = missing_ranks(op, true); !gone.empty()) {
    crew.fail(op.world_rank(op.rank),
              text("trireme::comm::threads: ", describe(op), " cannot finish, because the body of ", gone,
                   " has returned without calling it; make every rank call the same collectives"));
  } else if (clock::now() - since > op.where->deadline) {
    auto const missing = missing_ranks(op, false);
    if (missing.empty()) return;
    crew.fail(
        op.world_rank(op.rank),
        text("trireme::comm::threads: ", describe(op), " waited ", to_string(op.where->deadline), " for ", missing,
             op.at == operation::stage::arriving ? ", which did not call it" : ", which did not finish its share",
             "; look at what is keeping it, or raise comm::threads{.deadline}"));
  } else {
    tell_if_late(op.told_late, clock::now() - since, op.where->deadline, [&] {
      return late_call{op.world_rank(op.rank), describe(op),
                       static_cast<std::uint64_t>(op.what.count) * op.element_bytes, missing_ranks(op, false)};
    });
  }
}

/// Leaves an operation of a failed team: from here on nobody touches this rank's memory.
[[noreturn]] inline void throw_failure(operation const& op) {
  op.crew().settle();
  throw comm_error(op.crew().message(), {op.world_rank(op.rank), std::string(name_of(op.what.kind))});
}

/// Advances what this rank has in flight: a rank that waits for one operation must not hold up the others.
inline void advance_pending(rank_state& mine) {
  for (auto* each = mine.pending; each != nullptr; each = each->next)
    if (each->at != operation::stage::finished) advance(*each);
}

/// Spins, then yields, then sleeps until the operation is finished.
inline void wait_for(operation& op) {
  auto& crew = op.crew();
  for (int spin = 0; spin < crew.spins; ++spin) {
    if (advance(op)) return;
    pause_core();
  }
  auto& mine = op.mine();
  auto const since = clock::now();
  bool yielding = true;
  for (std::uint32_t round = 1;; ++round) {
    if (advance(op)) return;
    if (crew.failed()) throw_failure(op);
    advance_pending(mine);
    if (yielding) {
      std::this_thread::yield();
      if (round % 16 != 0) continue;
      yielding = clock::now() - since < crew.patience;
    } else {
      auto const left = op.where->deadline - (clock::now() - since);
      auto const longest = std::chrono::milliseconds(20);
      crew.sleep(std::clamp<std::chrono::nanoseconds>(left, std::chrono::microseconds(100), longest), [&] {
        advance_pending(mine);
        return advance(op);
      });
    }
    check_patience(op, since);
  }
}

}  // namespace trireme::comm::detail
