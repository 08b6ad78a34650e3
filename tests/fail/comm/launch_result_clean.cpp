// test-compilers: g++ clang++
#include "trireme/comm/launch.hpp"

using namespace trireme;

void run() {
  launch(comm::threads{.ranks = 2}, [](auto& world) { return world.size(); });
}
