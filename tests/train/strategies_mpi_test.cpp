// test-ranks: 2 3 4
// test-timeout: 200
// Every strategy and mesh is serial training, over MPI.
#include "strategies.hpp"

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;

TEST_CASE("over MPI every mesh ends where serial training ends", "[train][strategies][mpi]") {
  watchdog dog("strategies over MPI", std::chrono::seconds(180));
  strategies::plan const plan;
  comm::self_world self;
  auto const serial = strategies::train(self, parallel::data{}, plan);
  launch(comm::mpi{}, [&](auto& world) {
    strategies::for_each_mesh(world.size(), [&](std::string const& name, auto const& policy) {
      dog.now(name);
      INFO(name);
      strategies::check_near(strategies::between(strategies::train(world, policy, plan, &serial), serial), 1e-5);
    });
  });
}
