#include "trireme/comm/counted.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"

using namespace trireme;

namespace {

void expect(bool condition, char const* what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace

static_assert(communicator<comm::counted_world<comm::threads_world>>);

TEST_CASE("bytes and messages by operation and by peer add up to the traffic, for every collective",
          "[comm][counted]") {
  watchdog dog("counting");
  auto const ranks = GENERATE(1, 2, 3, 4);
  launch(comm::decorate(comm::threads{.ranks = ranks}, comm::counted{}), [](auto& world) {
    auto const p = world.size();
    auto const r = world.rank();
    std::vector<float> values(60), more(60), part(static_cast<std::size_t>(60 / p));
    std::vector<std::int64_t> counts, sent, received;
    std::int64_t sum = 0, out = 0, in = 0;
    for (int rank = 0; rank < p; ++rank) {
      counts.push_back(rank + 1);
      sent.push_back(r + rank);
      received.push_back(rank + r);
      sum += counts.back();
      out += sent.back();
      in += received.back();
    }
    tensor_view const all{values};
    auto const calls = [&](auto& where) {
      where.barrier();
      where.all_reduce(all);
      where.reduce_scatter(all, reduction::max{});
      where.all_gather_async(all).wait();
      where.all_gather(tensor_view(values.data(), shape{sum}), counts);
      for (int root = 0; root < p; ++root) {
        where.broadcast(all, root);
        where.reduce(all, root);
        where.gather(tensor_view{part}, all, root);
        where.scatter(all, tensor_view{part}, root);
      }
      where.all_to_all(all, tensor_view{more});
      where.all_to_all(tensor_view(values.data(), shape{out}), sent, tensor_view(more.data(), shape{in}), received);
      where.exchange({send_to((r + 1) % p, all), receive_from((r + p - 1) % p, tensor_view{more})});
    };
    calls(world);
    auto const once = world.counts();
    std::uint64_t bytes = 0, messages = 0, peer_bytes = 0, peer_messages = 0;
    for (auto const& each : once.by_operation) bytes += each.bytes, messages += each.messages;
    for (auto const& each : once.by_peer) peer_bytes += each.bytes, peer_messages += each.messages;
    expect(bytes == world.traffic().bytes_sent && messages == world.traffic().messages_sent, "by operation");
    expect(peer_bytes == bytes && peer_messages == messages, "by peer");
    expect(once[comm::collective::all_gather].calls == 2, "calls");
    expect(once[comm::collective::all_reduce].bytes == comm::bytes_sent::all_reduce(60, 4, r, p), "all_reduce");
    expect(once.by_peer[static_cast<std::size_t>(r)].bytes == 0, "nothing to itself");

    // In a split with the ranks the other way round the same peers get the same bytes.
    auto reversed = world.split(0, -r);
    expect(reversed.rank() == p - 1 - r, "reversed");
    reversed.broadcast(all, p - 1);  // rank 0 of the whole
    auto const more_counts = world.counts();
    auto const next = static_cast<std::size_t>(p - 1);  // rank 0 of the split
    if (r == 0 && p > 1)
      expect(more_counts.by_peer[next].bytes == once.by_peer[next].bytes + 240, "by the names of the whole world");
  });
}

TEST_CASE("the table of traffic is printed as text", "[comm][counted]") {
  std::string table;
  launch(comm::decorate(comm::threads{.ranks = 3}, comm::counted{}), [&](auto& world) {
    std::vector<std::uint8_t> values(100);
    for (int i = 0; i < 2; ++i) world.broadcast(tensor_view{values}, 1);
    if (world.rank() == 1) table = to_string(world.counts());
  });
  CHECK(table ==
        "rank 1 broadcast: 2 calls, 2 messages, 200 bytes\n"
        "rank 1 to rank 2: 2 calls, 2 messages, 200 bytes\n");
}
