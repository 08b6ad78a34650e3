#include <Eigen/Core>

#include "trireme/trireme.hpp"

using namespace trireme;

void learn(comm::self_world& world, Eigen::MatrixXf const& x, std::vector<float> const& y) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  trainer.step(samples_in_rows(x), y);
}
