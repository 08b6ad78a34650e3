// test-compilers: g++ clang++
// expected-error: trireme::make_exchange: the first argument are the parameters, each with a name, its values and its
// gradient
#include "trireme/trireme.hpp"

using namespace trireme;

void train(comm::self_world& world, std::vector<float>& weights, std::vector<float>& gradients) {
  gradients = weights;
  auto exchange = make_exchange(weights, world);
  exchange.begin();
  exchange.ready("weights");
  if (exchange.finish().finite) exchange.publish();
}
