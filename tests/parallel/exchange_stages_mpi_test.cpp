// test-ranks: 2 3
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;

TEST_CASE("every stage of zero over MPI equals serial training, in shared memory and by messages",
          "[parallel][exchange][mpi]") {
  watchdog const guard("every stage over MPI");
  auto const twenty_steps = toy::of_gpt({.steps = 20, .batch = 10, .micro_batches = 6});
  auto const serial = twenty_steps.alone(toy::steady);
  for (bool const shared : {true, false}) {
    launch(comm::mpi{.shared_memory = shared}, [&](auto& world) {
      auto const equals_serial = [&](auto const& strategy) {
        INFO(to_string(strategy) << " on rank " << world.rank() << " of " << world.size());
        toy::check_near(twenty_steps.train(world, toy::steady, strategy), serial, 1e-5, 1e-5);
      };
      equals_serial(parallel::data{.bucket_bytes = 8192});
      equals_serial(parallel::zero<1>{.bucket_bytes = 8192});
      equals_serial(parallel::zero<2>{.bucket_bytes = 8192});
      equals_serial(parallel::zero<3>{.bucket_bytes = 8192});
    });
  }
}

TEST_CASE("reproducible sums give the bits of one rank over MPI", "[parallel][exchange][mpi]") {
  watchdog const guard("reproducible over MPI");
  auto const in_a_tree = toy::of_gpt({.steps = 5, .batch = 20, .micro_batches = 8});
  auto const expected = in_a_tree.alone(toy::adaptive, parallel::data{.reproducible = true}).state;
  launch(comm::mpi{}, [&](auto& world) {
    auto const state = [&](auto const& strategy) { return in_a_tree.train(world, toy::adaptive, strategy).state; };
    if (world.size() == 3) {
      CHECK_THROWS_WITH(state(parallel::data{.reproducible = true}),
                        "trireme::exchange: parallel::data{.bucket_bytes = 26214400, .reproducible = true} on 3 ranks: "
                        "reproducible sums need a power of two of ranks; use another number");
      return;
    }
    CHECK((state(parallel::data{.reproducible = true}) == expected));
    CHECK((state(parallel::zero<1>{.reproducible = true}) == expected));
    CHECK((state(parallel::zero<2>{.reproducible = true}) == expected));
    CHECK((state(parallel::zero<3>{.reproducible = true}) == expected));
  });
}
