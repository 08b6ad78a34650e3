#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/comm/geometry.hpp"

namespace trireme::comm {

/// Bytes that a rank sends to other ranks in one collective: `traffic()` counts them on every communicator, and a plan
/// adds them up before a run. `count` is the number of elements of the whole view.
///
/// Bytes  the bandwidth-optimal volume, by the moves of comm/rows.hpp; a broadcast counts as a chain, in which each
///        rank except the last sends everything to the next. The real traffic may differ, but every communicator counts
///        these bytes: comm::mpi sends more where latency dominates (small values are sent whole), and in shared memory
///        ranks read instead of sending.
namespace bytes_sent {

/// Of any collective without parts. `counts` are those of a ragged call: the elements of each rank.
[[nodiscard]] constexpr std::uint64_t of(call const& what, std::size_t element_bytes, int rank, int size,
                                         std::span<std::int64_t const> counts = {}) {
  return static_cast<std::uint64_t>(geometry{what, element_bytes, size, counts}.sent(rank)) * element_bytes;
}
[[nodiscard]] constexpr std::uint64_t all_reduce(std::int64_t count, std::size_t element_bytes, int rank, int size) {
  return of({.kind = collective::all_reduce, .count = count}, element_bytes, rank, size);
}
[[nodiscard]] constexpr std::uint64_t reduce_scatter(std::int64_t count, std::size_t element_bytes, int size) {
  return of({.kind = collective::reduce_scatter, .count = count}, element_bytes, 0, size);
}
[[nodiscard]] constexpr std::uint64_t reduce_scatter(std::span<std::int64_t const> counts, std::size_t element_bytes,
                                                     int rank) {
  std::int64_t all = 0;
  for (auto const each : counts) all += each;
  return of({.kind = collective::reduce_scatter, .count = all}, element_bytes, rank, static_cast<int>(counts.size()),
            counts);
}
[[nodiscard]] constexpr std::uint64_t all_gather(std::int64_t count, std::size_t element_bytes, int size) {
  return of({.kind = collective::all_gather, .count = count}, element_bytes, 0, size);
}
[[nodiscard]] constexpr std::uint64_t all_gather(std::span<std::int64_t const> counts, std::size_t element_bytes,
                                                 int rank) {
  return of({.kind = collective::all_gather}, element_bytes, rank, static_cast<int>(counts.size()), counts);
}
[[nodiscard]] constexpr std::uint64_t all_to_all(std::int64_t count, std::size_t element_bytes, int size) {
  return of({.kind = collective::all_to_all, .count = count}, element_bytes, 0, size);
}
[[nodiscard]] constexpr std::uint64_t broadcast(std::int64_t count, std::size_t element_bytes, int rank, int root,
                                                int size) {
  return of({.kind = collective::broadcast, .root = root, .count = count}, element_bytes, rank, size);
}
[[nodiscard]] constexpr std::uint64_t reduce(std::int64_t count, std::size_t element_bytes, int rank, int root) {
  // Every rank but the root sends the same to the root, so two ranks represent all.
  return rank == root ? 0 : of({.kind = collective::reduce, .root = 1, .count = count}, element_bytes, 0, 2);
}
/// `count` is of one part.
[[nodiscard]] constexpr std::uint64_t gather(std::int64_t count, std::size_t element_bytes, int rank, int root) {
  return reduce(count, element_bytes, rank, root);
}
[[nodiscard]] constexpr std::uint64_t scatter(std::int64_t count, std::size_t element_bytes, int rank, int root,
                                              int size) {
  return of({.kind = collective::scatter, .root = root, .count = count}, element_bytes, rank, size);
}

}  // namespace bytes_sent

/// ceil(log2(size)).
[[nodiscard]] constexpr int rounds_among(int size) noexcept {
  int count = 0;
  while ((std::int64_t{1} << count) < size) ++count;
  return count;
}

namespace detail {

/// The most bytes of all blocks of a collective that rounds between machines gather, because latency dominates.
inline constexpr std::size_t gathered_bytes = std::size_t{64} << 10;
/// The most bytes of one block that rounds distribute, or that they gather where all blocks are kept.
inline constexpr std::size_t distributed_bytes = std::size_t{4} << 10;

/// Whether rounds gather the whole values of all ranks, and each rank then combines or keeps its own.
[[nodiscard]] constexpr bool gathers_terms(geometry const& it) noexcept {
  auto const all = static_cast<std::size_t>(it.what.count) * it.element_bytes * static_cast<std::size_t>(it.size);
  return (it.of().moves[0].given == region::whole || it.of().count == 2) && all <= gathered_bytes;
}
/// Whether an exchange has a message to or from another rank. Messages to the rank itself do not count.
[[nodiscard]] constexpr bool meets_others(command const& it) noexcept {
  std::int64_t received = 0, to_itself = -static_cast<std::int64_t>(it.messages);
  for (auto const& each : it.raw_transfers) {
    if (each.count > 0) ++(each.sent ? to_itself : received);
  }
  return it.messages > 0 || received > to_itself;
}
/// Whether rounds distribute to each rank the block that it owns.
[[nodiscard]] constexpr bool distributes_blocks(geometry const& it) noexcept {
  return it.of().into != cut::per_rank &&
         static_cast<std::size_t>(it.largest()) * it.element_bytes <= distributed_bytes;
}

}  // namespace detail

/// The number of network latencies that a rank waits one after the other in a command, as comm::mpi runs it between
/// machines: its rounds, and as many again to gather the results of an all_reduce or reduce of middle size. Large
/// values travel outside the rounds, one message for each move. Sums carried from rank to rank and MPI's own
/// collectives are counted in the same way. An exchange counts as one if it has a message to or from another rank.
/// Plans and comm::throttled use this.
[[nodiscard]] constexpr int latencies_of(command const& it, int size) noexcept {
  if (size == 1) return 0;
  if (it.what.kind == collective::exchange) return detail::meets_others(it) ? 1 : 0;
  auto const rounds = rounds_among(size);
  geometry const where{it.what, it.element_bytes, size, it.counts};
  if (!where.of().moves[0].folds || where.of().into != cut::lines || detail::gathers_terms(where)) return rounds;
  return detail::distributes_blocks(where) ? 2 * rounds : std::max(rounds, 2);
}

namespace detail {

[[nodiscard]] inline std::uint32_t messages_of(command const& it, int size) noexcept {
  if (it.bytes == 0) return 0;
  auto const& first = row_of(it.what.kind).moves[0];
  return first.receivers == side::root || first.passed_on ? 1U : static_cast<std::uint32_t>(size - 1);
}

/// Sets the counts of a command with parts.
inline void count_transfers(command& it, int rank) noexcept {
  it.bytes = 0;
  it.messages = 0;
  for (auto const& each : it.raw_transfers) {
    if (!each.sent || each.peer == rank || each.count == 0) continue;
    it.bytes += static_cast<std::uint64_t>(each.count) * size_of(each.type);
    ++it.messages;
  }
}
/// Sets the counts of a command: its bytes and messages.
inline void count_sent(command& it, int rank, int size) noexcept {
  if (!it.raw_transfers.empty()) return count_transfers(it, rank);
  it.bytes = bytes_sent::of(it.what, it.element_bytes, rank, size, it.counts);
  it.messages = messages_of(it, size);
}

/// The traffic between this rank and one other in one command. Over all peers `sent` adds up to command::bytes and
/// `messages` to command::messages.
struct peer_traffic {
  std::uint64_t sent = 0;
  std::uint64_t messages = 0;
  std::uint64_t received = 0;
};

/// The bytes that one command moves between `rank` and `peer`, where `peer` is not `rank`.
[[nodiscard]] inline peer_traffic traffic_with(int peer, command const& it, int rank, int size) noexcept {
  peer_traffic out;
  if (it.what.kind == collective::exchange || !it.raw_transfers.empty()) {
    for (auto const& each : it.raw_transfers) {
      if (each.peer != peer || each.count == 0) continue;
      (each.sent ? out.sent : out.received) += static_cast<std::uint64_t>(each.count) * size_of(each.type);
      if (each.sent) ++out.messages;
    }
    return out;
  }
  geometry const where{it.what, it.element_bytes, size, it.counts};
  bool heard = false;
  for (std::size_t i = 0; i < where.of().count; ++i) {
    auto const& each = where.of().moves[i];
    auto const sent = where.counted(each, rank, peer);
    out.sent += static_cast<std::uint64_t>(sent) * it.element_bytes;
    out.received += static_cast<std::uint64_t>(where.counted(each, peer, rank)) * it.element_bytes;
    heard = heard || (each.passed_on ? sent > 0 : where.takes(each, peer));
  }
  out.messages = it.messages != 0 && heard ? 1 : 0;
  return out;
}

}  // namespace detail

}  // namespace trireme::comm
