// What small_step.py compiles twice: the time of a step of a small network on ranks of comm::mpi.
//   program [STEPS [shared|messages]]: rank 0 prints microseconds a step, the median of ten parts.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "trireme/comm/mpi.hpp"
#include "trireme/trireme.hpp"

namespace {

void measure(int steps, bool shared_memory) {
  using namespace trireme;
  auto world = comm::mpi::borrow(MPI_COMM_WORLD, std::chrono::seconds(60), shared_memory);
  auto trainer = make_trainer(nn::mlp{.inputs = 4, .hidden = {32, 32}}, optim::adamw{.learning_rate = 1e-3}, world);
  std::vector<float> features(400), targets(100);
  for (std::size_t i = 0; i < features.size(); ++i) features[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = features[4 * i] * features[4 * i + 1];
  tensor_view<float const> const x(features.data(), shape{100, 4}), y(targets.data(), shape{100, 1});
  for (int i = 0; i < steps; ++i) trainer.step(x, y);
  std::array<double, 10> parts{};
  for (auto& part : parts) {
    world.barrier();
    auto const began = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) trainer.step(x, y);
    part = 1e6 * std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / steps;
  }
  std::ranges::sort(parts);
  if (world.rank() == 0) std::printf("%.3f\n", (parts[4] + parts[5]) / 2);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  measure(argc > 1 ? std::atoi(argv[1]) : 2000, argc <= 2 || std::string_view(argv[2]) == "shared");
  MPI_Finalize();
}
