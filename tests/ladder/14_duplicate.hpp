#pragma once

#include "support.hpp"

namespace ladder {

/// A duplicate has an order of calls of its own: a rank may interleave its calls with the original's in any way (unless
/// the communicator has one_order).
template <class World>
void duplicate(World& world) {
  int const p = world.size();
  int const me = world.rank();
  auto other = world.duplicate();
  expect(other.size() == p && other.rank() == me, "a duplicate has the same ranks");
  expect(other.traffic() == trireme::traffic_counters{}, "a duplicate counts from zero");
  for (int round = 0; round < 10; ++round) {
    message<float, World> here(world, 2000, {}, values<float>(me));
    message<float, World> there(world, 2000, {}, values<float>(me));
    auto const in_world = [&] { return world.all_reduce_async(here.view()); };
    auto const in_other = [&] { return other.all_reduce_async(there.view(), reduction::min{}); };
    bool const first = me % 2 == 0 || requires { requires World::one_order; };
    std::vector<decltype(in_world())> pending;
    if (first) pending.push_back(in_world());
    pending.push_back(in_other());
    if (!first) pending.push_back(in_world());
    pending.back().wait();
    pending.clear();
    auto const at = where<float>(world, "all_reduce beside a duplicate's", 2000);
    expect_reduced<reduction::sum, float>(world, here.read(), 0, 2000, at);
    expect_reduced<reduction::min, float>(world, there.read(), 0, 2000, at);
  }
  expect(other.traffic().collectives == 10, "a duplicate counts its own calls");
  {
    auto third = other.duplicate();
    other.barrier();
    third.barrier();
  }
  world.barrier();
}

}  // namespace ladder
