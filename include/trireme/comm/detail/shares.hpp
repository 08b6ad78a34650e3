#pragma once

#include <concepts>
#include <cstring>
#include <span>
#include <vector>

#include "trireme/comm/detail/combine.hpp"
#include "trireme/comm/detail/group.hpp"
#include "trireme/comm/traffic.hpp"

namespace trireme::comm::detail {

/// So that the addresses of all ranks fit on the stack.
inline constexpr int most_ranks = 256;

/// The elements are touched in host memory only: in phantom space a collective is its synchronisation.
template <class Space>
inline constexpr bool touches = std::same_as<Space, host>;

/// Copies `count` elements, in the memory space of both.
template <class T, class Space>
void copy_elements(T* to, T const* from, std::int64_t count) {
  if constexpr (touches<Space>) {
    if (count > 0 && to != from) std::memmove(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }
}

/// Combines elements [first, first + count) of what all ranks gave, into this rank's memory or everyone's.
template <class T, class Op, class Space>
void combine_slice(operation const& op, slice part, bool into_all) {
  if constexpr (touches<Space>) {
    if (part.count == 0) return;
    T const* terms[most_ranks];
    T* outputs[most_ranks];
    int const size = op.where->size();
    for (int rank = 0; rank < size; ++rank) terms[rank] = op.from<T>(rank) + part.first;
    outputs[0] = static_cast<T*>(op.own) + part.first;
    for (int rank = 0; into_all && rank < size; ++rank) outputs[rank] = op.to<T>(rank) + part.first;
    combine<Op, T>({outputs, static_cast<std::size_t>(into_all ? size : 1)}, {terms, static_cast<std::size_t>(size)},
                   part.count);
  }
}

/// One rank's share of each collective, called when all ranks have arrived.
template <class T, class Space, class Op = reduction::sum>
struct shares {
  static void all_reduce(operation const& op) {
    if (op.what.by_value)
      combine_slice<T, Op, Space>(op, {0, op.what.count}, false);
    else
      combine_slice<T, Op, Space>(op, slice_of(op.what.count, sizeof(T), op.rank, op.where->size()), true);
  }
  static void reduce_scatter(operation const& op) {
    auto const each = op.what.count / op.where->size();
    combine_slice<T, Op, Space>(op, {op.rank * each, each}, false);
  }
  static void all_gather(operation const& op) {
    auto const each = op.what.count / op.where->size();
    for (int rank = 0; rank < op.where->size(); ++rank)
      if (rank != op.rank)
        copy_elements<T, Space>(static_cast<T*>(op.own) + rank * each, op.from<T>(rank) + rank * each, each);
  }
  static void all_to_all(operation const& op) {
    auto const each = op.what.count / op.where->size();
    for (int rank = 0; rank < op.where->size(); ++rank)
      copy_elements<T, Space>(static_cast<T*>(op.own) + rank * each, op.from<T>(rank) + op.rank * each, each);
  }
  static void broadcast(operation const& op) {
    auto const* const from = op.from<T>(op.what.root);
    if (op.what.by_value) {
      if (op.rank != op.what.root) copy_elements<T, Space>(static_cast<T*>(op.own), from, op.what.count);
      return;
    }
    // Each rank copies a slice for everybody, so that no core is idle.
    auto const part = slice_of(op.what.count, sizeof(T), op.rank, op.where->size());
    for (int rank = 0; rank < op.where->size(); ++rank)
      if (rank != op.what.root) copy_elements<T, Space>(op.to<T>(rank) + part.first, from + part.first, part.count);
  }
};

inline void share_nothing(operation const&) {}

/// Copies the X that every rank passed into a vector<X>.
template <class X>
void collect_share(operation const& op) {
  auto& all = *static_cast<std::vector<X>*>(op.own);
  for (int rank = 0; rank < op.where->size(); ++rank) all[static_cast<std::size_t>(rank)] = *op.from<X>(rank);
}

}  // namespace trireme::comm::detail
