// test-compilers: g++ clang++
// expected-error: trireme::trainer: either the rows or the columns of a matrix may be the samples: pass
// samples_in_rows(matrix) or samples_in_columns(matrix)
#include <Eigen/Core>

#include "trireme/trireme.hpp"

using namespace trireme;

void learn(comm::self_world& world, Eigen::MatrixXf const& x, std::vector<float> const& y) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  trainer.step(x, y);
}
