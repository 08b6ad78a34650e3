// test-ranks: 2 4
// A GPT with experts trains the same for every distribution of its experts over processes.
#include "../watchdog.hpp"
#include "expert_cases.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;
using expert_cases::clipped;

TEST_CASE("over MPI distributed experts end where serial training ends", "[train][experts][mpi]") {
  watchdog dog("experts over MPI");
  auto const training = expert_cases::twenty_steps(12);  // as with threads
  auto const uneven = expert_cases::twenty_steps(5);
  auto const serial = training.alone(clipped);
  auto const serial_uneven = uneven.alone(clipped);
  launch(comm::mpi{}, [&](auto& world) {
    expert_cases::for_each_mesh(world.size(), [&](std::string const& name, auto const& policy) {
      dog.now(name);
      INFO(name);
      toy::check_near(training.train(world, clipped, policy), serial, 1e-5);
    });
    dog.now("uneven micro-batches");
    toy::check_near(uneven.train(world, clipped, parallel::expert{}), serial_uneven, 1e-5);
  });
}
