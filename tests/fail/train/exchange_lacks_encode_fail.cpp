// test-compilers: g++ clang++
// expected-error: trireme::make_exchange: the compressor lacks instance<Env>(description, elements)
#include "trireme/trireme.hpp"

using namespace trireme;

struct half_a_compressor {
  using policy_category = slot::compression;
  template <class Env>
  struct instance {
    instance(half_a_compressor const&, std::int64_t elements);
    std::int64_t payload_bytes(std::int64_t n);
    void decode(auto payload, auto gradient, bool add);
  };
};

void train(comm::threads_world& world, std::vector<foreign_parameter<float>> mine) {
  auto exchange = make_exchange(std::move(mine), world, half_a_compressor{});
  exchange.begin(mean_over_ranks{});
  exchange.ready("weights");
  if (exchange.step(optim::sgd{}).finite) exchange.verify_replicas();
}
