// test-compilers: g++ clang++
// expected-error: trireme::trainer: the inputs of this model are tokens, which have no gradients; input_gradient() is
// for models whose first layer reads numbers, such as nn::features
#include "trireme/trireme.hpp"

using namespace trireme;

tensor<float> slopes(comm::self_world& world, samples const& some) {
  auto trainer = make_trainer(nn::gpt{}, optim::adamw{}, world);
  return trainer.input_gradient(some);
}
