#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void split(World& world) {
  int const p = world.size();
  int const rank = world.rank();
  {  // halves, in reverse order
    auto part = world.split(rank % 2, -rank);
    int const members = rank % 2 == 0 ? (p + 1) / 2 : p / 2;
    expect(part.size() == members, "a half has ", part.size(), " ranks");
    expect(part.rank() == members - 1 - rank / 2, "rank ", rank, " became ", part.rank());
    expect(part.traffic() == trireme::traffic_counters{}, "a split communicator counts from zero");
    std::int64_t const mine = rank;
    message<std::int64_t, World> sum(world, 1, {}, &mine);
    auto pending = world.all_reduce_async(sum.view());  // in the whole, while the part works
    std::vector<float> const ranks(5000, static_cast<float>(rank));
    message<float, World> large(world, 5000, {}, ranks.data());
    part.all_reduce(large.view(), reduction::max{});
    expect(large.read()[4999] == static_cast<float>(rank % 2 + 2 * (members - 1)), "the largest rank of a half");
    pending.wait();
    expect(sum.read()[0] == p * (p - 1) / 2, "the whole still works");
    auto alone = part.split(part.rank(), 0);
    expect(alone.size() == 1 && alone.rank() == 0, "a part of one");
    alone.barrier();
  }
  {  // equal keys keep the order of ranks
    auto same = world.split(3, 0);
    expect(same.size() == p && same.rank() == rank, "equal keys keep the order");
    if constexpr (std::is_move_assignable_v<World>) world = std::move(same);
    world.barrier();
  }
}

}  // namespace ladder
