// test-compilers: g++ clang++
// expected-error: trireme::launch: the body takes its world by value, and a world cannot be copied; take a reference:
// [](auto& world) { ... }
#include "trireme/comm/counted.hpp"
#include "trireme/comm/decorate.hpp"

using namespace trireme;

void run() {
  launch(comm::decorate(comm::threads{}, comm::counted{}), [](auto world) { world.barrier(); });
}
