// test-ranks: 1 2 4
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/mpi.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/trireme.hpp"

// Strategies and precisions with a run state of their own, by MPI: the same bits as by threads.

using namespace trireme;

namespace {

template <class World, class... Policies>
std::uint64_t trained(World& world, Policies const&... policies) {
  auto const data = data::function([](float x) { return std::sin(x); }, {.samples = 96});
  auto trainer = make_trainer(nn::mlp{.hidden = {24, 16}}, optim::adamw{.rate = 1e-2, .clip = 0.5}, world, policies...);
  trainer.initialise(3);
  trainer.fit(data, {.steps = 24, .batch = 16, .stop_after = 21});
  return trainer.state_hash();
}

template <class... Policies>
void same_as_threads(std::string const& name, Policies const&... policies) {
  watchdog const guard(name);
  launch(comm::mpi{}, [&](auto& world) {
    auto const by_mpi = trained(world, policies...);
    std::uint64_t by_threads = 0;
    launch(comm::threads{.ranks = world.size()}, [&](auto& threads) {
      auto const mine = trained(threads, policies...);
      if (threads.rank() == 0) by_threads = mine;
    });
    INFO(name << " on " << world.size() << " ranks");
    CHECK(by_mpi == by_threads);
  });
}

}  // namespace

TEST_CASE("diloco, a parameter server and fp16 end by MPI as by threads", "[train][mpi]") {
  same_as_threads("diloco", parallel::diloco{.period = 5});
  same_as_threads("stale server", parallel::parameter_server{.staleness = 2});
  same_as_threads("fp16", precision::fp16{.growth_steps = 6});
}
