// Ranks that share the positions of each sample train as one rank does, on threads.
#include "trireme/parallel/context.hpp"

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "strategies.hpp"
#include "trireme/comm/threads.hpp"

using namespace trireme;
using parallel::context_method;

namespace {

template <class Precision, class Parallel>
strategies::distance apart(int ranks, Parallel const& policy, strategies::outcome const& serial, nn::gpt const& model,
                           strategies::plan const& plan = {}) {
  strategies::distance far;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto const out = strategies::train<Precision>(world, policy, plan, &serial, model);
    if (world.rank() == 0) far = strategies::between(out, serial);
  });
  return far;
}

template <class Precision>
void compare(double most) {
  comm::self_world self;
  // Stretches of 6, 3, 4, 2 and 3 positions; more heads than ways, unevenly.
  nn::gpt const model{.vocabulary = 67, .context = 24, .layers = 2, .heads = 5, .channels = 30, .dropout = 0.1};
  strategies::plan const plan{.batch = 6, .micro_batches = 2};
  auto const serial = strategies::train<Precision>(self, parallel::data{}, plan, nullptr, model);
  for (std::int64_t const ways : {2, 3, 4}) {
    for (auto const& policy : {parallel::context{.ways = ways}, parallel::context{.ways = ways, .balanced = false},
                               parallel::context{.ways = ways, .method = context_method::all_to_all}}) {
      INFO(to_string(policy));
      auto const far = apart<Precision>(static_cast<int>(ways), policy, serial, model, plan);
      CHECK(far.loss < most);
      CHECK(far.norm < most);
      CHECK(far.values < most);
    }
  }
}

}  // namespace

TEST_CASE("context is serial training with dropout, by ring and by all_to_all", "[train][context]") {
  watchdog dog("context");
  compare<precision::fp32>(1e-5);
  compare<precision::fp64>(1e-10);
}

TEST_CASE("context in bfloat16 stays within the tolerance of the precision", "[train][context]") {
  watchdog dog("context in bfloat16");
  compare<precision::bf16>(precision::bf16::tolerance);
}
