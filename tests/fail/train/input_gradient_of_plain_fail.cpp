// test-compilers: g++ clang++
// expected-error: trireme::trainer: input_gradient() needs a plain model with input_gradient(samples) -> tensor<float>,
// which this one lacks
#include "trireme/trireme.hpp"

using namespace trireme;

struct plain {
  using policy_category = slot::model;
  void visit_parameters(auto&& visit) {
    visit("a", tensor_view<float>(&a, shape{1}), tensor_view<float>(&a, shape{1}));
  }
  double forward(samples const&) { return 0; }
  void backward(auto&& ready) { ready("a"); }
  float a = 1;
};

tensor<float> slopes(comm::self_world& world, samples const& some) {
  auto trainer = make_trainer(plain{}, optim::adamw{}, world);
  return trainer.input_gradient(some);
}
