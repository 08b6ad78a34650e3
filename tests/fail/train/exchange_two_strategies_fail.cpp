// test-compilers: g++ clang++
// expected-error: trireme::make_exchange: takes parameters, a world, and at most one parallel strategy
#include "trireme/trireme.hpp"

using namespace trireme;

void train(comm::threads_world& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world, parallel::data{}, parallel::zero<1>{});
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
