// slow_network_step: one rank of a method of slow-network.py, which starts it with mpirun on two hosts.
//
// Ranks    are processes: mpirun -n 2 slow_network_step METHOD TOKENS SECONDS STEPS SCHEDULE LAYERS HEADS CHANNELS
//          CONTEXT BATCH
//          TOKENS is a file of bytes, SCHEDULE constant or cosine, BATCH the samples of a rank and step. Rank 0 prints
//          a line "SECONDS LOSS" a step, with the seconds since training began.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "trireme/comm/mpi.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/trireme.hpp"

namespace {

using namespace trireme;
namespace c = compression;

using sparse = c::error_feedback<c::top_k>;
using two_bits = c::error_feedback<c::quantise<2>>;
using codec = c::one_of<c::none, c::cast<bf16>, c::power_sgd, sparse, two_bits>;
using any_optimizer = optim::any<environment<precision::fp32>>;

struct method {
  codec with{};
  any_optimizer steps;
  bool local = false;  // how, or else parallel::data
  parallel::diloco how{.period = 30};
};

/// @param falling  the steps of a cosine from each learning rate to its tenth; 0: rates stay the same.
method method_named(std::string const& name, std::int64_t falling) {
  auto const from = [&](double rate) -> optim::schedule {
    if (falling == 0) return {};
    return optim::cosine{.peak = rate, .total = falling, .floor = rate / 10};
  };
  parallel::diloco const averaged{.period = 30, .outer_learning_rate = 1, .outer_momentum = 0};
  auto streaming = averaged;
  streaming.bucket_bytes = 1 << 20;
  streaming.fragments = 6;
  streaming.delay = 3;
  optim::adamw const elements{.learning_rate = 1e-3, .schedule = from(1e-3)};
  any_optimizer const adamw{elements};
  any_optimizer const muon{optim::muon{.schedule = from(optim::muon{}.learning_rate), .rest = elements}};
  codec const chosen{sparse{.inner = {.ratio = 0.02F}, .decay = 0.95F}};
  codec const few_bits{two_bits{.inner = {.rounding = c::code_rounding::nearest}}};
  if (name == "data") return {{}, adamw};
  if (name == "data_bf16") return {{c::cast<bf16>{}}, adamw};
  if (name == "data_power_sgd") return {{c::power_sgd{.rank = 4}}, adamw};
  if (name == "diloco") return {{}, adamw, true};
  if (name == "sparse_loco") return {chosen, adamw, true, averaged};
  if (name == "sparse_loco_int2") return {few_bits, adamw, true, averaged};
  if (name == "mu_loco_int2") return {few_bits, muon, true, averaged};
  if (name == "sparse_loco_streaming") return {chosen, adamw, true, streaming};
  throw config_error("slow_network_step: there is no method " + name);
}

template <class World, class Parallel>
void train(World& world, nn::gpt const& model, method const& what, Parallel const& how,
           std::vector<std::int32_t> const& text, double seconds, std::int64_t steps, std::int64_t batch) {
  auto trainer = make_trainer(model, what.steps, world, how, what.with);
  auto const samples = (static_cast<std::int64_t>(text.size()) - 1) / model.context;
  tensor_view<std::int32_t const> const inputs(text.data(), {samples, model.context});
  tensor_view<std::int32_t const> const targets(text.data() + 1, {samples, model.context});
  auto const start = std::chrono::steady_clock::now();
  trainer.on_step([&](step_report const& done) {
    auto const now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (world.rank() == 0) {
      std::printf("%.6f %.6f\n", now, done.loss);
      std::fflush(stdout);
      if (now > seconds) trainer.request_stop();
    }
  });
  trainer.fit(data::in_memory(inputs, targets), {.steps = steps, .batch = batch * world.size(), .check_every = 0});
}

}  // namespace

int main(int count, char** arguments) try {
  std::string const rates = count == 11 ? arguments[5] : "";
  if (rates != "constant" && rates != "cosine") {
    std::fprintf(stderr, "slow_network_step is started by benchmarks/slow-network.py\n");
    return 2;
  }
  auto const number = [&](int i) { return std::atoll(arguments[i]); };
  auto const what = method_named(arguments[1], rates == "cosine" ? number(4) : 0);
  std::ifstream file(arguments[2], std::ios::binary);
  std::vector<char> const bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::int32_t> text;
  for (auto const each : bytes) text.push_back(static_cast<unsigned char>(each));
  nn::gpt const model{
      .vocabulary = 256, .context = number(9), .layers = number(6), .heads = number(7), .channels = number(8)};
  launch(comm::mpi{.deadline = std::chrono::minutes(10)}, [&](auto& world) {
    if (what.local)
      train(world, model, what, what.how, text, std::atof(arguments[3]), number(4), number(10));
    else
      train(world, model, what, parallel::data{}, text, std::atof(arguments[3]), number(4), number(10));
  });
  return 0;
} catch (std::exception const& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
