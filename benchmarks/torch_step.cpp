// Training steps of a LibTorch module, one thread a rank, as one JSON object:
//   torch_step mlp|cnn bare|copied|buckets RANKS STEPS WARMUP
//     bare     LibTorch's own loop, on one rank
//     copied   interop::data_parallel; gradients are copied into buckets and back
//     buckets  the same with .gradients_in_buckets
// torch_ddp.py starts it in turns with PyTorch's DDP, which has the same models.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "trireme/interop/torch.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
namespace modules = torch::nn;

namespace {

modules::Sequential made(std::string const& model) {
  if (model == "mlp") {  // 654,000 parameters
    return modules::Sequential(modules::Linear(784, 600), modules::ReLU(), modules::Linear(600, 300), modules::ReLU(),
                               modules::Linear(300, 10));
  }
  return modules::Sequential(modules::Conv2d(modules::Conv2dOptions(1, 16, 3).padding(1)), modules::BatchNorm2d(16),
                             modules::ReLU(), modules::MaxPool2d(2),
                             modules::Conv2d(modules::Conv2dOptions(16, 32, 3).padding(1)), modules::BatchNorm2d(32),
                             modules::ReLU(), modules::MaxPool2d(2), modules::Flatten(),
                             modules::Linear(32 * 7 * 7, 128), modules::ReLU(), modules::Linear(128, 10));
}

struct options {
  std::string model, mode;
  int ranks, steps, warmup;
};

/// Milliseconds of each step.
template <class World>
std::vector<double> timed(options const& wanted, World& world) {
  torch::set_num_threads(1);
  auto net = made(wanted.model);
  auto const x = wanted.model == "mlp" ? torch::randn({64, 784}) : torch::randn({32, 1, 28, 28});
  auto const y = torch::randint(10, {x.size(0)}, at::kLong);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  std::vector<double> all;
  auto const run = [&](auto&& backward) {
    for (int step = -wanted.warmup; step < wanted.steps; ++step) {
      auto const start = std::chrono::steady_clock::now();
      optimizer.zero_grad();
      backward(torch::nll_loss(torch::log_softmax(net->forward(x), 1), y));
      optimizer.step();
      if (step >= 0)
        all.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
  };
  if (wanted.mode == "bare") {
    run([](torch::Tensor const& loss) { loss.backward(); });
  } else {
    auto ddp = interop::data_parallel(net, world, {.gradients_in_buckets = wanted.mode == "buckets"});
    run([&](torch::Tensor const& loss) { loss.backward(), ddp.finish(); });
  }
  return all;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 6) {
    std::fputs("torch_step mlp|cnn bare|copied|buckets RANKS STEPS WARMUP\n", stderr);
    return 2;
  }
  options const wanted{arguments[1], arguments[2], std::atoi(arguments[3]), std::atoi(arguments[4]),
                       std::atoi(arguments[5])};
  launch(comm::threads{.ranks = wanted.ranks}, [&](auto& world) {
    auto steps = timed(wanted, world);
    if (world.rank() != 0 || steps.empty()) return;
    std::sort(steps.begin(), steps.end());
    std::printf(
        "{\"system\": \"trireme\", \"version\": \"%s\", \"model\": \"%s\", \"mode\": \"%s\", \"ranks\": %d, "
        "\"step_ms_median\": %.4f, \"step_ms_best\": %.4f}\n",
        TORCH_VERSION, wanted.model.c_str(), wanted.mode.c_str(), wanted.ranks, steps[steps.size() / 2], steps[0]);
  });
} catch (std::exception const& problem) {
  std::fprintf(stderr, "torch_step: %s\n", problem.what());
  return 1;
}
