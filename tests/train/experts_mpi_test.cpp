// test-ranks: 2 4
// A GPT with experts is the same training however its experts are dealt out over processes.
#include "../catch.hpp"
#include "../watchdog.hpp"
#include "expert_cases.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;

TEST_CASE("over MPI dealt out experts end where serial training ends", "[train][experts][mpi]") {
  watchdog dog("experts over MPI");
  comm::self_world self;
  strategies::plan const plan{.batch = 8, .micro_batches = 8, .model = expert_cases::model()};
  strategies::plan const uneven{.batch = 5, .micro_batches = 5, .model = expert_cases::model()};
  auto const serial = strategies::train(self, parallel::data{}, plan);
  auto const serial_uneven = strategies::train(self, parallel::data{}, uneven);
  launch(comm::mpi{}, [&](auto& world) {
    auto const close = [](strategies::distance const& far) { strategies::check_near(far, 1e-5); };
    expert_cases::for_each_mesh(world.size(), [&](std::string const& name, auto const& policy) {
      dog.now(name);
      INFO(name);
      close(strategies::between(strategies::train(world, policy, plan, &serial), serial));
    });
    dog.now("uneven micro-batches");
    close(strategies::between(strategies::train(world, parallel::expert{}, uneven, &serial_uneven), serial_uneven));
  });
}
