// test-compilers: g++ clang++
// expected-error: trireme::parallel: a strategy's instance must list the functions to be called
#include "trireme/trireme.hpp"

using namespace trireme;

struct wordless : parallel::data {
  template <class Env, class Comm>
  struct instance {
    bool end(std::int64_t) { return false; }
    instance(wordless const&, parallel::owned_state<Env, Comm> const&) {}
  };
};

void train(comm::self_world& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world, wordless{});
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
