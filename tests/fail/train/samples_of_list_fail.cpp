// test-compilers: g++ clang++
// expected-error: trireme::trainer: pass samples as arrays: std::vector, std::array or std::span of numbers or of
// std::array, tensor_view{pointer, {samples, numbers}}, strided_view, std::mdspan, a vector of Eigen
#include <list>

#include "trireme/trireme.hpp"

using namespace trireme;

tensor<float> outputs(comm::self_world& world, std::list<float> const& x) {
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  return trainer.predict(x);
}
