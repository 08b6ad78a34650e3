// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

double train(comm::self_world& world) {
  data::token_file const text{.path = "text"};
  auto trainer = make_trainer(nn::gpt{}, optim::adamw{}, world);
  trainer.fit(text.open(), {.steps = 1});
  return trainer.state_hash() != 0 ? 1 : 0;
}
