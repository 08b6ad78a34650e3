// Ranks    are threads: strategies_threads [--ranks N] [--batch N] [--rounds N] ... (strategies_steps.hpp lists them)
#include "strategies_steps.hpp"

int main(int count, char** arguments) try {
  auto const what = strategies_benchmark::parse(count, arguments);
  trireme::launch(trireme::comm::threads{.ranks = static_cast<int>(what.ranks), .deadline = std::chrono::minutes(10)},
                  [&](auto& world) { strategies_benchmark::measure(world, "threads", what); });
  return 0;
} catch (std::exception const& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
