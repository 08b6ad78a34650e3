#include <algorithm>
#include <trireme/trireme.hpp>
#include <vector>

#if defined(__cpp_rtti) || __cplusplus <= 202002L
#error "this is to be compiled without RTTI and after C++20"
#endif

using namespace trireme;

// The largest weight after some steps of weights^2 / 2. With `two` optimizers the second is refused.
__attribute__((visibility("default"))) float train(bool two) {
  float largest = 0;
  trireme::launch(comm::threads{.ranks = 2}, [&](auto& world) {
    std::vector<float> weights(100, 1), gradients(100);
    std::vector<foreign_parameter<float>> mine{{"weights", tensor_view{weights}, tensor_view{gradients}}};
    auto exchange = make_exchange(mine, world, parallel::zero<1>{});
    for (int step = 0; step < 100; ++step) {
      exchange.begin();
      gradients = weights;
      exchange.ready("weights");
      if (two && step == 1) {
        exchange.step(optim::sgd{.learning_rate = 0.1});
      } else {
        exchange.step(optim::adamw{.learning_rate = 0.05});
      }
    }
    if (world.rank() == 0) largest = *std::max_element(weights.begin(), weights.end());
  });
  return largest;
}
