// Training steps of a LibTorch module, one thread per rank:
//   torch_step mlp|cnn|transformer MODE[,MODE...] RANKS [TRACE]
//     bare     LibTorch's own loop, on one rank
//     copied   interop::data_parallel; gradients are copied into buckets and back
//     buckets  the same with .gradients_in_buckets
// For each number on standard input it runs that many steps in each mode, in one module, and prints a JSON object per
// mode; so torch_ddp.py can alternate it with other programs. With TRACE, buckets have 512 KiB, and a timeline of each
// rank is written to that file for ui.perfetto.dev (or chrome://tracing).
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "trireme/formats/chrome_trace.hpp"
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
  if (model == "transformer") {  // (positions, samples) of tokens; 654,000 parameters
    auto const block = modules::TransformerEncoderLayerOptions(128, 4).dim_feedforward(512).dropout(0);
    return modules::Sequential(modules::Embedding(1000, 128), modules::TransformerEncoderLayer(block),
                               modules::TransformerEncoderLayer(block), modules::Linear(128, 1000),
                               modules::Flatten(modules::FlattenOptions().start_dim(0).end_dim(1)));
  }
  return modules::Sequential(modules::Conv2d(modules::Conv2dOptions(1, 16, 3).padding(1)), modules::BatchNorm2d(16),
                             modules::ReLU(), modules::MaxPool2d(2),
                             modules::Conv2d(modules::Conv2dOptions(16, 32, 3).padding(1)), modules::BatchNorm2d(32),
                             modules::ReLU(), modules::MaxPool2d(2), modules::Flatten(),
                             modules::Linear(32 * 7 * 7, 128), modules::ReLU(), modules::Linear(128, 10));
}

torch::Tensor inputs_of(std::string const& model) {
  if (model == "mlp") return torch::randn({64, 784});
  if (model == "transformer") return torch::randint(1000, {32, 8}, at::kLong);
  return torch::randn({32, 1, 28, 28});
}
torch::Tensor targets_of(std::string const& model) {
  if (model == "transformer") return torch::randint(1000, {32 * 8}, at::kLong);
  return torch::randint(10, {model == "mlp" ? 64 : 32}, at::kLong);
}

struct options {
  std::string model;
  std::vector<std::string> modes;
  int ranks = 1;
  std::string trace{};
};

/// A rank's module, optimizer and batch, and its steps.
template <class World>
class rank_at_work {
 public:
  rank_at_work(options const& wanted, World& world, observe::timeline& timeline)
      : wanted_(wanted),
        world_(world),
        timeline_(timeline),
        net_(made(wanted.model)),
        x_(inputs_of(wanted.model)),
        y_(targets_of(wanted.model)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)) {
    torch::set_num_threads(1);
  }

  void run() {
    auto modes = wanted_.modes;
    for (std::int64_t steps = next_turn(); steps > 0; steps = next_turn()) {
      for (auto const& mode : modes) turn(mode, steps);
      std::rotate(modes.begin(), modes.begin() + 1, modes.end());  // another mode is the first
    }
  }

 private:
  using span = observe::timeline::span;

  void turn(std::string const& mode, std::int64_t count) {
    if (mode == "bare") return steps(mode, count, [] {});
    interop::data_parallel_options const how{.gradients_in_buckets = mode == "buckets"};
    parallel::data const strategy{.bucket_bytes = wanted_.trace.empty() ? parallel::data{}.bucket_bytes : 512 << 10};
    auto ddp = interop::data_parallel(net_, world_, how, strategy);
    ddp.exchange().record(timeline_);
    steps(mode, count, [&] { ddp.finish(); });
  }
  template <class Finish>
  void steps(std::string const& mode, std::int64_t count, Finish const& finish) {
    std::vector<double> milliseconds;
    for (std::int64_t step = -untimed; step < count; ++step) {
      auto const start = std::chrono::steady_clock::now();
      optimizer_.zero_grad();
      torch::Tensor loss;
      {
        span const now(timeline_, "forward");
        loss = torch::nll_loss(torch::log_softmax(net_->forward(x_), 1), y_);
      }
      {
        span const now(timeline_, "backward");
        loss.backward();
      }
      {
        span const now(timeline_, "finish");
        finish();
      }
      {
        span const now(timeline_, "optimizer");
        optimizer_.step();
      }
      auto const end = std::chrono::steady_clock::now();
      if (step >= 0) milliseconds.push_back(std::chrono::duration<double, std::milli>(end - start).count());
    }
    if (world_.rank() == 0) tell(mode, std::move(milliseconds));
  }
  /// Rank 0 reads the number, and the others wait.
  std::int64_t next_turn() {
    std::int64_t steps = 0;
    if (world_.rank() == 0 && !(std::cin >> steps)) steps = 0;
    world_.broadcast(tensor_view<std::int64_t>(&steps, shape{1}), 0);
    return steps;
  }
  void tell(std::string const& mode, std::vector<double> all) const {
    std::sort(all.begin(), all.end());
    std::printf(
        "{\"system\": \"trireme\", \"version\": \"%s\", \"model\": \"%s\", \"mode\": \"%s\", \"ranks\": %d, "
        "\"step_ms_median\": %.4f, \"step_ms_best\": %.4f}\n",
        TORCH_VERSION, wanted_.model.c_str(), mode.c_str(), wanted_.ranks, all[all.size() / 2], all[0]);
    std::fflush(stdout);
  }

  static constexpr std::int64_t untimed = 3;  // per turn: caches hold another program's data, buckets are new

  options const& wanted_;
  World& world_;
  observe::timeline& timeline_;
  modules::Sequential net_;
  torch::Tensor x_;
  torch::Tensor y_;
  torch::optim::SGD optimizer_;
};

}  // namespace

int main(int count, char** arguments) try {
  if (count != 4 && count != 5) {
    std::fputs("torch_step mlp|cnn|transformer MODE[,MODE...] RANKS [TRACE], each MODE bare, copied, or buckets\n",
               stderr);
    return 2;
  }
  options wanted{arguments[1], {}, std::atoi(arguments[3]), count == 5 ? arguments[4] : ""};
  std::istringstream modes(arguments[2]);
  for (std::string mode; std::getline(modes, mode, ',');) wanted.modes.push_back(mode);
  std::vector<std::unique_ptr<observe::timeline>> timelines;
  for (int rank = 0; rank < wanted.ranks; ++rank)
    timelines.push_back(std::make_unique<observe::timeline>(rank, wanted.trace.empty() ? 0 : 1 << 16));
  launch(comm::threads{.ranks = wanted.ranks, .deadline = std::chrono::minutes(10)},
         [&](auto& world) { rank_at_work(wanted, world, *timelines[static_cast<std::size_t>(world.rank())]).run(); });
  if (wanted.trace.empty()) return 0;
  std::vector<trace_process> processes;
  for (auto const& each : timelines) processes.push_back(each->process());
  formats::chrome_trace::write(wanted.trace, processes);
} catch (std::exception const& problem) {
  std::fprintf(stderr, "torch_step: %s\n", problem.what());
  return 1;
}
