// test-compilers: g++ clang++
// expected-error: trireme::trainer: a description such as comm::threads{} is not a world: call launch(description,
// [](auto& world) { ... }) and pass the world that the body gets
#include "trireme/trireme.hpp"

using namespace trireme;

void train() {
  comm::threads world{.ranks = 2};
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  auto const data = data::function([](float x) { return x; }, {.samples = 8});
  trainer.fit(data, {.steps = 1});
}
