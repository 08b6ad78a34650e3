// test-compilers: g++ clang++
// expected-error: trireme::trainer: these samples are double, but the network takes float: pass dense<float>(samples),
// which converts them, or train in precision::fp64
#include "trireme/trireme.hpp"

using namespace trireme;

void learn(comm::self_world& world, std::vector<double> const& x) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  trainer.step(x, dense<float>(x));
}
