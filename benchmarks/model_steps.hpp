#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "limits.hpp"
#include "random_tokens.hpp"
#include "trireme/core/cores.hpp"
#include "trireme/trireme.hpp"

/// Training steps of a model of tokens, one rank per core: tokens per second as one JSON object.
///
///   PROGRAM --shape a|b --precision fp32|bf16 [--parallel data|zero1] [--ranks N] [--steps N] [--warmup N]
///
/// Tokens are random; a step includes everything: loader, forward, backward, exchange, norm, AdamW. Afterwards all
/// ranks together measure the limit of a core (limits.hpp); "share_of_limit" is the rate of a step's products over that
/// limit, including those of attention, in which every position attends to `seen` others.
namespace steps {

template <class Model>
struct setting {
  Model model;
  std::int64_t batch;  // per rank
  double weights;      // numbers in all matrices with which each token is multiplied
  std::int64_t seen;   // positions that a position attends to, on average
  double asked = 1;    // share of positions that have a target
};

template <class Model, class Parallel, class Precision>
void measure(std::map<std::string, std::string> const& options, setting<Model> const& what, Parallel parallel,
             Precision precision) {
  using namespace trireme;
  int const ranks = std::atoi(options.at("ranks").c_str());
  std::int64_t const warmup = std::atoll(options.at("warmup").c_str());
  std::int64_t const steps = std::atoll(options.at("steps").c_str());
  launch(comm::threads{.ranks = ranks, .deadline = std::chrono::minutes(10)}, [&](auto& world) {
    auto trainer = make_trainer(what.model, optim::adamw{.learning_rate = 1e-4}, world, parallel, precision);
    random_tokens const data{what.model.context, what.model.vocabulary, what.asked};
    using clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    auto last = clock::now();
    auto start = last;
    trainer.on_step([&](step_report const& done) {
      auto const now = clock::now();
      if (done.step < warmup) start = now;
      if (done.step >= warmup) seconds.push_back(std::chrono::duration<double>(now - last).count());
      last = now;
    });
    auto const report = trainer.fit(data, {.steps = warmup + steps, .batch = what.batch * ranks});
    auto const whole = std::chrono::duration<double>(last - start).count();
    world.barrier();
    std::vector<double> limit{product_limit(ops::detected(), std::is_same_v<Precision, precision::bf16>)};
    world.all_reduce(tensor_view{limit}, reduction::sum{});
    double const gflops = limit[0];
    if (world.rank() != 0) return;
    auto const& model = what.model;
    auto const channels = static_cast<double>(model.channels);
    auto const layers = static_cast<double>(model.layers);
    double const flops_per_token = 6 * (what.weights + 2 * layers * channels * static_cast<double>(what.seen));
    std::sort(seconds.begin(), seconds.end());
    double const tokens = static_cast<double>(what.batch * ranks * what.model.context);
    std::printf(
        "{\"system\":\"trireme\",\"version\":\"%s\",\"model\":\"%s\",\"shape\":\"%s\",\"precision\":\"%s\","
        "\"parallel\":\"%s\","
        "\"ranks\":%d,"
        "\"steps\":%lld,\"tokens_per_second\":%.1f,\"tokens_per_second_median\":%.1f,\"tokens_per_second_best\":%.1f,"
        "\"limit_gflops_per_core\":%.0f,\"share_of_limit\":%.3f,\"loss\":%.4f,\"activation_mib\":%.1f}\n",
        TRIREME_VERSION, options.at("model").c_str(), options.at("shape").c_str(), options.at("precision").c_str(),
        options.at("parallel").c_str(), ranks, static_cast<long long>(steps),
        tokens * static_cast<double>(steps) / whole, tokens / seconds[seconds.size() / 2], tokens / seconds.front(),
        gflops / ranks, flops_per_token * tokens * static_cast<double>(steps) / whole / (gflops * 1e9),
        report.last_loss, static_cast<double>(trainer.engine().peak_bytes()) / 1048576.0);
  });
}

/// The main() of such a program.
template <class Model>
int run(int argc, char** argv, char const* model, setting<Model> const& a, setting<Model> const& b) {
  using namespace trireme;
  std::map<std::string, std::string> options{{"model", model},
                                             {"shape", "a"},
                                             {"precision", "fp32"},
                                             {"parallel", "zero1"},
                                             {"steps", "8"},
                                             {"warmup", "2"},
                                             {"ranks", std::to_string(usable_cores())}};
  for (int i = 1; i + 1 < argc; i += 2) options[std::string(argv[i]).substr(2)] = argv[i + 1];
  auto const& what = options.at("shape") == "b" ? b : a;
  auto const with = [&](auto parallel) {
    if (options.at("precision") == "bf16") return measure(options, what, parallel, precision::bf16{});
    return measure(options, what, parallel, precision::fp32{});
  };
  try {
    options.at("parallel") == "data" ? with(parallel::data{}) : with(parallel::zero<1>{});
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "%s_step: %s\n", model, problem.what());
    return 1;
  }
  return 0;
}

}  // namespace steps
