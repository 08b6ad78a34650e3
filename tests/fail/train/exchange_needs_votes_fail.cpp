// test-compilers: g++ clang++
// expected-error: trireme::make_exchange: illegal combination: every trainer votes with all_reduce
#include "trireme/trireme.hpp"
#include "world.hpp"

using namespace trireme;

struct without_votes : world {
  without_votes split(int color, int key);
  without_votes duplicate();
  void all_reduce(int values);
};

void train(without_votes& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world, parallel::zero<1>{});
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
