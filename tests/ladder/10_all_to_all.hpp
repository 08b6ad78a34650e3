#pragma once

#include "support.hpp"

namespace ladder {

/// The elements that rank `from` sends to rank `to` in the ragged form, known to both.
inline std::int64_t ragged_part(int from, int to, std::int64_t each) {
  return (from + 2 * to) % 3 == 1 ? 0 : each - each * ((from + to) % 4) / 8;
}

template <class T, class World>
void ragged_all_to_all(World& world, std::int64_t each, how way) {
  int const p = world.size();
  int const me = world.rank();
  std::vector<std::int64_t> sent_to;
  std::vector<std::int64_t> received_from;
  for (int rank = 0; rank < p; ++rank) {
    sent_to.push_back(ragged_part(me, rank, each));
    received_from.push_back(ragged_part(rank, me, each));
  }
  std::span<std::int64_t const> const sends(sent_to);
  std::span<std::int64_t const> const receives(received_from);
  message<T, World> from(world, sum_of(sent_to), way, values<T>(me));
  message<T, World> to(world, sum_of(received_from), way);
  auto const sent = bytes_of(world, [&] {
    call(
        way, [&] { world.all_to_all(from.input(), sends, to.view(), receives); },
        [&] { return world.all_to_all_async(from.input(), sends, to.view(), receives); });
  });
  auto const at = where<T>(world, "ragged all_to_all", each, way);
  expect_same(from.read(), 0, values<T>(me), sum_of(sent_to), at);
  auto const got = to.read();
  std::int64_t first = 0;
  for (int rank = 0; rank < p; ++rank) {
    std::int64_t there = 0;
    for (int other = 0; other < me; ++other) there += ragged_part(rank, other, each);
    auto const count = ragged_part(rank, me, each);
    expect_same(got, first, values<T>(rank) + there, count, at);
    first += count;
  }
  expect_bytes(sent, sum_of(sent_to) - sent_to[static_cast<std::size_t>(me)], sizeof(T), at);
}

template <class World>
void all_to_all(World& world) {
  int const p = world.size();
  int const me = world.rank();
  for_types([&]<class T>(T) {
    for_counts<T>(p, [&](std::int64_t each, how way) {
      if constexpr (!trireme::has_all_to_all<World, T, space_of_world<World>>) {
        skipped(world, "all_to_all");
      } else {
        message<T, World> from(world, each * p, way, values<T>(me));
        message<T, World> to(world, each * p, way);
        auto const sent = bytes_of(world, [&] {
          call(
              way, [&] { world.all_to_all(from.input(), to.view()); },
              [&] { return world.all_to_all_async(from.input(), to.view()); });
        });
        auto const at = where<T>(world, "all_to_all", each, way);
        expect_same(from.read(), 0, values<T>(me), each * p, at);
        auto const got = to.read();
        for (int rank = 0; rank < p; ++rank) expect_same(got, each * rank, values<T>(rank) + each * me, each, at);
        expect_bytes(sent, each * (p - 1), sizeof(T), at);
      }
      if constexpr (!trireme::has_ragged_all_to_all<World, T, space_of_world<World>>)
        skipped(world, "ragged all_to_all");
      else
        ragged_all_to_all<T>(world, each, way);
    });
  });
}

}  // namespace ladder
