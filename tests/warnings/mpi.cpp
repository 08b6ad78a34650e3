// The worlds of MPI, compiled with every warning (tests/headers.cmake).
#include <ladder.hpp>

#include "trireme/comm/mpi.hpp"
#include "trireme/comm/mpi_gathering.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

void worlds(MPI_Comm theirs) {
  launch(comm::mpi{}, [](auto& world) { ladder::for_each_rung([&](char const*, auto rung) { rung(world); }); });
  auto world = comm::mpi::borrow(theirs);
  auto trainer =
      make_trainer(nn::mlp{}, optim::sgd{.learning_rate = 1e-2}, world, precision::bf16{}, parallel::zero<1>{});
  trainer.fit(data::function([](float x) { return x; }, {}), {.steps = 1});
}
