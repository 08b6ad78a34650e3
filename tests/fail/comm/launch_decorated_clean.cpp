// test-compilers: g++ clang++
#include "trireme/comm/counted.hpp"
#include "trireme/comm/decorate.hpp"

using namespace trireme;

void run() {
  launch(comm::decorate(comm::threads{}, comm::counted{}), [](auto& world) { world.barrier(); });
}
