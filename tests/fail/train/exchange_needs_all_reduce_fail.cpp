// test-compilers: g++ clang++
// expected-error: trireme::make_exchange: illegal combination: parallel::data sums gradients with all_reduce
#include "trireme/trireme.hpp"
#include "world.hpp"

using namespace trireme;

struct without_floats : world {
  without_floats split(int color, int key);
  without_floats duplicate();
  template <class T>
  void all_reduce(tensor_view<T> values, auto op) requires(!std::is_same_v<T, float>);
};

void train(without_floats& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world);
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
