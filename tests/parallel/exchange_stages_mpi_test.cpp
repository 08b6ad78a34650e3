// test-ranks: 2 3
#include "../catch.hpp"
#include "../watchdog.hpp"
#include "exchange_training.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;

namespace {

template <class Comm, class Strategy>
void equals_serial(Comm& world, exchange_training::outcome const& serial, Strategy const& strategy) {
  INFO(to_string(strategy) << " on rank " << world.rank() << " of " << world.size());
  auto const mine = exchange_training::train(world, strategy, toy::steady);
  CHECK(toy::distance(serial.weights, mine.weights) < 1e-5);
  CHECK(toy::distance(serial.norms, mine.norms) < 1e-5);
  CHECK(toy::distance(serial.losses, mine.losses) < 1e-5);
}

}  // namespace

TEST_CASE("every stage of zero over MPI equals serial training, in shared memory and by messages",
          "[parallel][exchange][mpi]") {
  watchdog const guard("every stage over MPI");
  comm::self_world alone;
  auto const serial = exchange_training::train(alone, parallel::data{}, toy::steady);
  for (bool const shared : {true, false}) {
    launch(comm::mpi{.shared_memory = shared}, [&](auto& world) {
      equals_serial(world, serial, parallel::data{.bucket_bytes = 8192});
      equals_serial(world, serial, parallel::zero<1>{.bucket_bytes = 8192});
      equals_serial(world, serial, parallel::zero<2>{.bucket_bytes = 8192});
      equals_serial(world, serial, parallel::zero<3>{.bucket_bytes = 8192});
    });
  }
}

TEST_CASE("reproducible sums give the bits of one rank over MPI", "[parallel][exchange][mpi]") {
  watchdog const guard("reproducible over MPI");
  exchange_training::plan const plan{.steps = 5,
                                     .batches = {.batch = 20, .micro_batches = 8, .seed = 7, .prefetch = 0}};
  comm::self_world alone;
  auto const expected =
      exchange_training::train(alone, parallel::data{.reproducible = true}, toy::adaptive, plan).weights;
  launch(comm::mpi{}, [&](auto& world) {
    if (world.size() == 3) {
      CHECK_THROWS_WITH(exchange_training::train(world, parallel::data{.reproducible = true}, toy::adaptive, plan),
                        "trireme::exchange: parallel::data{.bucket_bytes = 26214400, .reproducible = true} on 3 ranks: "
                        "only a power of "
                        "two of them form the sums of one rank; use another number");
      return;
    }
    for (auto const& weights :
         {exchange_training::train(world, parallel::data{.reproducible = true}, toy::adaptive, plan).weights,
          exchange_training::train(world, parallel::zero<1>{.reproducible = true}, toy::adaptive, plan).weights,
          exchange_training::train(world, parallel::zero<2>{.reproducible = true}, toy::adaptive, plan).weights,
          exchange_training::train(world, parallel::zero<3>{.reproducible = true}, toy::adaptive, plan).weights}) {
      CHECK(weights == expected);
    }
  });
}
