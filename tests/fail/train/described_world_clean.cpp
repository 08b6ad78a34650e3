// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

void train() {
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
    auto const data = data::function([](float x) { return x; }, {.samples = 8});
    trainer.fit(data, {.steps = 1});
  });
}
