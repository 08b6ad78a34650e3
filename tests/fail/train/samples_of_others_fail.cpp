// test-compilers: g++ clang++
// expected-error: trireme::trainer: samples must be float, or double in precision::fp64; tokens and classes must be
// std::int32_t: convert them by dense<float>(samples) or dense<std::int32_t>(samples)
#include "trireme/trireme.hpp"

using namespace trireme;

void learn(comm::self_world& world, std::vector<float> const& x, std::vector<std::int64_t> const& classes) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  trainer.step(x, classes);
}
