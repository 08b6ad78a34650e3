// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

void train(comm::threads_world& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world, parallel::diloco{}, compression::top_k{});
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
