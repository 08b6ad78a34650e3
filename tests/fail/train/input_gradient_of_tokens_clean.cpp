// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

tensor<float> slopes(comm::self_world& world, samples const& some) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  return trainer.input_gradient(some);
}
