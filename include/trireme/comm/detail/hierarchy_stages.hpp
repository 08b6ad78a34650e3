#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "trireme/comm/detail/hierarchy.hpp"

/// What each collective of a hierarchical world does inside a node and between the nodes.
namespace trireme::comm::detail {

template <class Inner, class Outer>
void hierarchy<Inner, Outer>::begin_inside(staged& op) {
  using enum collective;
  auto const& it = op.it;
  auto const count = it.what.count;
  switch (it.what.kind) {
    case barrier:
      op.pending.add(first_.submit(command{}));
      return;
    case all_reduce: {
      if (is_small(op)) return inside(first_, op, all_reduce, it.from, it.to, count);
      auto const even = count - count % here_.places;
      inside(first_, op, reduce_scatter, it.from, it.to, even);
      if (even < count)
        inside(first_, op, all_reduce, at(it.from, bytes(op, even)), at(it.to, bytes(op, even)), count - even);
      return;
    }
    case reduce_scatter: {  // a node's slices lie together
      auto const block = count / here_.nodes;
      for (int node = 0; node < here_.nodes; ++node)
        inside(first_, op, reduce_scatter, at(it.from, bytes(op, node * block)), at(it.to, bytes(op, node * block)),
               block);
      return;
    }
    case reduce: {  // only the root's values may change
      auto* const to = !leads(op) ? it.to : is_root(op) ? it.to : scratch(op, op.a, count);
      return inside(first_, op, reduce, it.from, to, count, root_place(op));
    }
    case gather:
      return inside(first_, op, gather, it.from, leads(op) ? scratch(op, op.a, count * here_.places) : nullptr, count,
                    root_place(op));
    case all_to_all:
      return deal_inside(op);
    default:
      return;
  }
}

template <class Inner, class Outer>
void hierarchy<Inner, Outer>::begin_between(staged& op) {
  using enum collective;
  auto const& it = op.it;
  auto const count = it.what.count;
  switch (it.what.kind) {
    case barrier:
      op.pending.add(between_.submit(command{}));
      return;
    case all_reduce: {
      if (is_small(op)) return between(op, all_reduce, it.to, it.to, count);
      auto const each = count / here_.places;
      auto const even = each * here_.places;
      auto* const own = at(it.to, bytes(op, here_.place * each));
      between(op, all_reduce, own, own, each);
      auto* const rest = at(it.to, bytes(op, even));
      if (even < count) between(op, all_reduce, rest, rest, count - even);
      return;
    }
    case reduce_scatter: {  // the slices of this place move together, over others that nobody needs any more
      auto const each = count / here_.size();
      for (int node = 0; node < here_.nodes; ++node)
        copy(op, at(it.to, bytes(op, node * each)), at(it.to, bytes(op, (node * here_.places + here_.place) * each)),
             each);
      settle(op);
      return between(op, reduce_scatter, it.to, it.to, each * here_.nodes);
    }
    case reduce: {
      if (!leads(op)) return;
      auto* const partial = is_root(op) ? it.to : op.it.elements->touchable ? op.a.data() : nullptr;
      return between(op, reduce, partial, partial, count, root_node(op));
    }
    case all_gather:
      return gather_inside(op);
    case broadcast:
      if (leads(op)) between(op, broadcast, it.from, it.to, count, root_node(op));
      return;
    case gather:
      if (leads(op))
        between(op, gather, it.elements->touchable ? op.a.data() : nullptr, it.to, count * here_.places, root_node(op));
      return;
    case scatter:
      if (leads(op))
        between(op, scatter, it.from, scratch(op, op.a, count * here_.places), count * here_.places, root_node(op));
      return;
    case all_to_all:
      return deal_between(op);
    default:
      return;
  }
}

template <class Inner, class Outer>
void hierarchy<Inner, Outer>::end_inside(staged& op) {
  using enum collective;
  auto const& it = op.it;
  auto const count = it.what.count;
  switch (it.what.kind) {
    case all_reduce:
      if (!is_small(op)) inside(last_, op, all_gather, it.to, it.to, count - count % here_.places);
      return;
    case all_gather: {
      std::int64_t first = 0;
      for (int node = 0; node < here_.nodes; ++node) {
        auto* const block = at(it.to, bytes(op, first));
        if (!is_ragged(op)) {
          inside(last_, op, all_gather, block, block, count / here_.nodes);
          first += count / here_.nodes;
          continue;
        }
        auto const counts = std::span<std::int64_t const>(op.counts).subspan(
            static_cast<std::size_t>(node * here_.places), static_cast<std::size_t>(here_.places));
        auto const all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
        auto part = part_of(it, all_gather, block, block, all, here_.place, here_.places);
        part.what.shape = fingerprint(counts);
        part.counts = counts;
        part.bytes = bytes_sent::all_gather(counts, it.element_bytes, here_.place);
        part.messages = messages_of(part, here_.places);
        op.pending.add(last_.submit(part));
        first += all;
      }
      return;
    }
    case broadcast:
      return inside(last_, op, broadcast, it.from, it.to, count, root_place(op));
    case scatter:
      return inside(last_, op, scatter, leads(op) && it.elements->touchable ? op.a.data() : nullptr, it.to, count,
                    root_place(op));
    default:
      return;
  }
}

template <class Inner, class Outer>
void hierarchy<Inner, Outer>::finish(staged& op) {
  if (op.it.what.kind != collective::reduce_scatter || here_.nodes == 1 || here_.places == 1) return;
  auto const each = op.it.what.count / here_.size();
  copy(op, at(op.it.to, bytes(op, here_.rank() * each)), at(op.it.to, bytes(op, here_.node * each)), each);
  settle(op);
}

/// All_gather between the nodes: a rank's own part to its place in every node.
template <class Inner, class Outer>
void hierarchy<Inner, Outer>::gather_inside(staged& op) {
  auto const& it = op.it;
  std::vector<std::int64_t> first(static_cast<std::size_t>(here_.size()) + 1);
  for (std::size_t rank = 0; rank + 1 < first.size(); ++rank)
    first[rank + 1] = first[rank] + (is_ragged(op) ? op.counts[rank] : it.what.count / here_.size());
  auto const part_of_rank = [&](int rank, bool sent, int node) {
    auto const begin = first[static_cast<std::size_t>(rank)];
    return part{node, sent, it.what.type, first[static_cast<std::size_t>(rank) + 1] - begin,
                at(it.to, bytes(op, begin))};
  };
  op.list.clear();
  for (int node = 0; node < here_.nodes; ++node) {
    if (node == here_.node) continue;
    op.list.push_back(part_of_rank(here_.rank(), true, node));
    op.list.push_back(part_of_rank(node * here_.places + here_.place, false, node));
  }
  op.pending.add(between_.submit(parts_of(it, collective::exchange, op.list, here_.node)));
}

/// Ragged all_to_all: what each rank of this node sends to this place of every node.
template <class Inner, class Outer>
void hierarchy<Inner, Outer>::tell_counts(staged& op) {
  auto const size = static_cast<std::size_t>(here_.size());
  op.sent.resize(size);
  op.received.resize(size);
  for (int place = 0; place < here_.places; ++place)
    for (int node = 0; node < here_.nodes; ++node)
      op.sent[static_cast<std::size_t>(place * here_.nodes + node)] =
          op.parts[static_cast<std::size_t>(node * here_.places + place)].count;
  command it{.what = {collective::all_to_all, dtype::i64, reduction_kind::none, false, -1, here_.size()},
             .from = op.sent.data(),
             .to = op.received.data(),
             .element_bytes = sizeof(std::int64_t),
             .elements = &moving_kernels<host>};
  it.bytes = bytes_sent::of(it.what, it.element_bytes, here_.place, here_.places);
  it.messages = messages_of(it, here_.places);
  op.pending.add(counts_.submit(it));
}

/// All_to_all inside the node: to each place what is for it, ordered by nodes.
template <class Inner, class Outer>
void hierarchy<Inner, Outer>::deal_inside(staged& op) {
  auto const& it = op.it;
  auto const places = here_.places;
  auto const nodes = here_.nodes;
  if (!is_ragged(op)) {
    auto const each = it.what.count / here_.size();
    auto* const packed = scratch(op, op.a, it.what.count);
    auto* const got = scratch(op, op.b, it.what.count);
    for (int place = 0; place < places; ++place)
      for (int node = 0; node < nodes; ++node)
        copy(op, at(packed, bytes(op, (place * nodes + node) * each)),
             at(it.from, bytes(op, (node * places + place) * each)), each);
    settle(op);
    return inside(first_, op, collective::all_to_all, packed, got, it.what.count);
  }
  auto const total = [](std::vector<std::int64_t> const& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  auto* const packed = scratch(op, op.a, total(op.sent));
  auto* const got = scratch(op, op.b, total(op.received));
  std::int64_t first = 0;
  for (int place = 0; place < places; ++place)
    for (int node = 0; node < nodes; ++node) {
      auto const& mine = op.parts[static_cast<std::size_t>(node * places + place)];
      copy(op, at(packed, bytes(op, first)), mine.address, mine.count);
      first += mine.count;
    }
  settle(op);
  op.list.clear();
  auto const append = [&](bool sent, void* block, std::vector<std::int64_t> const& counts) {
    std::int64_t begin = 0;
    for (int place = 0; place < places; ++place) {
      auto const* const row = counts.data() + place * nodes;
      auto const count = std::accumulate(row, row + nodes, std::int64_t{0});
      op.list.push_back({place, sent, it.what.type, count, at(block, bytes(op, begin))});
      begin += count;
    }
  };
  append(true, packed, op.sent);
  append(false, got, op.received);
  op.pending.add(first_.submit(parts_of(it, collective::all_to_all, op.list, here_.place)));
}

/// All_to_all between the nodes: to each node what its rank of this place gets, ordered by places.
template <class Inner, class Outer>
void hierarchy<Inner, Outer>::deal_between(staged& op) {
  auto const& it = op.it;
  auto const places = here_.places;
  auto const nodes = here_.nodes;
  bool const touchable = it.elements->touchable;
  void* const got = touchable ? op.b.data() : nullptr;
  auto const each = is_ragged(op) ? 0 : it.what.count / here_.size();
  auto const count_from = [&](int place, int node) {
    return is_ragged(op) ? op.received[static_cast<std::size_t>(place * nodes + node)] : each;
  };
  auto const all =
      is_ragged(op) ? std::accumulate(op.received.begin(), op.received.end(), std::int64_t{0}) : it.what.count;
  auto* const packed = scratch(op, op.a, all);
  op.list.clear();
  std::int64_t to = 0;
  for (int node = 0; node < nodes; ++node) {
    auto const begin = to;
    std::int64_t from = 0;
    for (int place = 0; place < places; ++place)
      for (int other = 0; other < nodes; ++other) {
        auto const count = count_from(place, other);
        if (other == node) {
          copy(op, at(packed, bytes(op, to)), at(got, bytes(op, from)), count);
          to += count;
        }
        from += count;
      }
    op.list.push_back({node, true, it.what.type, to - begin, at(packed, bytes(op, begin))});
  }
  settle(op);
  if (!is_ragged(op)) return between(op, collective::all_to_all, packed, it.to, it.what.count);
  for (int node = 0; node < nodes; ++node) {
    auto const* const row = op.parts.data() + here_.size() + node * places;
    std::int64_t count = 0;
    for (int place = 0; place < places; ++place) count += row[place].count;
    op.list.push_back({node, false, it.what.type, count, row[0].address});
  }
  op.pending.add(between_.submit(parts_of(it, collective::all_to_all, op.list, here_.node)));
}

/// Messages inside the node, and those between.
template <class Inner, class Outer>
void hierarchy<Inner, Outer>::exchange(staged& op) {
  std::vector<part> near;
  op.list.clear();
  for (auto const& each : op.parts) {
    auto& list = each.peer / here_.places == here_.node ? near : op.list;
    list.push_back(each);
    if (&list == &near) list.back().peer %= here_.places;
  }
  // What may be refused first, so that nothing is half sent.
  if (!op.list.empty()) relay_->start(op.it, op.list, op.pending);
  if (!near.empty()) op.pending.add(last_.submit(parts_of(op.it, collective::exchange, near, here_.place)));
}

}  // namespace trireme::comm::detail
