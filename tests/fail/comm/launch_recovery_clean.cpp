// test-compilers: g++ clang++
#include "trireme/comm/recovery.hpp"

using namespace trireme;

void run() {
  launch(comm::threads{.ranks = 2}, comm::recovery{}, [](auto& world, int) { world.barrier(); });
}
