// test-ranks: 2 3 4
// test-timeout: 200
// Every strategy and mesh equals serial training, over MPI.
#include "../watchdog.hpp"
#include "meshes.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;

TEST_CASE("over MPI every mesh ends where serial training ends", "[train][strategies][mpi]") {
  watchdog dog("strategies over MPI", std::chrono::seconds(180));
  auto const serial = meshes::twenty_steps.alone(meshes::clipped);
  launch(comm::mpi{}, [&](auto& world) {
    meshes::for_each_mesh(world.size(), [&](std::string const& name, auto const& policy) {
      dog.now(name);
      INFO(name);
      toy::check_near(meshes::twenty_steps.train(world, meshes::clipped, policy), serial, 1e-5);
    });
  });
}
