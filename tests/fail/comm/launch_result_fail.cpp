// test-compilers: g++ clang++
// expected-error: trireme::launch: the body returns an object that can be neither copied nor moved
#include "trireme/comm/launch.hpp"

using namespace trireme;

void run() {
  launch(
      comm::threads{.ranks = 2}, [](auto& world) -> auto& { return world; });
}
