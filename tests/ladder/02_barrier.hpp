#pragma once

#include "support.hpp"

namespace ladder {

template <class World>
void barrier(World& world) {
  auto const before = world.traffic();
  for (int i = 0; i < 200; ++i) world.barrier();
  expect(world.traffic().bytes_sent == before.bytes_sent, "a barrier counts no bytes");
  expect(world.traffic().collectives == before.collectives + 200, "a barrier is a collective");
}

}  // namespace ladder
