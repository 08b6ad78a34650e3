// test-compilers: g++ clang++
// expected-error: trireme::parallel: a strategy's has.settle needs settle(bool taken, gradient_numbers const&)
#include "trireme/trireme.hpp"

using namespace trireme;

struct unsaid : parallel::data {
  template <class Env, class Comm>
  struct instance {
    static constexpr parallel::strategy_hooks has{.end = true};
    bool end(std::int64_t) { return false; }
    std::optional<gradient_numbers> settle(bool, gradient_numbers const& found) { return found; }
    instance(unsaid const&, parallel::owned_state<Env, Comm> const&) {}
  };
};

void train(comm::self_world& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world, unsaid{});
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
