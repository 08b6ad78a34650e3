#pragma once

#include <cstdint>

#include "trireme/comm/traffic.hpp"

namespace trireme::comm::detail {

/// What passes between this rank and one other in one command. Over all peers `sent` adds up to command::bytes and
/// `messages` to command::messages.
struct peer_share {
  std::uint64_t sent = 0;
  std::uint64_t messages = 0;
  std::uint64_t received = 0;
};

/// The bytes that one command moves between `rank` and `peer`, where `peer` is not `rank`.
[[nodiscard]] inline peer_share share_with(int peer, command const& it, int rank, int size) noexcept {
  auto const bytes = [&](std::int64_t count) { return static_cast<std::uint64_t>(count) * it.element_bytes; };
  auto const root = it.what.root;
  peer_share out;
  switch (it.what.kind) {
    case collective::all_reduce:
      out.sent = out.received = bytes(slice_of(it.what.count, it.element_bytes, rank, size).count +
                                      slice_of(it.what.count, it.element_bytes, peer, size).count);
      break;
    case collective::all_gather:
      if (it.what.shape != 0) {
        out.sent = bytes(it.counts[static_cast<std::size_t>(rank)]);
        out.received = bytes(it.counts[static_cast<std::size_t>(peer)]);
        break;
      }
      [[fallthrough]];
    case collective::reduce_scatter:
      out.sent = out.received = bytes(it.what.count / size);
      break;
    case collective::all_to_all:
      if (it.what.shape == 0) {
        out.sent = out.received = bytes(it.what.count / size);
        break;
      }
      [[fallthrough]];
    case collective::exchange:
      for (auto const& each : it.parts) {
        if (each.peer != peer || each.count == 0) continue;
        (each.sent ? out.sent : out.received) += static_cast<std::uint64_t>(each.count) * size_of(each.type);
        if (each.sent) ++out.messages;
      }
      return out;
    case collective::broadcast:
    case collective::scatter:
      if (rank == root) out.sent = bytes(it.what.count);
      if (peer == root) out.received = bytes(it.what.count);
      break;
    case collective::reduce:
    case collective::gather:
      if (peer == root) out.sent = bytes(it.what.count);
      if (rank == root) out.received = bytes(it.what.count);
      break;
    default:
      return out;
  }
  bool const to_root = it.what.kind == collective::gather || it.what.kind == collective::reduce;
  out.messages = it.messages == 0 || (to_root && peer != root) ? 0 : 1;
  return out;
}

}  // namespace trireme::comm::detail
