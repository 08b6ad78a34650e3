#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/detail/mailbox.hpp"
#include "trireme/comm/detail/team.hpp"

namespace trireme::comm::detail {

/// The ranks of one communicator, all threads of one team.
struct group {
  group(std::shared_ptr<team> whole, std::vector<int> ranks)
      : crew(std::move(whole)), members(std::move(ranks)), boxes(new mailbox[members.size()]) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members.size()); }
  [[nodiscard]] posting& at(int rank, std::uint64_t number) const noexcept {
    return boxes[static_cast<std::size_t>(rank)].at(number);
  }
  [[nodiscard]] std::uint64_t lowest_unfinished() const noexcept {
    auto low = boxes[0].unfinished();
    for (std::size_t rank = 1; rank < members.size(); ++rank) low = std::min(low, boxes[rank].unfinished());
    return low;
  }

  std::shared_ptr<team> const crew;
  std::vector<int> const members;  ///< their ranks in the team, by rank in the group
  std::unique_ptr<mailbox[]> const boxes;
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
  void (*share)(operation const&) = nullptr;
  void* own = nullptr;  ///< where this rank's results go
  clock::time_point since{};

  // Asynchronous operations only:
  std::shared_ptr<group> keep;
  operation* previous = nullptr;
  operation* next = nullptr;

  [[nodiscard]] team& crew() const noexcept { return *where->crew; }
  [[nodiscard]] rank_state& mine() const noexcept { return crew().ranks[static_cast<std::size_t>(world_rank(rank))]; }
  [[nodiscard]] int world_rank(int of) const noexcept { return where->members[static_cast<std::size_t>(of)]; }

  /// What `of` passed in: its own memory, or the copy that travelled with the announcement.
  template <class T>
  [[nodiscard]] T const* from(int of) const noexcept {
    auto const& theirs = where->at(of, number);
    return static_cast<T const*>(what.by_value ? static_cast<void const*>(theirs.values) : theirs.memory.from);
  }
  template <class T>
  [[nodiscard]] T* to(int of) const noexcept {
    return static_cast<T*>(where->at(of, number).memory.to);
  }
};

/// "all_reduce(F32, 4 elements, sum) number 12"
[[nodiscard]] inline std::string describe(operation const& op) {
  return text(to_string(op.what), " number ", op.number);
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
  return true;
}

/// Makes the progress that is possible now; true once the operation is finished.
inline bool advance(operation& op) {
  auto& where = *op.where;
  if (op.at == operation::stage::arriving) {
    for (; op.cursor < where.size(); ++op.cursor)
      if (where.at(op.cursor, op.number).word.load() < arrived_word(op.number)) return false;
    if (!agreed(op)) {
      op.cursor = 0;
      return false;
    }
    if (op.what.by_value) {
      op.share(op);
      op.at = operation::stage::finished;
      where.boxes[static_cast<std::size_t>(op.rank)].finish(op.number);
      return true;
    }
    auto& inside = op.mine().inside;
    inside.store(true);
    if (op.crew().failed()) {  // somebody may be taking its memory back
      inside.store(false);
      return false;
    }
    op.share(op);
    inside.store(false);
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
  std::string out;
  int count = 0;
  for (int rank = 0; rank < op.where->size(); ++rank) {
    auto const world_rank = op.world_rank(rank);
    // The flag first: a rank that has left has announced everything it ever will.
    if (left && !op.crew().ranks[static_cast<std::size_t>(world_rank)].left.load()) continue;
    if (op.where->at(rank, op.number).word.load() >= wanted) continue;
    out += text(count++ == 0 ? "" : ", ", world_rank);
  }
  return count == 0 ? out : text(count == 1 ? "rank " : "ranks ", out);
}

/// Fails the team if `op` can never finish, or has waited too long.
inline void check_patience(operation const& op, clock::time_point since) {
  auto& crew = op.crew();
  if (crew.failed()) return;
  if (auto const gone = missing_ranks(op, true); !gone.empty()) {
    crew.fail(op.world_rank(op.rank),
              text("trireme::comm::threads: ", describe(op), " cannot finish, because the body of ", gone,
                   " has returned without calling it; make every rank call the same collectives"));
  } else if (clock::now() - since > crew.deadline) {
    auto const missing = missing_ranks(op, false);
    if (missing.empty()) return;
    crew.fail(op.world_rank(op.rank),
              text("trireme::comm::threads: ", describe(op), " waited ", to_string(crew.deadline), " for ", missing,
                   op.at == operation::stage::arriving ? ", which did not call it" : ", which did not finish its share",
                   "; look at what is keeping it, or raise comm::threads{.deadline}"));
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
      auto const left = crew.deadline - (clock::now() - since);
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
