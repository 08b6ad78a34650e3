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
  int const size = op.where->size();
  auto const bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * op.element_bytes; };
  auto const count = op.what.count;
  auto const copy = op.elements == nullptr ? nullptr : op.elements->copy;
  auto const mine = [&] { return slice_of(count, op.element_bytes, op.rank, size); };
  auto const each = count / size;
  switch (op.what.kind) {
    case collective::all_reduce:
      if (op.what.by_value)
        combine_slice(op, {0, count}, op.rank);
      else
        combine_slice(op, mine(), -1);
      break;
    case collective::reduce_scatter:
      combine_slice(op, {op.rank * each, each}, op.rank);
      break;
    case collective::reduce:
      if (!op.what.by_value)
        combine_slice(op, mine(), op.what.root);
      else if (op.rank == op.what.root)
        combine_slice(op, {0, count}, op.rank);
      break;
    case collective::all_gather: {
      std::int64_t first = 0;
      for (int rank = 0; rank < size; ++rank) {
        auto const part = op.what.shape == 0 ? each : op.counts[static_cast<std::size_t>(rank)];
        if (rank != op.rank) copy(op.result() + bytes(first), op.from(rank) + bytes(first), bytes(part));
        first += part;
      }
      break;
    }
    case collective::gather:
      if (!op.what.by_value)
        copy(op.to(op.what.root) + op.rank * static_cast<std::ptrdiff_t>(bytes(count)), op.from_, bytes(count));
      else if (op.rank == op.what.root)
        for (int rank = 0; rank < size; ++rank) copy(op.result() + bytes(rank * count), op.from(rank), bytes(count));
      break;
    case collective::scatter:
      copy(op.own, op.from(op.what.root) + bytes(op.rank * count), bytes(count));
      break;
    case collective::broadcast:
      if (op.what.by_value) {
        if (op.rank != op.what.root) copy(op.own, op.from(op.what.root), bytes(count));
        break;
      }
      for (int rank = 0; rank < size; ++rank)
        if (rank != op.what.root)
          copy(op.to(rank) + bytes(mine().first), op.from(op.what.root) + bytes(mine().first), bytes(mine().count));
      break;
    case collective::all_to_all:
      if (op.what.shape == 0)
        for (int rank = 0; rank < size; ++rank)
          copy(op.result() + bytes(rank * each), op.from(rank) + bytes(op.rank * each), bytes(each));
      else
        for (int rank = 0; rank < size; ++rank) {
          auto const& to = op.parts(op.rank)[size + rank];
          copy(to.address, op.parts(rank)[op.rank].address, bytes(to.count));
        }
      break;
    default:
      break;
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
