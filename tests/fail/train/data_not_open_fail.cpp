// test-compilers: g++ clang++
// expected-error: trireme::trainer: this describes data that are not open yet: pass what its open() returns
#include "trireme/trireme.hpp"

using namespace trireme;

double train(comm::self_world& world) {
  data::token_file const text{.path = "text"};
  auto trainer = make_trainer(nn::gpt{}, optim::adamw{}, world);
  trainer.fit(text, {.steps = 1});
  return trainer.state_hash() != 0 ? 1 : 0;
}
