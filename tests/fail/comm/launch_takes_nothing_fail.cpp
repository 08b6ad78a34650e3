// test-compilers: g++ clang++
// expected-error: trireme::launch: the body takes no argument, but is called with this rank's world
#include "trireme/comm/launch.hpp"

using namespace trireme;

void run() {
  launch(comm::threads{.ranks = 2}, [] {});
}
