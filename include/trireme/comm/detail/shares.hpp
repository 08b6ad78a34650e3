#pragma once

#include <span>
#include <vector>

#include "trireme/comm/detail/group.hpp"
#include "trireme/comm/detail/kernels.hpp"
#include "trireme/comm/traffic.hpp"

namespace trireme::comm::detail {

/// So that the addresses of all ranks fit on the stack.
inline constexpr int most_ranks = 256;

/// Combines elements [first, first + count) of what all ranks gave, into the memory of `into`, or everyone's if -1.
inline void combine_slice(operation const& op, interval where, int into) {
  if (where.count == 0) return;
  void const* terms[most_ranks];
  void* outputs[most_ranks];
  auto const size = static_cast<std::size_t>(op.where->size());
  auto const offset = static_cast<std::size_t>(where.first) * op.element_bytes;
  for (std::size_t rank = 0; rank < size; ++rank) terms[rank] = op.from(static_cast<int>(rank)) + offset;
  if (into == op.rank)
    outputs[0] = op.result() + offset;
  else if (into >= 0)
    outputs[0] = op.to(into) + offset;
  else
    for (std::size_t rank = 0; rank < size; ++rank) outputs[rank] = op.to(static_cast<int>(rank)) + offset;
  op.elements->combine({outputs, into < 0 ? size : 1}, {terms, size}, where.count,
                       op.divisor != 0 ? op.divisor : op.where->size());
}

/// One rank's share of each collective. Where the work is one rank's (reduce, broadcast), each does a slice of it.
inline void share_of(operation const& op) {
  auto const& does = row_of(op.what.kind).moves[0];
  int const size = op.where->size();
  geometry const cuts{op.what, op.element_bytes, size, op.counts};
  auto const root = op.what.root;
  if (does.folds) {
    if (op.what.kind == collective::reduce_scatter)
      combine_slice(op, cuts.owned(op.rank), op.rank);
    else if (!op.what.by_value)
      combine_slice(op, cuts.owned(op.rank), does.takers == side::root ? root : -1);
    else if (cuts.takes(does, op.rank))
      combine_slice(op, {0, op.what.count}, op.rank);
    return;
  }
  auto const bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * op.element_bytes; };
  auto const copy = op.elements->copy;
  if (op.what.kind == collective::all_to_all && op.what.shape != 0) {
    for (int rank = 0; rank < size; ++rank) {
      auto const& to = op.parts(op.rank)[size + rank];
      copy(to.address, op.parts(rank)[op.rank].address, bytes(to.count));
    }
  } else if (op.what.kind == collective::broadcast && !op.what.by_value) {
    auto const mine = cuts.owned(op.rank);
    for (int rank = 0; rank < size; ++rank)
      if (rank != root) copy(op.to(rank) + bytes(mine.first), op.from(root) + bytes(mine.first), bytes(mine.count));
  } else if (op.what.kind == collective::gather && !op.what.by_value) {  // into the root's memory, so that all work
    copy(op.to(root) + bytes(cuts.taken(does, op.rank, root).first), op.from_, bytes(op.what.count));
  } else {
    for (int rank = 0; rank < size; ++rank) {
      auto const given = cuts.given(does, rank, op.rank);
      auto const taken = cuts.taken(does, rank, op.rank);
      if (taken.count > 0 && (rank != op.rank || does.given != does.taken))
        copy(op.result() + bytes(taken.first), op.from(rank) + bytes(given.first), bytes(taken.count));
    }
  }
}
inline void share(operation const& op) {
  if (op.collect != nullptr) {
    for (int rank = 0; rank < op.where->size(); ++rank) op.collect(op.own, rank, op.from(rank));
  } else if (op.elements != nullptr) {
    share_of(op);
    if (op.elements->complete != nullptr) op.elements->complete();
  }
}

}  // namespace trireme::comm::detail
