// test-compilers: g++ clang++
// expected-error: trireme::trainer: the world is a temporary, which ends before the trainer that borrows it
#include "trireme/trireme.hpp"

using namespace trireme;

void train(comm::self_world& world) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world.duplicate());
  auto const data = data::function([](float x) { return x; }, {.samples = 8});
  trainer.fit(data, {.steps = 1});
}
