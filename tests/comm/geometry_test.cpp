// test-sanitize: none
#include "trireme/comm/geometry.hpp"

#include <cstdint>
#include <numeric>
#include <vector>

#include "../catch.hpp"
#include "trireme/comm/traffic.hpp"

namespace comm = trireme::comm;
using comm::collective;

namespace {

/// The counts before rows existed, written out for each collective.
namespace by_hand {

std::int64_t sent(comm::call const& what, std::size_t element_bytes, int rank, int size,
                  std::vector<std::int64_t> const& counts) {
  switch (what.kind) {
    case collective::all_reduce: {
      auto const own = comm::slice_of(what.count, element_bytes, rank, size).count;
      return what.count - own + own * (size - 1);
    }
    case collective::all_gather:
      return counts.empty() ? what.count / size * (size - 1) : counts[static_cast<std::size_t>(rank)] * (size - 1);
    case collective::reduce_scatter:
      if (!counts.empty()) return what.count - counts[static_cast<std::size_t>(rank)];
      [[fallthrough]];
    case collective::all_to_all:
      return what.count / size * (size - 1);
    case collective::broadcast:
      return (rank + 1) % size == what.root ? 0 : what.count;
    case collective::scatter:
      return rank == what.root ? what.count * (size - 1) : 0;
    case collective::reduce:
    case collective::gather:
      return rank == what.root ? 0 : what.count;
    default:
      return 0;
  }
}

comm::detail::peer_traffic share(int peer, comm::command const& it, int rank, int size) {
  auto const bytes = [&](std::int64_t count) { return static_cast<std::uint64_t>(count) * it.element_bytes; };
  auto const root = it.what.root;
  comm::detail::peer_traffic out;
  switch (it.what.kind) {
    case collective::all_reduce:
      out.sent = out.received = bytes(comm::slice_of(it.what.count, it.element_bytes, rank, size).count +
                                      comm::slice_of(it.what.count, it.element_bytes, peer, size).count);
      break;
    case collective::all_gather:
      if (it.counts.empty()) {
        out.sent = out.received = bytes(it.what.count / size);
      } else {
        out.sent = bytes(it.counts[static_cast<std::size_t>(rank)]);
        out.received = bytes(it.counts[static_cast<std::size_t>(peer)]);
      }
      break;
    case collective::reduce_scatter:
      if (!it.counts.empty()) {
        out.sent = bytes(it.counts[static_cast<std::size_t>(peer)]);
        out.received = bytes(it.counts[static_cast<std::size_t>(rank)]);
        break;
      }
      [[fallthrough]];
    case collective::all_to_all:
      out.sent = out.received = bytes(it.what.count / size);
      break;
    case collective::broadcast:
      if ((rank + 1) % size == peer && peer != root) out.sent = bytes(it.what.count);
      if ((peer + 1) % size == rank && rank != root) out.received = bytes(it.what.count);
      out.messages = out.sent == 0 ? 0 : 1;
      return out;
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

std::uint32_t messages(comm::command const& it, int size) {
  if (it.bytes == 0) return 0;
  bool const to_root = it.what.kind == collective::gather || it.what.kind == collective::reduce;
  return to_root || it.what.kind == collective::broadcast ? 1U : static_cast<std::uint32_t>(size - 1);
}

}  // namespace by_hand

/// Every collective except those with parts, on 1 to 64 ranks, even and ragged, with each root on few ranks.
template <class Visit>
void for_calls(Visit visit) {
  for (int size = 1; size <= 64; ++size)
    for (std::size_t const element_bytes : {1U, 2U, 4U, 8U})
      for (std::int64_t const each : {0, 1, 7, 64, 1001})
        for (int kind = 0; kind < comm::collective_kinds; ++kind) {
          comm::call what{.kind = static_cast<collective>(kind), .count = each};
          auto const into = comm::row_of(what.kind).into;
          if (into == comm::cut::equal) what.count = each * size;
          bool const rooted = comm::row_of(what.kind).moves[0].senders == comm::side::root ||
                              comm::row_of(what.kind).moves[0].receivers == comm::side::root;
          for (int const root : {0, size / 2, size - 1}) {
            what.root = rooted ? root : -1;
            visit(what, element_bytes, size, std::vector<std::int64_t>{});
            if (!rooted || size == 1) break;
          }
          if (what.kind != collective::all_gather && what.kind != collective::reduce_scatter) continue;
          std::vector<std::int64_t> counts;
          for (int rank = 0; rank < size; ++rank) counts.push_back((rank * 31 + each) % 5 * each);
          what.count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
          what.shape = 7;
          visit(what, element_bytes, size, counts);
        }
}

}  // namespace

TEST_CASE("rows count the same bytes as the formulas, for every collective on 1 to 64 ranks", "[comm]") {
  long calls = 0;
  long wrong = 0;
  for_calls([&](comm::call const& what, std::size_t element_bytes, int size, std::vector<std::int64_t> const& counts) {
    for (int rank = 0; rank < size; rank += size < 9 ? 1 : 5) {
      comm::command it{.what = what, .element_bytes = element_bytes, .counts = counts};
      it.bytes = comm::bytes_sent::of(what, element_bytes, rank, size, counts);
      it.messages = comm::detail::messages_of(it, size);
      auto const sent =
          static_cast<std::uint64_t>(by_hand::sent(what, element_bytes, rank, size, counts)) * element_bytes;
      if (it.bytes != sent || it.messages != by_hand::messages(it, size)) ++wrong;
      std::uint64_t to_peers = 0;
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        auto const got = comm::detail::traffic_with(peer, it, rank, size);
        auto const wanted = by_hand::share(peer, it, rank, size);
        if (got.sent != wanted.sent || got.received != wanted.received || got.messages != wanted.messages) ++wrong;
        to_peers += got.sent;
      }
      if (to_peers != it.bytes) ++wrong;
      ++calls;
    }
  });
  CHECK(calls > 100'000);
  CHECK(wrong == 0);
}

TEST_CASE("all elements that are sent are received, and fill the receivers' views without gaps", "[comm]") {
  long wrong = 0;
  for_calls([&](comm::call const& what, std::size_t element_bytes, int size, std::vector<std::int64_t> const& counts) {
    if (element_bytes != 4 || size > 17) return;
    comm::geometry const where{what, element_bytes, size, counts};
    for (std::size_t i = 0; i < where.of().count; ++i) {
      auto const& does = where.of().moves[i];
      for (int receiver = 0; receiver < size; ++receiver) {
        std::int64_t next = 0;
        for (int sender = 0; sender < size; ++sender) {
          auto const given = where.given(does, sender, receiver);
          auto const taken = where.taken(does, sender, receiver);
          if (given.count != taken.count) ++wrong;
          if (does.folds && given.first != taken.first) ++wrong;
          if (does.taken != comm::region::of_sender || taken.count == 0) continue;
          if (taken.first != next) ++wrong;
          next = taken.first + taken.count;
        }
        if (does.taken == comm::region::of_sender && where.takes(does, receiver) && next != where.all()) ++wrong;
      }
    }
  });
  CHECK(wrong == 0);
}
