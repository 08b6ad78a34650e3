// test-compilers: g++ clang++
// expected-error: trireme::parallel: a strategy's has.end needs end(std::int64_t step) -> bool, and the reverse
#include "trireme/trireme.hpp"

using namespace trireme;

struct misspelt : parallel::data {
  template <class Env, class Comm>
  struct instance {
    static constexpr parallel::strategy_hooks has{.end = true};
    bool ends(std::int64_t) { return false; }
    instance(misspelt const&, parallel::owned_state<Env, Comm> const&) {}
  };
};

void train(comm::self_world& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world, misspelt{});
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
