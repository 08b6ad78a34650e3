// test-compilers: g++ clang++
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"

using namespace trireme;

struct reading {
  double value;
  int rank;
};

void run() {
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    std::vector<reading> values(2);
    world.broadcast(values, 0);
  });
}
