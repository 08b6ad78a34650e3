#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
using transfers_of = std::vector<trireme::transfer<space_of_world<World>>>;

template <class World>
void exchange_as(World& world, how way, transfers_of<World> const& transfers) {
  call(
      way, [&] { world.exchange(transfers); }, [&] { return world.exchange_async(transfers); });
}

/// Each sends to the next and receives from the one before; alone, to and from itself.
template <class T, class World>
void exchange_ring(World& world, std::int64_t count, how way) {
  int const p = world.size();
  int const me = world.rank();
  int const before = (me + p - 1) % p;
  message<T, World> from(world, count, way, values<T>(me));
  message<T, World> to(world, count, way);
  auto const sent = bytes_of(world, [&] {
    exchange_as(world, way, {trireme::send_to((me + 1) % p, from.view()), trireme::receive_from(before, to.view())});
  });
  auto const at = where<T>(world, "exchange in a ring", count, way);
  expect_same(to.read(), 0, values<T>(before), count, at);
  expect_same(from.read(), 0, values<T>(me), count, at);
  expect_bytes(sent, p == 1 ? 0 : count, sizeof(T), at);
}

/// Neighbours swap; with an odd number of ranks the last one does not even call.
template <class World>
void exchange_pairs(World& world, how way) {
  int const partner = world.rank() ^ 1;
  if (partner >= world.size()) return;
  std::int64_t const count = 1001;
  message<float, World> from(world, count, way, values<float>(world.rank()));
  message<float, World> to(world, count, way);
  exchange_as(world, way, {trireme::receive_from(partner, to.view()), trireme::send_to(partner, from.view())});
  expect_same(to.read(), 0, values<float>(partner), count, where<float>(world, "exchange in pairs", count, way));
}

/// Only from the first rank to the last, which do nothing else; then nothing at all.
template <class World>
void exchange_one_way(World& world, how way) {
  int const last = world.size() - 1;
  if (last > 0 && world.rank() == 0) {
    message<std::int32_t, World> from(world, 7, way, values<std::int32_t>(0));
    exchange_as(world, way, {trireme::send_to(last, from.view())});
  } else if (last > 0 && world.rank() == last) {
    message<std::int32_t, World> to(world, 7, way);
    exchange_as(world, way, {trireme::receive_from(0, to.view())});
    expect_same(to.read(), 0, values<std::int32_t>(0), 7, where<std::int32_t>(world, "exchange one way", 7, way));
  }
  exchange_as(world, way, {});
}

/// With all ranks, also itself: three messages each, of several types and sizes, also empty, which are matched in
/// order.
template <class World>
void exchange_all(World& world, how way) {
  using trireme::receive_from;
  using trireme::send_to;
  int const p = world.size();
  int const me = world.rank();
  auto const size = [](int from, int to) { return static_cast<std::int64_t>((3 * from + to) % 5 * 700); };
  std::vector<message<float, World>> floats;
  std::vector<message<std::int64_t, World>> integers;
  std::vector<message<std::byte, World>> bytes;
  floats.reserve(static_cast<std::size_t>(2 * p));
  integers.reserve(static_cast<std::size_t>(2 * p));
  bytes.reserve(static_cast<std::size_t>(2 * p));
  transfers_of<World> transfers;
  for (int peer = 0; peer < p; ++peer) {
    transfers.push_back(send_to(peer, floats.emplace_back(world, size(me, peer), way, values<float>(me)).view()));
    transfers.push_back(send_to(peer, integers.emplace_back(world, peer, way, values<std::int64_t>(me)).view()));
    transfers.push_back(send_to(peer, bytes.emplace_back(world, 33, way, values<std::byte>(me)).view()));
  }
  for (int peer = p - 1; peer >= 0; --peer) {
    transfers.push_back(receive_from(peer, floats.emplace_back(world, size(peer, me), way).view()));
    transfers.push_back(receive_from(peer, integers.emplace_back(world, me, way).view()));
    transfers.push_back(receive_from(peer, bytes.emplace_back(world, 33, way).view()));
  }
  exchange_as(world, way, transfers);
  for (int peer = 0; peer < p; ++peer) {
    auto const k = static_cast<std::size_t>(2 * p - 1 - peer);
    auto const at = text(where<float>(world, "exchange with everybody", p, way), ", from ", peer);
    expect_same(floats[k].read(), 0, values<float>(peer), size(peer, me), at);
    expect_same(integers[k].read(), 0, values<std::int64_t>(peer), me, at);
    expect_same(bytes[k].read(), 0, values<std::byte>(peer), 33, at);
  }
}

/// Many in flight, finished in another order, with a collective of all in between.
template <class World>
void exchange_in_flight(World& world) {
  int const p = world.size();
  int const next = (world.rank() + 1) % p;
  int const before = (world.rank() + p - 1) % p;
  constexpr int many = 20;
  std::vector<message<double, World>> from;
  std::vector<message<double, World>> to;
  std::vector<decltype(world.exchange_async(transfers_of<World>{}))> pending;
  for (int k = 0; k < many; ++k) {
    from.emplace_back(world, 100 * k, how{}, values<double>(world.rank()) + k);
    to.emplace_back(world, 100 * k, how{});
  }
  for (std::size_t k = 0; k < many; ++k)
    pending.push_back(world.exchange_async(
        transfers_of<World>{trireme::send_to(next, from[k].view()), trireme::receive_from(before, to[k].view())}));
  world.barrier();
  while (!pending.back().test()) continue;
  while (!pending.empty()) pending.pop_back();
  for (int k = 0; k < many; ++k)
    expect_same(to[static_cast<std::size_t>(k)].read(), 0, values<double>(before) + k, 100 * k,
                where<double>(world, "exchange in flight", 100 * k));
}

template <class World>
void exchange(World& world) {
  if constexpr (!trireme::has_exchange<World, space_of_world<World>>) {
    skipped(world, "exchange");
  } else {
    for_types([&]<class T>(T) {
      for_counts<T>(1, [&](std::int64_t count, how way) { exchange_ring<T>(world, count, way); });
    });
    for (auto const way : {how{false, false}, how{true, false}, how{false, true}, how{true, true}}) {
      exchange_pairs(world, way);
      exchange_one_way(world, way);
      exchange_all(world, way);
    }
    exchange_in_flight(world);
  }
}

}  // namespace ladder
