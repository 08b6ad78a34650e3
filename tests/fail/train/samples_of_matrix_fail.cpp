// test-compilers: g++ clang++
// expected-error: trireme::trainer: a matrix does not say whether its rows or its columns are the samples: pass
// samples_in_rows(matrix) or samples_in_columns(matrix)
#include <Eigen/Core>

#include "trireme/trireme.hpp"

using namespace trireme;

void learn(comm::self_world& world, Eigen::MatrixXf const& x, std::vector<float> const& y) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  trainer.step(x, y);
}
