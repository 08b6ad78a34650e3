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
}
