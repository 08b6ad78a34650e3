// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

void train(comm::self_world& world) {
  auto mine = world.duplicate();
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, mine);
  auto const data = data::function([](float x) { return x; }, {.samples = 8});
  trainer.fit(data, {.steps = 1});
}
