#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

// What plans and schedules say about worlds that are larger than this machine, and what others have published.
namespace on_paper {

using namespace trireme;

// 66 billion parameters, and the machine: operations a second and bytes of a rank.
inline constexpr nn::gpt large{.vocabulary = 128000, .context = 4096, .layers = 80, .heads = 64, .channels = 8192};
inline constexpr std::int64_t batch = 2048;  // samples a step, one a micro-batch
inline constexpr double flops = 400e12;
inline constexpr double memory_of_a_rank = 80e9;

/// One mesh in one world: the rank that holds most, the stage that computes most, the one that sends most.
struct cell {
  int ranks = 0;
  std::string mesh;
  std::int64_t micro_batches = 0;  // a replica
  planned_memory memory;
  double bubble = 0;   // idle time over the time of the work, as papers have it
  double formula = 0;  // published; below 0: it does not hold for so few micro-batches
  double sent = 0;
  double computing = 0;
  [[nodiscard]] bool fits() const { return static_cast<double>(memory.total()) <= memory_of_a_rank; }
};

template <class Parallel>
[[nodiscard]] training_plan plan_of(int ranks, int rank, std::int64_t samples, nn::gpt const& model,
                                    Parallel const& how) {
  return plan_for({.samples = samples, .micro_batches = samples, .flops = flops, .ranks = ranks, .rank = rank}, model,
                  optim::adamw{}, how, precision::bf16{});
}

/// @param stages    whose ranks are `apart`, each planned by itself.
template <class Parallel>
[[nodiscard]] cell cell_of(int ranks, std::string mesh, int replicas, int stages, int apart, Parallel const& how) {
  cell out{.ranks = ranks, .mesh = std::move(mesh), .micro_batches = batch / replicas, .memory = {}};
  double idle = 0;
  for (int stage = 0; stage < stages; ++stage) {
    auto const plan = plan_of(ranks, stage * apart, batch, large, how);
    if (plan.memory.total() > out.memory.total()) out.memory = plan.memory;
    auto const most = [](double& so_far, double next) { so_far = next > so_far ? next : so_far; };
    most(idle, plan.bubble);
    most(out.sent, static_cast<double>(plan.bytes_sent()));
    most(out.computing, plan.computing);
  }
  out.bubble = idle / (1 - idle);
  return out;
}

/// data (the optimizer's state sharded) x pipeline x tensor of 8 ways with sequence.
template <class Schedule>
[[nodiscard]] cell with_stages(int ranks, int stages) {
  constexpr int tensor_ways = 8;
  int const replicas = ranks / stages / tensor_ways;
  auto out = cell_of(ranks, fmt::format("zero1={}, {}={}, tensor=8", replicas, Schedule::name, stages), replicas,
                     stages, tensor_ways,
                     parallel::mesh{parallel::zero<1>{}, parallel::pipeline<Schedule>{.stages = stages},
                                    parallel::tensor{.ways = tensor_ways}, parallel::sequence{}});
  auto const m = static_cast<double>(out.micro_batches);
  if (std::is_same_v<Schedule, schedule::zb_v>) {
    out.formula = m >= 2 * stages - 1 ? 0 : -1;
  } else {
    out.formula = (stages - 1) / (std::is_same_v<Schedule, schedule::interleaved> ? 2 * m : m);
  }
  return out;
}

[[nodiscard]] inline std::vector<cell> cells() {
  std::vector<cell> all;
  parallel::mesh const shared{parallel::zero<3>{}, parallel::tensor{.ways = 8}, parallel::sequence{}};
  auto const sharded = [&](int ranks) {
    all.push_back(cell_of(ranks, fmt::format("zero3={}, tensor=8", ranks / 8), ranks / 8, 1, 8, shared));
  };
  all.push_back(cell_of(8, "zero3=8", 8, 1, 1, parallel::zero<3>{}));
  sharded(8);
  for (int const ranks : {64, 512, 4096, 16384}) {
    sharded(ranks);
    for (int const stages : {8, 16}) {
      if (stages * 8 > ranks) continue;
      all.push_back(with_stages<schedule::one_f_one_b>(ranks, stages));
      all.push_back(with_stages<schedule::interleaved>(ranks, stages));
      all.push_back(with_stages<schedule::zb_v>(ranks, stages));
    }
  }
  return all;
}

/// The idle time of the stage that idles most over the time of its work, and the published formula for it. Units come
/// apart: a forward and each half of a backward take as long as each other.
struct bubble {
  std::string_view schedule;
  int stages = 0, micro_batches = 0, chunks = 1;
  double found = 0, formula = 0;
  double peak = 0, peak_formula = 0;  // micro-batches in flight of a whole stage
};

template <class Schedule>
[[nodiscard]] bubble bubble_of(int stages, int micro_batches, int chunks, double formula, double peak_formula) {
  auto const lists = schedule::make_lists<Schedule>({stages, micro_batches, chunks});
  auto const run = schedule::simulate(lists, {.forward = 1, .backward_input = 1, .backward_weight = 1});
  double const work = 3.0 * chunks * micro_batches;
  return {.schedule = Schedule::name,
          .stages = stages,
          .micro_batches = micro_batches,
          .chunks = chunks,
          .found = static_cast<double>(run.bubble()) / work,
          .formula = formula,
          .peak = static_cast<double>(run.peak()) / chunks,
          .peak_formula = peak_formula};
}

[[nodiscard]] inline std::vector<bubble> bubbles() {
  std::vector<bubble> all;
  for (int const p : {8, 16, 64}) {
    for (int const m : {2 * p, 8 * p}) {
      double const one = static_cast<double>(p - 1) / m;
      all.push_back(bubble_of<schedule::gpipe>(p, m, 1, one, m));
      all.push_back(bubble_of<schedule::one_f_one_b>(p, m, 1, one, p));
      all.push_back(bubble_of<schedule::interleaved>(p, m, 2, one / 2, p + (p - 1) / 2.0));
      all.push_back(bubble_of<schedule::interleaved>(p, m, 4, one / 4, p + (p - 1) / 4.0));
      all.push_back(bubble_of<schedule::zb_h1>(p, m, 1, one / 3, p));
      all.push_back(bubble_of<schedule::zb_v>(p, m, 2, 0, p));
    }
  }
  return all;
}

/// The state of a model on each of some ranks, in bytes a parameter, of stages 1, 2 and 3.
struct sharing {
  int ranks = 0;
  std::array<double, 3> found{}, formula{}, published{};
};

inline constexpr nn::gpt middle{.vocabulary = 50257, .context = 1024, .layers = 36, .heads = 32, .channels = 4096};

[[nodiscard]] inline double parameters_of(nn::gpt const& model) {
  return static_cast<double>(plan_of(1, 0, 1, model, parallel::data{}).memory.parameters) / 2;  // bfloat16
}

[[nodiscard]] inline sharing sharing_of(int n) {
  auto const found = [&](auto const& stage) {
    auto const memory = plan_of(n, 0, n, middle, stage).memory;
    return static_cast<double>(memory.parameters + memory.gradients + memory.optimizer) / parameters_of(middle);
  };
  double const d = n;
  return {n,
          {found(parallel::zero<1>{}), found(parallel::zero<2>{}), found(parallel::zero<3>{})},
          {6 + 12 / d, 2 + 16 / d, 18 / d},
          {4 + 12 / d, 2 + 14 / d, 16 / d}};
}
[[nodiscard]] inline std::vector<sharing> sharings() {
  std::vector<sharing> all;
  for (int const n : {1, 8, 64, 512, 4096, 16384}) all.push_back(sharing_of(n));
  return all;
}

/// What a layer keeps of a micro-batch, in bytes over (sequence x batch x channels).
struct kept {
  std::string_view what;
  double found = 0, formula = 0, published = 0;
};

template <class Parallel>
[[nodiscard]] double kept_by_a_layer(int ranks, bool checkpointed, Parallel const& how) {
  double bytes[2]{};
  for (int const more : {0, 1}) {  // twenty layers, and forty
    nn::gpt const model{.vocabulary = 1000,
                        .context = 4096,
                        .layers = 20 + 20 * more,
                        .heads = 64,
                        .channels = 8192,
                        .dropout = 0.1,
                        .checkpointed = checkpointed};
    bytes[more] = static_cast<double>(plan_of(ranks, 0, 1, model, how).memory.activations);
  }
  return (bytes[1] - bytes[0]) / 20 / 4096 / 8192;
}

[[nodiscard]] inline std::vector<kept> kept_by_layers() {
  parallel::mesh const rows{parallel::tensor{}, parallel::sequence{}};
  return {{"one rank", kept_by_a_layer(1, false, parallel::tensor{}), 32, 34},
          {"`tensor=8`", kept_by_a_layer(8, false, parallel::tensor{}), 8 + 24.0 / 8, 10 + 24.0 / 8},
          {"`tensor=8`, `sequence`", kept_by_a_layer(8, false, rows), 32.0 / 8, 34.0 / 8},
          {"checkpointed", kept_by_a_layer(1, true, parallel::tensor{}), 2, 2},
          {"checkpointed, `tensor=8`, `sequence`", kept_by_a_layer(8, true, rows), 2.0 / 8, 2}};
}

/// Operations of a step of one sample: of all matrix products and attention.
[[nodiscard]] inline double operations() { return plan_of(1, 0, 1, large, parallel::data{}).flops; }
/// The published formula without the second forward pass; attention over all pairs of tokens (1), or half of them.
[[nodiscard]] inline double published_operations(double attention) {
  auto const s = static_cast<double>(large.context), h = static_cast<double>(large.channels);
  auto const l = static_cast<double>(large.layers), v = static_cast<double>(large.vocabulary);
  return 72 * s * l * h * h * (1 + attention * s / (6 * h) + v / (12 * l * h));
}

}  // namespace on_paper
