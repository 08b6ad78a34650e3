// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

void train(comm::self_world& world, std::vector<float>& weights, std::vector<float>& gradients) {
  gradients = weights;
  std::vector<foreign_parameter<float>> mine{{"weights", tensor_view{weights}, tensor_view{gradients}}};
  auto exchange = make_exchange(mine, world);
  exchange.begin();
  exchange.ready("weights");
  if (exchange.finish().finite) exchange.publish();
  exchange.begin({.micro_batches = 1});
  exchange.weight(0.5);
  exchange.accumulate();
  exchange.ready(0);
  exchange.step(optim::sgd{.learning_rate = 0.1});
  exchange.step(optim::sgd{.learning_rate = 0.1}, 1);
  exchange.step([](auto) {});
  parallel::vote vote;
  exchange.finish(vote);
  if (exchange.settle(exchange.count(vote).finite, {}))
    for (auto const& each : exchange.segments()) each.value[0] -= each.gradient.terms[0][0];
  exchange.initialise(1);
  exchange.broadcast();
  exchange.verify_replicas();
  exchange.abandon();
  checkpoint::save(exchange, "run");
  if (checkpoint::load(exchange, "run", optim::sgd{}).at.step != exchange.steps()) exchange.refresh_parameters();
}
