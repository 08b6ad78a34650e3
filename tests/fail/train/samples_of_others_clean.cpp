#include "trireme/trireme.hpp"

using namespace trireme;

void learn(comm::self_world& world, std::vector<float> const& x, std::vector<std::int64_t> const& classes) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  trainer.step(x, dense<std::int32_t>(classes));
}
