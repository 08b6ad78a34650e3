// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

double train(comm::self_world& world, std::vector<float> const& numbers) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  return trainer.step(numbers, numbers).loss;
}
