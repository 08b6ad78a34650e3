#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layouts.hpp"

// Single published figures, and the corresponding results of plans and of the schedule simulator.
namespace on_paper {

/// A schedule on p stages, with equal times for a forward and each half of a backward.
struct bubble_row {
  std::string_view schedule;
  int chunks = 1;
  int stages = 0;
  compared few, many;  // idle time over the time of the work, for 2 p and 8 p micro-batches
  compared in_flight;  // most activations of a stage, in micro-batches of a p-th of the model
};

/// @param idle       published, in forwards of a stage.
/// @param in_flight  published.
template <class Schedule>
[[nodiscard]] bubble_row bubble_of(int chunks, int p, double idle, double in_flight) {
  auto const run_of = [&](int m) {
    return schedule::simulate(schedule::make_lists<Schedule>({p, m, chunks}),
                              {.forward = 1, .backward_input = 1, .backward_weight = 1, .overlapped = 3});
  };
  auto const share = [&](schedule::timing const& run, int m) {
    return compared{static_cast<double>(run.bubble()) / static_cast<double>(run.stage(0).busy), idle / (3 * m)};
  };
  auto const few = run_of(2 * p), many = run_of(8 * p);
  // DualPipe's two chunks belong to two copies of the model and are a p-th each; elsewhere all chunks of a stage
  // together are a p-th.
  int const chunks_of_a_part = Schedule::name == schedule::dual_pipe::name ? 1 : chunks;
  return {.schedule = Schedule::name,
          .chunks = chunks,
          .stages = p,
          .few = share(few, 2 * p),
          .many = share(many, 8 * p),
          .in_flight = {static_cast<double>(many.peak()) / chunks_of_a_part, in_flight}};
}

[[nodiscard]] inline std::vector<bubble_row> bubbles() {
  std::vector<bubble_row> all;
  for (int const p : {4, 8, 16}) {
    double const hops = p - 1;
    all.push_back(bubble_of<schedule::gpipe>(1, p, 3 * hops, 8 * p));
    all.push_back(bubble_of<schedule::one_f_one_b>(1, p, 3 * hops, p));
    for (int const v : {2, 4}) all.push_back(bubble_of<schedule::interleaved>(v, p, 3 * hops / v, p + hops / v));
    all.push_back(bubble_of<schedule::zb_h1>(1, p, hops, p));
    all.push_back(bubble_of<schedule::zb_v>(2, p, 0, p));
    all.push_back(bubble_of<schedule::dual_pipe>(2, p, p - 2, p + 1));
    all.push_back(bubble_of<schedule::dual_pipe_v>(2, p, hops, p + 0.5));
  }
  return all;
}

/// Memory of one of N ranks for parameters, gradients and moments, at each stage of ZeRO (0: data), in GB for 7.5
/// billion parameters: the example of [Rajbhandari et al., 2020].
struct state_row {
  int ranks = 1;
  compared stages[4];
};

inline constexpr nn::gpt example{
    .vocabulary = 60000, .context = 1024, .layers = 36, .heads = 32, .channels = 4096, .dropout = 0.1};

/// With gradients of 4 bytes.
[[nodiscard]] inline double own_state(int stage, double d) {
  if (stage == 0) return 18;
  return stage == 1 ? 6 + 12 / d : stage == 2 ? 2 + 16 / d : 18 / d;
}

[[nodiscard]] inline std::vector<state_row> states() {
  std::vector<state_row> all;
  for (int const ranks : {1, 4, 16, 64, 256, 1024, 16384}) {
    state_row row{.ranks = ranks, .stages = {}};
    for (int stage = 0; stage < 4; ++stage) {
      auto const held = plan_of(example, {.ranks = ranks, .zero = stage}, ranks).memory;
      row.stages[stage] = {1e-9 * static_cast<double>(held.parameters + held.gradients + held.optimizer),
                           7.5 * published_state(stage, ranks)};
    }
    all.push_back(row);
  }
  return all;
}

/// What a layer of a large GPT with dropout keeps of a micro-batch, in bytes, and what its rank sends for it, in
/// elements; both divided by sequence x batch x channels. A published value of 0 means that there is none.
struct layer_row {
  std::string_view on;
  compared kept, sent;
};

[[nodiscard]] inline layer_row layer_of(std::string_view name, layout const& on, bool checkpointed, double kept,
                                        double sent) {
  double bytes[2]{}, sends[2]{};
  for (std::size_t more = 0; more < 2; ++more) {  // twenty layers, and forty
    nn::gpt const model{.vocabulary = 1000,
                        .context = 4096,
                        .layers = more == 1 ? 40 : 20,
                        .heads = 64,
                        .channels = 8192,
                        .dropout = 0.1,
                        .checkpointed = checkpointed};
    bytes[more] = static_cast<double>(plan_of(model, on, 1).memory.activations);
    sends[more] = sent_by_tensor(model, on, 0) / 2;  // bfloat16
  }
  auto const of_one = [](double const(&sums)[2]) { return (sums[1] - sums[0]) / 20 / 4096 / 8192; };
  return {name, {of_one(bytes), kept}, {of_one(sends), sent}};
}

[[nodiscard]] inline std::vector<layer_row> layers() {
  layout const one, tensor{.ranks = 8, .tensor = 8, .rows = false}, rows{.ranks = 8, .tensor = 8};
  double const others = 7.0 / 8;
  return {layer_of("one rank", one, false, 34, 0), layer_of("`tensor=8`", tensor, false, 10 + 24.0 / 8, 8 * others),
          layer_of("`tensor=8`, `sequence`", rows, false, 34.0 / 8, 10 * others),
          layer_of("checkpointed", one, true, 2, 0),
          layer_of("checkpointed, `tensor=8`, `sequence`", rows, true, 2, 0)};
}

/// What a rank sends in a step of one micro-batch on each of 64 ranks, in elements per parameter, at each stage.
[[nodiscard]] inline std::vector<compared> exchanges() {
  std::vector<compared> all;
  for (int stage = 0; stage < 4; ++stage) {
    auto const sent = plan_of(example, {.ranks = 64, .zero = stage}, 64).sent;
    auto const bytes = [&](comm::collective kind) {
      return static_cast<double>(sent.by_operation[static_cast<std::size_t>(kind)].bytes);
    };
    double const elements = (bytes(comm::collective::all_reduce) + bytes(comm::collective::reduce_scatter)) / 4 +
                            bytes(comm::collective::all_gather) / 2;  // gradients in float, values in bfloat16
    all.push_back({elements / parameters_of(example), (stage == 3 ? 3 : 2) * 63 / 64.0});
  }
  return all;
}

/// Seconds of a collective of floats on a network: the plan's, from latencies and the bytes of the rank that sends
/// most, and published ones, without the time for additions.
struct collective_row {
  std::string_view what;
  int ranks = 1;
  double bytes = 0;  // of the whole view
  compared seconds;
};

/// What a plan counts of one collective on rank 0.
[[nodiscard]] inline comm::command collective_of(comm::collective kind, int ranks, double bytes) {
  bool const adds = kind == comm::collective::all_reduce || kind == comm::collective::reduce_scatter;
  comm::command it{.what = {.kind = kind,
                            .type = dtype::f32,
                            .op = adds ? comm::reduction_kind::sum : comm::reduction_kind::none,
                            .root = kind == comm::collective::broadcast ? 0 : -1,
                            .count = static_cast<std::int64_t>(bytes / 4)},
                   .element_bytes = 4};
  it.bytes = comm::bytes_sent::of(it.what, it.element_bytes, 0, ranks);
  return it;
}
/// @param waits, sends  published: latencies, and bytes, one after the other.
[[nodiscard]] inline collective_row collective_of(std::string_view what, comm::collective kind, int ranks, double bytes,
                                                  double waits, double sends) {
  auto const it = collective_of(kind, ranks, bytes);
  return {what,
          ranks,
          bytes,
          {comm::latencies_of(it, ranks) * latency + static_cast<double>(it.bytes) / outside_rate,
           waits * latency + sends / outside_rate}};
}

[[nodiscard]] inline std::vector<collective_row> collectives() {
  using enum comm::collective;
  std::vector<collective_row> all;
  double const kib = 1 << 10, mib = 1 << 20, gib = 1 << 30;
  for (int const p : {1024, 16384}) {
    double const rounds = comm::rounds_among(p);
    auto const others = [p](double n) { return n * (p - 1) / p; };
    all.push_back(collective_of("barrier", barrier, p, 0, rounds, 0));
    for (double const n : {536.0, 16 * kib})
      all.push_back(collective_of("all_reduce, doubling", all_reduce, p, n, rounds, rounds * n));
    for (double const n : {mib, gib})
      all.push_back(collective_of("all_reduce, halving and doubling", all_reduce, p, n, 2 * rounds, 2 * others(n)));
    all.push_back(collective_of("reduce_scatter, halving", reduce_scatter, p, gib, rounds, others(gib)));
    for (double const n : {16 * mib, gib})
      all.push_back(collective_of("all_gather, doubling", all_gather, p, n, rounds, others(n)));
    all.push_back(collective_of("all_to_all, in pairs", all_to_all, p, gib, p - 1, gib));
    all.push_back(collective_of("broadcast, a tree", broadcast, p, 4 * kib, rounds, rounds * 4 * kib));
    all.push_back(
        collective_of("broadcast, scattered and gathered", broadcast, p, gib, rounds + p - 1, 2 * others(gib)));
  }
  return all;
}

/// Seconds of MPI_Allreduce as measured on Lassen, one rank per node [Converged Computing, 2023]: means of 20 runs of
/// the OSU benchmarks 5.8. Its network, in the same runs: 1.13 us for 4 bytes to another node, 4 MiB in 308.4 us.
[[nodiscard]] inline std::vector<collective_row> measured() {
  struct measurement {
    int ranks;
    double bytes, microseconds;
  };
  static constexpr measurement list[] = {
      {4, 8, 2.61},    {4, 1 << 10, 3.83},    {4, 64 << 10, 40.22},    {4, 1 << 20, 573.57},   //
      {16, 8, 4.84},   {16, 1 << 10, 7.35},   {16, 64 << 10, 59.59},   {16, 1 << 20, 257.24},  //
      {128, 8, 13.28}, {128, 1 << 10, 18.43}, {128, 64 << 10, 111.13}, {128, 1 << 20, 438.14}};
  double const one_latency = 1.13e-6, rate = (4 << 20) / 308.4e-6;
  std::vector<collective_row> all;
  for (auto const& each : list) {
    auto const it = collective_of(comm::collective::all_reduce, each.ranks, each.bytes);
    all.push_back({"all_reduce",
                   each.ranks,
                   each.bytes,
                   {comm::latencies_of(it, each.ranks) * one_latency + static_cast<double>(it.bytes) / rate,
                    1e-6 * each.microseconds}});
  }
  return all;
}

/// Operations of one sample: of all matrix products and attention. The published number includes attention over all
/// pairs of tokens and no second forward pass [Narayanan et al., 2021].
/// @param attention  the share of pairs that are counted.
[[nodiscard]] inline compared operations(double attention) {
  auto const s = static_cast<double>(large.context), h = static_cast<double>(large.channels);
  auto const l = static_cast<double>(large.layers), v = static_cast<double>(large.vocabulary);
  return {plan_of(large, {}, 1).flops, 72 * s * l * h * h * (1 + attention * s / (6 * h) + v / (12 * l * h))};
}

}  // namespace on_paper
