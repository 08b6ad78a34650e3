#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "trireme/comm/node/operation.hpp"

namespace trireme::comm::detail {

/// The addresses of one reduction.
struct node_terms {
  void const* terms[node_most_ranks];
  void* outputs[node_most_ranks];
  std::size_t output_count = 0;

  void add_output(void* address) noexcept { outputs[output_count++] = address; }
  void combine(node_operation const& op, std::int64_t count) const {
    if (count == 0 || output_count == 0) return;
    auto const size = static_cast<std::size_t>(op.where->size());
    auto const divisor = op.it.divisor != 0 ? op.it.divisor : op.where->size();
    if (size == 1 && divisor == 1 && output_count == 1 && outputs[0] == terms[0]) return;  // one rank, in place
    op.it.elements->combine({outputs, output_count}, {terms, size}, count, divisor);
  }
};

// By value: every rank's values are beside its announcement, and each rank computes its own result.

inline void take_values(node_operation const& op) {
  auto const& where = *op.where;
  auto const geometry = geometry_of(op);
  auto const& move = move_of(op);
  auto const bytes = static_cast<std::size_t>(value_bytes(op));
  auto const posted = [&](int rank) { return where.board(rank).values(op.number, bytes, where.size()); };
  if (move.folds) {
    if (!geometry.takes(move, where.rank)) return;
    auto const transfer = geometry.of().into == cut::equal ? geometry.owned(where.rank) : interval{0, op.what().count};
    node_terms all;
    for (int rank = 0; rank < where.size(); ++rank) all.terms[rank] = posted(rank) + op.bytes(transfer.first);
    all.add_output(op.to() + op.bytes(transfer.first));
    all.combine(op, transfer.count);
  } else if (geometry.of().count > 0) {
    for (int rank = 0; rank < where.size(); ++rank) {
      auto const skip = move.given == region::of_receiver ? geometry.given(move, rank, where.rank).first : 0;
      auto const to = incoming(op, rank);
      copied(op, to, posted(rank) + op.bytes(skip), 0, to.count);
    }
  } else if (bytes > 0) {  // split and duplicate collect the values of all ranks
    for (int rank = 0; rank < where.size(); ++rank)
      std::memcpy(op.to() + op.bytes(rank * op.what().count), posted(rank), bytes);
  }
}

/// Writes this rank's values beside its announcement.
inline void give_values(node_operation const& op) {
  auto const geometry = geometry_of(op);
  auto const& move = move_of(op);
  if (!geometry.gives(move, op.where->rank)) return;
  auto const length = value_bytes(op);
  auto const own = move.given == region::of_sender ? geometry.owned(op.where->rank) : interval{0, 0};
  auto const bytes = move.given == region::of_sender ? op.bytes(own.count) : length;
  if (bytes > 0)
    std::memcpy(op.where->mine().values(op.number, static_cast<std::size_t>(length), op.where->size()),
                op.from() + op.bytes(own.first), static_cast<std::size_t>(bytes));
}

// Direct: each rank does a part of the work in the memory of all.

[[nodiscard]] inline std::byte* from_of(node_operation const& op, int rank) noexcept {
  return op.where->at(rank, op.posting(rank).memory.from);
}
[[nodiscard]] inline std::byte* to_of(node_operation const& op, int rank) noexcept {
  return op.where->at(rank, op.posting(rank).memory.to);
}

/// Combines the next elements of this rank's slice; true at its end.
inline bool combine_directly(node_operation& op) {
  auto const& where = *op.where;
  auto const geometry = geometry_of(op);
  auto const& move = move_of(op);
  bool const kept = geometry.of().into != cut::lines;  // each rank keeps its slice
  auto const own = geometry.owned(where.rank);
  auto const count = direct_step(op, own.count - op.moved, op.it.element_bytes);
  auto const at = op.bytes(own.first + op.moved);
  node_terms all;
  for (int rank = 0; rank < where.size(); ++rank) {
    all.terms[rank] = from_of(op, rank) + at;
    if (kept ? rank == where.rank : geometry.takes(move, rank)) all.add_output(to_of(op, rank) + at);
  }
  all.combine(op, count);
  op.moved += count;
  return op.moved == own.count;
}

/// The address in the memory of `rank` of the elements that it sends to this rank.
[[nodiscard]] inline std::byte const* source_at(node_operation const& op, int rank) noexcept {
  auto const own = op.where->rank;
  if (!has_transfers(op)) return from_of(op, rank) + op.bytes(geometry_of(op).given(move_of(op), rank, own).first);
  return op.where->at(rank, op.where->portions(rank, op.number)[static_cast<std::size_t>(own)].place);
}

/// Copies the next elements of this rank's share; true when there are none left.
inline bool move_directly(node_operation& op) {
  auto const& where = *op.where;
  auto const step = [&](node_segment const& to, std::byte const* from) {
    auto const most = direct_step(op, to.count - op.moved, op.it.element_bytes);
    op.moved += copied(op, to, from + op.bytes(op.moved), op.moved, most);
    if (op.moved < to.count) return false;
    op.moved = 0;
    ++op.cursor;
    return op.cursor == where.size();
  };
  if (move_of(op).receivers == side::root) {  // all ranks write into the root's memory, side by side
    op.cursor = where.size() - 1;
    return step({to_of(op, op.what().root), where.rank * op.what().count, op.what().count}, op.from());
  }
  if (op.for_all) {  // each rank copies one slice of the root's values to all
    auto const transfer = geometry_of(op).owned(where.rank);
    if (op.cursor == op.what().root) return ++op.cursor == where.size();
    return step({to_of(op, op.cursor), transfer.first, transfer.count},
                from_of(op, op.what().root) + op.bytes(transfer.first));
  }
  // Others first: rank r begins with the elements of r + 1, so that ranks do not all read from one.
  auto const rank = (where.rank + 1 + op.cursor) % where.size();
  auto const to = incoming(op, rank);
  return step(to, to.count == 0 ? nullptr : source_at(op, rank));
}

inline bool work_directly(node_operation& op) { return move_of(op).folds ? combine_directly(op) : move_directly(op); }

// Staged: in rounds. In each, a rank copies a block of the elements that others need into its slot, reduces its part of
// the blocks of all, and copies results out of the slots of the others.

/// The number of elements in one round: of the whole view, or of those that one rank sends to each other.
[[nodiscard]] inline std::int64_t staged_chunk(node_operation const& op) noexcept {
  bool const sliced = move_of(op).given == region::of_receiver && row_of(op.what().kind).into != cut::lines;
  auto const line = line_of(op.it.element_bytes);
  auto const fits = static_cast<std::int64_t>(node_board::slot_bytes / op.it.element_bytes);
  return fits / (sliced ? op.where->size() : 1) / line * line;
}

/// The number of rounds; the same on every rank.
[[nodiscard]] inline std::uint64_t staged_rounds(node_operation const& op) noexcept {
  std::int64_t most = row_of(op.what().kind).into == cut::equal ? geometry_of(op).largest() : op.what().count;
  for (int rank = 0; has_transfers(op) && rank < op.where->size(); ++rank)
    for (auto const& each : op.where->portions(rank, op.number)) most = std::max(most, each.count);
  return static_cast<std::uint64_t>((most + op.chunk - 1) / op.chunk);
}

inline void fill_slot(node_operation const& op, std::uint64_t round) {
  auto const& where = *op.where;
  auto* const slot = where.mine().slot(op.base + round, where.size());
  auto const first = static_cast<std::int64_t>(round) * op.chunk;
  auto const copy = [&](std::int64_t at, std::byte const* from, std::int64_t count) {
    if (count > 0) op.it.elements->copy(slot + op.bytes(at), from, static_cast<std::size_t>(op.bytes(count)));
  };
  auto const give = [&](std::int64_t at, node_segment const& all) {
    if (all.count > first) copy(at, all.whole + op.bytes(all.first + first), std::min(op.chunk, all.count - first));
  };
  auto const& move = move_of(op);
  if (move.folds && row_of(op.what().kind).into == cut::lines) {  // all but the slice that this rank reduces
    auto const count = std::min(op.chunk, op.what().count - first);
    auto const own = slice_of(count, op.it.element_bytes, where.rank, where.size());
    auto const behind = own.first + own.count;
    copy(0, op.from() + op.bytes(first), own.first);
    copy(behind, op.from() + op.bytes(first + behind), count - behind);
  } else if (move.given == region::of_receiver) {
    for (int rank = 0; rank < where.size(); ++rank)
      if (rank != where.rank) give(rank * op.chunk, outgoing(op, rank));
  } else {  // the same for all ranks
    auto const to = move.receivers == side::root ? op.what().root : (where.rank + 1) % where.size();
    if (to != where.rank) give(0, outgoing(op, to));
  }
}

inline void combine_slots(node_operation const& op, std::uint64_t round) {
  auto const& where = *op.where;
  auto const first = static_cast<std::int64_t>(round) * op.chunk;
  auto const geometry = geometry_of(op);
  bool const kept = geometry.of().into != cut::lines;  // each rank keeps its slice
  auto const slice = kept ? geometry.owned(where.rank) : interval{0, op.what().count};
  auto const count = std::clamp<std::int64_t>(slice.count - first, 0, op.chunk);
  auto const own =
      kept ? interval{where.rank * op.chunk, count} : slice_of(count, op.it.element_bytes, where.rank, where.size());
  auto const at = op.bytes(slice.first + first + (kept ? 0 : own.first));
  node_terms all;
  for (int rank = 0; rank < where.size(); ++rank)
    all.terms[rank] = rank == where.rank ? op.from() + at
                                         : where.board(rank).slot(op.base + round, where.size()) + op.bytes(own.first);
  if (geometry.takes(move_of(op), where.rank)) all.add_output(op.to() + at);
  if (!kept && !op.is_root()) all.add_output(where.mine().slot(op.base + round, where.size()) + op.bytes(own.first));
  all.combine(op, own.count);
}

inline void drain_slots(node_operation const& op, std::uint64_t round) {
  auto const& where = *op.where;
  auto const first = static_cast<std::int64_t>(round) * op.chunk;
  auto const geometry = geometry_of(op);
  auto const& move = move_of(op);
  bool const kept = move.folds && geometry.of().into != cut::lines;  // each rank has its slice already
  if (kept || !geometry.takes(move, where.rank)) return;
  bool const sliced = move.given == region::of_receiver;
  for (int step = 0; step < where.size(); ++step) {
    auto const rank = (where.rank + 1 + step) % where.size();
    auto* const slot = where.board(rank).slot(op.base + round, where.size());
    if (move.folds) {
      auto const count = std::min(op.chunk, op.what().count - first);
      auto const theirs = slice_of(count, op.it.element_bytes, rank, where.size());
      if (rank != where.rank)
        copied(op, {op.to(), first + theirs.first, theirs.count}, slot + op.bytes(theirs.first), 0, theirs.count);
      continue;
    }
    auto const to = incoming(op, rank);
    if (to.count <= first) continue;
    auto const* from = slot + op.bytes(sliced ? where.rank * op.chunk : 0);
    if (rank == where.rank) {
      auto const own = outgoing(op, rank);
      from = own.whole + op.bytes(own.first + first);
    }
    copied(op, to, from, first, op.chunk);
  }
}

[[nodiscard]] inline bool combines(node_operation const& op) noexcept { return op.it.elements->combine != nullptr; }

}  // namespace trireme::comm::detail
