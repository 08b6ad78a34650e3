#pragma once

#include <algorithm>
#include <string>

#include "trireme/comm/node/operation.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm::detail {

// Messages between two ranks. If the receiver can access the memory of a message, the sender only writes a label with
// its address, and the receiver reads it there. Other messages are copied through the slots of the channel.

[[nodiscard]] inline std::uint64_t bytes_of(node_operation const& op, raw_transfer const& it) noexcept {
  return op.touches() ? static_cast<std::uint64_t>(it.count) * size_of(it.type) : 0;
}

inline bool send_step(node_operation& op, node_operation::message& it) {
  using enum node_operation::message::state;
  auto& where = *op.where;
  auto& pair = where.pairs[static_cast<std::size_t>(it.what.peer)];
  auto& channel = where.mine().channel(it.what.peer, where.size());
  if (it.at == closing) {
    if (channel.tail.load() < it.target) return false;
    it.at = finished;
    return true;
  }
  if (pair.sent != it.number) return false;
  auto const head = channel.head.load(std::memory_order_relaxed);
  auto const untaken = head - channel.tail.load();
  if (untaken >= node_channel::ring) return false;
  auto const bytes = bytes_of(op, it.what);
  bool const direct = bytes == 0 || it.what.peer == where.rank || where.launch->is_reached(it.what.address, bytes);
  if (!direct && untaken >= node_channel::slot_count) return false;
  if (it.at == waiting) {
    where.mine().label(it.what.peer, head, where.size()) = {where.launch->offset(it.what.address), it.what.count,
                                                            it.what.type, direct};
    if (direct) it.moved = bytes;
    it.at = moving;
  }
  auto const count = std::min<std::uint64_t>(bytes - it.moved, node_channel::slot_bytes);
  if (count > 0)
    op.it.elements->copy(where.mine().channel_slot(it.what.peer, head, where.size()), it.what.address + it.moved,
                         count);
  it.moved += count;
  if (it.moved == bytes) {
    it.at = closing;
    it.target = head + 1;
    ++pair.sent;
  }
  channel.head.store(head + 1);
  return true;
}

inline bool receive_step(node_operation& op, node_operation::message& it) {
  using enum node_operation::message::state;
  auto& where = *op.where;
  auto& pair = where.pairs[static_cast<std::size_t>(it.what.peer)];
  auto& theirs = where.board(it.what.peer);
  auto& channel = theirs.channel(where.rank, where.size());
  auto const tail = channel.tail.load(std::memory_order_relaxed);
  if (pair.received != it.number || channel.head.load() == tail) return false;
  auto const bytes = bytes_of(op, it.what);
  auto const& label = theirs.label(where.rank, tail, where.size());
  if (it.at == waiting) {
    if (label.type != it.what.type || label.count != it.what.count) {
      op.launch().fail(differing_transfers(op.launch().who, where.world_rank(it.what.peer),
                                           {where.rank, true, label.type, label.count, nullptr},
                                           where.world_rank(where.rank), it.what));
      return false;
    }
    it.at = label.direct ? closing : moving;
  }
  bool const direct = it.at == closing;
  auto const left = bytes - it.moved;
  auto const count = direct ? static_cast<std::uint64_t>(direct_step(op, static_cast<std::int64_t>(left), 1))
                            : std::min<std::uint64_t>(left, node_channel::slot_bytes);
  if (count > 0) {
    auto* const from =
        direct ? where.at(it.what.peer, label.place) + it.moved : theirs.channel_slot(where.rank, tail, where.size());
    auto const copied = work_inside(op, [&] {
      if (is_streamed(op.it.elements, bytes))
        stream_copy(it.what.address + it.moved, from, count);
      else
        op.it.elements->copy(it.what.address + it.moved, from, count);
    });
    if (!copied) return false;
  }
  it.moved += count;
  bool const over = it.moved == bytes;
  if (over) {
    it.at = finished;
    ++pair.received;
  }
  if (over || !direct) channel.tail.store(tail + 1);
  return true;
}

/// Moves all elements that can be moved now; returns whether there were any.
inline bool exchange_step(node_operation& op) {
  bool any = false;
  bool open = false;
  for (auto& each : op.messages) {
    if (each.at == node_operation::message::state::finished) continue;
    any = (each.what.sent ? send_step(op, each) : receive_step(op, each)) || any;
    open = open || each.at != node_operation::message::state::finished;
  }
  if (any) op.where->ring();
  if (!open) op.become(node_operation::stage::finished);
  return any || !open;
}

/// Whether a message is waiting for its peer.
[[nodiscard]] inline bool awaits(node_operation const& op, node_operation::message const& it) noexcept {
  using enum node_operation::message::state;
  auto const& where = *op.where;
  if (it.at == finished) return false;
  if (!it.what.sent) {
    auto const& channel = where.board(it.what.peer).channel(where.rank, where.size());
    return channel.head.load() == channel.tail.load();
  }
  auto const& channel = where.mine().channel(it.what.peer, where.size());
  if (it.at == closing) return channel.tail.load() < it.target;
  return channel.head.load() - channel.tail.load() >= node_channel::slot_count;
}

/// Whether, in a ragged all_to_all, all ranks send this one the numbers of elements that it expects; otherwise the
/// launch fails.
[[nodiscard]] inline bool counts_agree(node_operation const& op) {
  auto const& where = *op.where;
  for (int rank = 0; rank < where.size(); ++rank) {
    auto const sent = where.portions(rank, op.number)[static_cast<std::size_t>(where.rank)].count;
    auto const wanted = op.raw_transfers[static_cast<std::size_t>(where.size() + rank)].count;
    if (sent == wanted) continue;
    op.launch().fail(text(op.launch().who, ": ", describe(op), ": rank ", where.world_rank(rank), " sends ",
                          how_many(sent, "element"), " to rank ", where.world_rank(where.rank), ", which expects ",
                          wanted, "; exchange the counts first"));
    return false;
  }
  return true;
}

}  // namespace trireme::comm::detail
