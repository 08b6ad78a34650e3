// test-compilers: g++ clang++
// expected-error: trireme::trainer: the world is const, but a trainer makes calls of it
#include "trireme/trireme.hpp"

using namespace trireme;

void train(comm::self_world const& world) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  auto const data = data::function([](float x) { return x; }, {.samples = 8});
  trainer.fit(data, {.steps = 1});
}
