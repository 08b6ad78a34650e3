// test-compilers: g++ clang++
// expected-error: trireme::make_exchange: the world lacks a function that every communicator has
#include "trireme/trireme.hpp"
#include "world.hpp"

using namespace trireme;

struct without_barrier : world {
  without_barrier split(int color, int key);
  without_barrier duplicate();
  void barrier(int reason);
};

void train(without_barrier& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world);
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
