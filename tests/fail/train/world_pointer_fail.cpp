// test-compilers: g++ clang++
// expected-error: trireme::trainer: a pointer is not a policy: pass the world, the model or the description itself
#include "trireme/trireme.hpp"

using namespace trireme;

void train(comm::self_world& world) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, &world);
  auto const data = data::function([](float x) { return x; }, {.samples = 8});
  trainer.fit(data, {.steps = 1});
}
