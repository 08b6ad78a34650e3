#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void barrier(World& world) {
  auto const before = world.traffic();
  for (int i = 0; i < 200; ++i) world.barrier();
  expect(world.traffic().bytes_sent == before.bytes_sent, "a barrier counts no bytes");
  expect(world.traffic().collectives == before.collectives + 200, "a barrier is a collective");
  if constexpr (requires { world.barrier_async(); }) {
    std::vector<decltype(world.barrier_async())> pending;
    for (int i = 0; i < 20; ++i) pending.push_back(world.barrier_async());
    world.barrier();
    while (!pending.back().test()) continue;
    pending[7].wait();
    pending.clear();
    expect(world.traffic().collectives == before.collectives + 221, "an asynchronous barrier is a collective");
  } else {
    skipped(world, "barrier_async");
  }
}

}  // namespace ladder
