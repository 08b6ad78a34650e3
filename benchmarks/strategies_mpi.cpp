// Ranks    are processes: mpirun -n N strategies_mpi [--ranks N] [--batch N] [--rounds N] ...
#include "strategies_steps.hpp"
#include "trireme/comm/mpi.hpp"

int main(int count, char** arguments) try {
  auto const what = strategies_benchmark::parse(count, arguments);
  trireme::launch(trireme::comm::mpi{.deadline = std::chrono::minutes(10)},
                  [&](auto& world) { strategies_benchmark::measure(world, "mpi", what); });
  return 0;
} catch (std::exception const& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
