#include "trireme/trireme.hpp"

using namespace trireme;

void learn(comm::self_world& world, std::vector<double> const& x) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  trainer.step(dense<float>(x), dense<float>(x));
}
