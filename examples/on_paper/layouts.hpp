#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

// Two large models on 8 to 16384 ranks: memory, traffic and time of each layout as planned, and published formulas.
namespace on_paper {

using namespace trireme;

/// The assumed speed of a rank: operations and bytes per second, to ranks of its machine and to others, and seconds per
/// message. Values for an H100: the rate of large trainings, one direction of its links within a machine, and a 400
/// Gbit/s port.
inline constexpr double flops = 400e12, inside_rate = 450e9, outside_rate = 50e9, latency = 5e-6;
inline constexpr double memory_of_a_rank = 80e9;
inline constexpr int ranks_of_a_machine = 8;

inline constexpr nn::gpt small{.vocabulary = 128000, .context = 4096, .layers = 32, .heads = 32, .channels = 4096};
inline constexpr nn::gpt large{.vocabulary = 128000, .context = 4096, .layers = 86, .heads = 64, .channels = 8192};
inline constexpr nn::gpt distant{.vocabulary = 128000, .context = 131072, .layers = 86, .heads = 64, .channels = 8192};

/// Degrees of a mesh, outermost first: samples, pipeline, context, tensor. Chosen at run time, since a degree of 1
/// costs nothing: only three types of mesh are compiled.
struct layout {
  int ranks = 1;
  int zero = 1;  // the stage of ZeRO; 0: data
  int stages = 1;
  std::string schedule = "1f1b";  // interleaved: two chunks per stage
  int context = 1;
  int tensor = 1;
  bool rows = true;  // with sequence

  [[nodiscard]] int replicas() const { return ranks / (stages * context * tensor); }
  [[nodiscard]] std::string name() const {
    auto out = fmt::format("zero{}={}", zero, replicas());
    if (stages > 1) out += fmt::format(",pipeline={}:{}", stages, schedule);
    if (context > 1) out += fmt::format(",context={}", context);
    return tensor > 1 ? out + fmt::format(",tensor={}", tensor) : out;
  }
};

/// @param samples    of a step, one per micro-batch.
[[nodiscard]] inline training_plan plan_of(nn::gpt const& model, layout const& on, std::int64_t samples, int rank = 0,
                                           std::int64_t tokens = 0, double outside = outside_rate) {
  auto const ask = [&](auto const& how) {
    return plan_for({.samples = samples,
                     .micro_batches = samples,
                     .context = tokens,
                     .flops = flops,
                     .bandwidth = outside,
                     .latency = latency,
                     .ranks = on.ranks,
                     .rank = rank},
                    model, optim::adamw{}, how, precision::bf16{});
  };
  parallel::tensor const tensor{.ways = on.tensor};
  parallel::sequence const rows{.ways = on.rows ? on.tensor : 1};
  if (on.zero == 0) return ask(parallel::data{});
  if (on.zero == 2) return ask(parallel::zero<2>{});
  if (on.zero == 3) return ask(parallel::mesh{parallel::zero<3>{}, tensor, rows});
  return ask(parallel::mesh{parallel::zero<1>{}, parallel::any_pipeline{.schedule = on.schedule, .stages = on.stages},
                            parallel::context{.ways = on.context}, tensor, rows});
}

[[nodiscard]] inline double parameters_of(nn::gpt const& model) {
  return static_cast<double>(plan_of(model, {}, 1).memory.parameters) / 2;  // bfloat16
}

/// A plan's number, and the published one.
struct compared {
  double plan = 0, published = 0;
  [[nodiscard]] double ratio() const { return plan / published; }
};

/// One model in one layout: the stage with the most memory, and the slowest one.
struct row {
  std::string model{};
  layout on{};
  std::int64_t micro_batches = 0;  // per replica
  planned_memory memory{};
  compared state{}, activations{};  // bytes
  compared bubble{};                // idle time over the time of the work
  double inside = 0, outside = 0;   // bytes sent per step to ranks of the same machine, and to others
  double messages = 0;
  double computing = 0, at_best = 0, at_worst = 0;  // seconds
  [[nodiscard]] bool fits() const { return static_cast<double>(memory.total()) <= memory_of_a_rank; }
};

/// Bytes    that a rank of a stage sends in its tensor group for each micro-batch: the difference between the traffic
///          of a replica with that group and a pipeline, for steps of two micro-batches and one. Stages exchange
///          nothing else.
[[nodiscard]] inline double sent_by_tensor(nn::gpt const& model, layout const& on, int stage) {
  double bytes[2]{};
  for (std::int64_t const m : {1, 2}) {
    auto const plan = plan_of(model,
                              {.ranks = on.stages * on.tensor,
                               .stages = on.stages,
                               .schedule = on.schedule,
                               .tensor = on.tensor,
                               .rows = on.rows},
                              m, stage * on.tensor, model.context / on.context);
    auto const& between = plan.sent.by_operation[static_cast<std::size_t>(comm::collective::exchange)];
    bytes[m - 1] = static_cast<double>(plan.bytes_sent() - between.bytes);
  }
  return bytes[1] - bytes[0];
}

/// [Rajbhandari et al., 2020]: bytes per parameter that one of d ranks keeps of parameters, gradients and moments.
[[nodiscard]] inline double published_state(int stage, double d) {
  if (stage == 0) return 16;
  return stage == 1 ? 4 + 12 / d : stage == 2 ? 2 + 14 / d : 16 / d;
}

/// Without dropout masks and the attention matrix, 32 s b h per layer, divided over tensor and context [Korthikanti et
/// al., 2022]; times the micro-batches in flight in the schedule's stage that holds most [Narayanan et al., 2021; Qi et
/// al., 2024].
[[nodiscard]] inline double published_activations(nn::gpt const& model, layout const& on, double m) {
  double const p = on.stages;
  double in_flight = on.schedule == "interleaved" ? p + (p - 1) / 2 : p;
  in_flight = in_flight < m ? in_flight : m;
  return 32.0 * static_cast<double>(model.context * model.channels * model.layers) / on.tensor / on.context *
         in_flight / p;
}

[[nodiscard]] inline double published_bubble(layout const& on, double m) {
  if (on.stages == 1 || on.schedule == "zbv") return 0;
  return (on.stages - 1) / (on.schedule == "interleaved" ? 2 * m : m);
}

/// @param outside  bytes per second that a rank sends to other machines.
[[nodiscard]] inline row row_of(std::string name, nn::gpt const& model, layout on, std::int64_t samples,
                                double outside = outside_rate) {
  row out{.model = std::move(name), .on = std::move(on)};
  auto const most = [](double& so_far, double next) { so_far = next > so_far ? next : so_far; };
  auto const m = static_cast<double>(out.micro_batches = samples / out.on.replicas());
  double idle = 0;
  for (int stage = 0; stage < out.on.stages; ++stage) {
    auto const plan = plan_of(model, out.on, samples, stage * out.on.context * out.on.tensor, 0, outside);
    auto const& held = plan.memory;
    if (held.total() > out.memory.total()) out.memory = held;
    auto const sent = static_cast<double>(plan.bytes_sent());
    bool const one_machine = out.on.ranks <= ranks_of_a_machine;
    double const inside = one_machine ? sent : out.on.tensor == 1 ? 0 : m * sent_by_tensor(model, out.on, stage);
    double const busy = plan.computing / (1 - plan.bubble);
    double const sending = inside / inside_rate + (sent - inside) / (one_machine ? inside_rate : outside) +
                           latency * static_cast<double>(plan.latencies);
    most(idle, plan.bubble);
    most(out.computing, plan.computing);
    most(out.inside, inside);
    most(out.outside, sent - inside);
    most(out.messages, static_cast<double>(plan.messages_sent()));
    most(out.at_best, busy > sending ? busy : sending);
    most(out.at_worst, busy + sending);
  }
  auto const& held = out.memory;
  out.state = {static_cast<double>(held.parameters + held.gradients + held.optimizer),
               parameters_of(model) / out.on.stages / out.on.tensor *
                   published_state(out.on.zero, out.on.replicas() * out.on.context)};
  out.activations = {static_cast<double>(held.activations), published_activations(model, out.on, m)};
  out.bubble = {idle / (1 - idle), published_bubble(out.on, m)};
  return out;
}

[[nodiscard]] inline std::vector<row> large_rows() {
  std::vector<row> all;
  auto const add = [&](char const* name, nn::gpt const& model, std::int64_t samples, layout on) {
    all.push_back(row_of(name, model, std::move(on), samples));
  };
  add("7B", small, 2048, {.ranks = 8, .zero = 1});
  add("7B", small, 2048, {.ranks = 8, .zero = 3});
  add("7B", small, 2048, {.ranks = 64, .zero = 1});
  add("7B", small, 2048, {.ranks = 64, .zero = 3});
  add("7B", small, 2048, {.ranks = 512, .zero = 3});
  add("7B", small, 2048, {.ranks = 512, .tensor = 8});
  add("7B", small, 2048, {.ranks = 4096, .tensor = 8});
  add("7B", small, 2048, {.ranks = 16384, .tensor = 8});
  add("7B", small, 2048, {.ranks = 16384, .stages = 2, .tensor = 8});
  add("70B", large, 2048, {.ranks = 8, .zero = 3});
  add("70B", large, 2048, {.ranks = 64, .zero = 3, .tensor = 8});
  add("70B", large, 2048, {.ranks = 64, .stages = 8, .tensor = 8});
  for (int const ranks : {512, 4096, 16384}) {
    add("70B", large, 2048, {.ranks = ranks, .zero = 3, .tensor = 8});
    for (auto const* schedule : {"1f1b", "interleaved", "zbv"}) {
      add("70B", large, 2048, {.ranks = ranks, .stages = 8, .schedule = schedule, .tensor = 8});
    }
  }
  add("70B, 131072 tokens", distant, 128,
      {.ranks = 16384, .stages = 16, .schedule = "interleaved", .context = 16, .tensor = 8});
  return all;
}

}  // namespace on_paper
