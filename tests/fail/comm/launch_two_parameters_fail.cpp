// test-compilers: g++ clang++
// expected-error: trireme::launch: the body cannot be called with this rank's world alone
#include "trireme/comm/launch.hpp"

using namespace trireme;

void run() {
  launch(comm::threads{.ranks = 2}, [](auto& world, int rank) { world.broadcast(rank, 0); });
}
