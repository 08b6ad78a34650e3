// test-compilers: g++ clang++
// expected-error: trireme::launch: the body takes its world by value, and a world cannot be copied; take a reference:
// [](auto& world) { ... }
#include "trireme/comm/launch.hpp"

using namespace trireme;

void run() {
  launch(comm::threads{.ranks = 2}, [](auto world) { world.barrier(); });
}
