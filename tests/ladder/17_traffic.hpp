#pragma once

#include "11_exchange.hpp"

namespace ladder {

/// Bytes, messages and collectives by the formulas of traffic_counters; the other rungs compare bytes, too.
template <class World>
void traffic(World& world) {
  using space = space_of_world<World>;
  int const p = world.size();
  int const me = world.rank();
  auto const others = static_cast<std::uint64_t>(p - 1);
  message<float, World> mine(world, 10 * p, {}, values<float>(me));
  message<float, World> more(world, 10 * p, {}, values<float>(me));
  auto const counts = [&](char const* what, std::uint64_t bytes, std::uint64_t messages, auto action) {
    auto const before = world.traffic();
    action();
    auto const now = world.traffic();
    auto const at = text(what, " on ", World::name, ", rank ", me, " of ", p);
    expect(now.collectives == before.collectives + 1, at, " counts as ", now.collectives - before.collectives);
    expect(now.bytes_sent == before.bytes_sent + bytes, at, ": ", now.bytes_sent - before.bytes_sent, " bytes");
    expect(now.messages_sent == before.messages_sent + messages, at, ": ", now.messages_sent - before.messages_sent,
           " messages");
  };
  counts("barrier", 0, 0, [&] { world.barrier(); });
  counts("reduce_scatter", 40 * others, others, [&] { world.reduce_scatter(mine.view()); });
  counts("all_gather", 40 * others, others, [&] { world.all_gather(mine.view()); });
  bool const last = me == p - 1;
  counts("broadcast", last ? 0 : 40 * static_cast<std::uint64_t>(p), last ? 0 : 1,
         [&] { world.broadcast(mine.view(), 0); });
  if constexpr (trireme::has_all_to_all<World, float, space>)
    counts("all_to_all", 40 * others, others, [&] { world.all_to_all(mine.input(), more.view()); });
  if constexpr (trireme::has_reduce<World, float, reduction::sum, space>)
    counts("reduce", me == 0 ? 0 : 40 * static_cast<std::uint64_t>(p), me == 0 ? 0 : 1,
           [&] { world.reduce(mine.view(), 0); });
  if constexpr (trireme::has_gather<World, float, space>)
    counts("gather", me == 0 ? 0 : 40, me == 0 ? 0 : 1,
           [&] { world.gather(mine.view().flat(0, 10), me == 0 ? more.view() : more.view().flat(0, 0), 0); });
  if constexpr (trireme::has_scatter<World, float, space>)
    counts("scatter", me == 0 ? 40 * others : 0, me == 0 ? others : 0,
           [&] { world.scatter(me == 0 ? mine.view() : mine.view().flat(0, 0), more.view().flat(0, 10), 0); });
  if constexpr (trireme::has_exchange<World, space>)
    counts("exchange", p == 1 ? 0 : 40, p == 1 ? 0 : 1, [&] {
      world.exchange(transfers_of<World>{trireme::send_to((me + 1) % p, mine.view().flat(0, 10)),
                                         trireme::receive_from((me + p - 1) % p, more.view().flat(0, 10))});
    });
  // Over all ranks, the bytes of all_reduce are exactly those of the optimal algorithm.
  for (std::int64_t const count : {1, 17, 1001}) {
    message<float, World> values_of_all(world, count, {}, values<float>(me));
    auto const sent = bytes_of(world, [&] { world.all_reduce(values_of_all.view()); });
    message<std::uint64_t, World> sum(world, 1, {}, &sent);
    world.all_reduce(sum.view());
    expect(sum.read()[0] == 2 * static_cast<std::uint64_t>(count) * others * sizeof(float),
           "all ranks together counted ", sum.read()[0], " bytes in an all_reduce of ", count);
  }
}

}  // namespace ladder
