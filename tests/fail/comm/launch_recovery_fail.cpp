// test-compilers: g++ clang++
// expected-error: trireme::launch: comm::recovery needs comm::self{}, comm::threads{...}, comm::processes{...}
#include "trireme/comm/recovery.hpp"

using namespace trireme;

void run() {
  launch(2, comm::recovery{}, [](auto& world, int) { world.barrier(); });
}
