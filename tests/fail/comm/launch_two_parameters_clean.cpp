// test-compilers: g++ clang++
#include "trireme/comm/launch.hpp"

using namespace trireme;

void run() {
  launch(comm::threads{.ranks = 2}, [](auto& world, int rank = 0) { static_cast<void>(world.size() + rank); });
}
