#include <list>

#include "trireme/trireme.hpp"

using namespace trireme;

tensor<float> outputs(comm::self_world& world, std::list<float> const& x) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  return trainer.predict(std::vector<float>(x.begin(), x.end()));
}
