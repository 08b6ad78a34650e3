// test-compilers: g++ clang++
// expected-error: trireme::make_exchange: illegal combination: the ranks of this strategy take local steps, and it
// sends neither gradients nor changes
#include "trireme/trireme.hpp"

using namespace trireme;

/// A strategy whose ranks take local steps.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

void train(comm::threads_world& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world, alone{}, compression::top_k{});
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
