// Trireme 0.1.0: trireme/train/sweep.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: bf63e83a76e10e399ccbf31f817047e9f8aba6a0d7522becfcaae8949c18e190
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/train/plan.hpp"

// ---- trireme/train/sweep.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#ifndef TRIREME_TRAIN_DETAIL_SWEEP_RATES_INCLUDED
#define TRIREME_TRAIN_DETAIL_SWEEP_RATES_INCLUDED

// ---- trireme/train/detail/sweep_rates.hpp
#include <chrono>
#include <type_traits>

namespace trireme::detail {

/// Operations a second of a rank that trains the whole model alone on its share of the samples, while all others do.
template <class Model, class Data, class World, class Options, class... Policies>
[[nodiscard]] double measured_flops(Model const& model, Data const& data, World& world, Options const& options,
                                    Policies const&... policies) {
  if constexpr (!std::is_same_v<typename space_of<World>::type, host>) {
    throw config_error("trireme::sweep: what a device computes is not measured: say .flops in the options");
  } else {
    auto const share = [&](std::int64_t of) { return of > world.size() ? of / world.size() : std::int64_t{1}; };
    auto const samples = share(options.batch);
    auto const parts = share(options.micro_batches);
    comm::self_world alone;
    auto trainer = make_trainer(model, alone, policies...);
    auto const work = plan(trainer, data, {.samples = samples, .micro_batches = parts}).flops;
    double seconds = 0;  // of the fastest step
    trainer.on_step([&](step_report const& done) {
      if (done.step == 0 || done.seconds < seconds) seconds = done.seconds;
    });
    world.barrier();
    trainer.fit(data, {.steps = 6, .batch = samples, .micro_batches = parts});
    world.all_reduce(tensor_view<double>(&seconds, shape{1}), reduction::max{});
    return work / seconds;
  }
}

struct link_rates {
  double bandwidth = 1;  // of a world of one, which sends nothing
  double latency = 0;
};

/// What an all_reduce of one number and one of a million say of a world: the fastest of a few, on the slowest rank.
template <class World>
[[nodiscard]] link_rates measured_link(World& world) {
  if (world.size() == 1) return {};
  constexpr int runs = 8;
  auto counted = comm::decorate(world, comm::counted{});
  struct cost {
    double seconds, bytes;
  };
  auto const cost_of = [&](std::int64_t count) {
    std::vector<float> numbers(static_cast<std::size_t>(count));
    auto const before = counted.counts()[comm::collective::all_reduce];
    double best = 0;
    for (int run = 0; run < runs; ++run) {
      world.barrier();
      auto const start = std::chrono::steady_clock::now();
      counted.all_reduce(tensor_view<float>(numbers), reduction::sum{});
      double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (run == 0 || seconds < best) best = seconds;
    }
    world.all_reduce(tensor_view<double>(&best, shape{1}), reduction::max{});
    auto const after = counted.counts()[comm::collective::all_reduce];
    return cost{best, static_cast<double>(after.bytes - before.bytes) / runs};
  };
  auto const one = cost_of(1);
  auto const many = cost_of(1 << 20);
  return {.bandwidth = many.bytes / (many.seconds > one.seconds ? many.seconds - one.seconds : many.seconds),
          .latency = one.seconds / comm::rounds_among(world.size())};
}

}  // namespace trireme::detail

#endif  // TRIREME_TRAIN_DETAIL_SWEEP_RATES_INCLUDED

// ---- trireme/train/sweep.hpp (goes on)
namespace trireme {

/// Strategies to compare: a list of types, or of values where the types do not say all, as with meshes.
/// @example strategies<parallel::data, parallel::zero<1>>
/// @example strategies{parallel::data{}, parallel::mesh{parallel::zero<1>{}, parallel::tensor{.ways = 2}}}
template <parallel::parallel_policy... Strategies>
struct strategies {
  pack<Strategies...> all;
  constexpr strategies() = default;
  constexpr explicit strategies(Strategies... each) requires(sizeof...(Strategies) > 0) : all(std::move(each)...) {}
};

/// How long each strategy of a sweep trains, with what, and on what machine.
struct sweep_options {
  std::int64_t steps = 20;         ///< 3 at least; the first two are not timed
  std::int64_t batch = 32;         ///< samples a step, over all ranks
  std::int64_t micro_batches = 0;  ///< logical ones of a step; 0 = one a replica
  double flops = 0;                ///< what a rank computes, in operations a second; 0 = measured
  double bandwidth = 0;            ///< what a rank sends, in bytes a second; 0 = measured, and latency with it
  double latency = 0;              ///< of a message, in seconds
};

/// One strategy of a sweep. Where ranks differ, each number is that of the rank that has most of it.
struct sweep_row {
  std::string name;                 ///< "zero1", "data=2,pipeline=2:1f1b"
  std::string refused;              ///< why it was not trained; empty if it was
  double at_best = 0;               ///< predicted seconds a step, if all of the sending is hidden
  double at_worst = 0;              ///< predicted, if none is
  double seconds = 0;               ///< measured: the median step
  double bubble = 0;                ///< predicted share of a step in which a stage waits for other stages
  std::uint64_t planned_bytes = 0;  ///< sent a step, as the plan says
  std::uint64_t bytes = 0;          ///< sent in the last step, as counted
  planned_memory planned;           ///< as the plan says
  planned_memory memory;            ///< as exchange, optimizer and engine report
  double first_loss = 0;
  double last_loss = 0;
};

namespace detail {

/// "data=2,pipeline=2:1f1b": the axes, outermost first, with the degrees that are given.
template <class Policy>
[[nodiscard]] std::string strategy_name(Policy const& policy) {
  std::string all;
  auto const add = [&]<class Axis>(Axis const& axis) {
    all += text(all.empty() ? "" : ",", std::string_view(axis.name));
    if (auto const ways = parallel::detail::ways_of(axis); ways != 0) all += text("=", ways);
    if constexpr (requires { typename Axis::schedule_type; }) {
      all += text(":", std::string_view(Axis::schedule_type::name));
    } else if constexpr (requires { axis.schedule; }) {
      all += text(":", axis.schedule);
    }
  };
  if constexpr (parallel::detail::is_mesh<Policy>) {
    for (auto const kind : policy.order) {
      parallel::detail::for_each_axis(policy, [&]<class Axis>(Axis const& axis) {
        if (kind_of_axis<Axis> == kind) add(axis);
      });
    }
  } else {
    add(policy);
  }
  return all;
}

/// Of each number the largest that any rank has.
template <class World, class T>
void most_of_all(World& world, std::span<T> numbers) {
  world.all_reduce(tensor_view<T>(numbers.data(), shape{static_cast<std::int64_t>(numbers.size())}), reduction::max{});
}

template <class World>
void most_of_all(World& world, sweep_row& row) {
  double reals[] = {row.at_best, row.at_worst, row.seconds, row.bubble};
  most_of_all(world, std::span<double>(reals));
  row.at_best = reals[0];
  row.at_worst = reals[1];
  row.seconds = reals[2];
  row.bubble = reals[3];
  std::uint64_t sent[] = {row.planned_bytes, row.bytes};
  most_of_all(world, std::span<std::uint64_t>(sent));
  row.planned_bytes = sent[0];
  row.bytes = sent[1];
  for (auto* const kinds : {&row.planned, &row.memory}) {
    std::int64_t held[] = {kinds->parameters, kinds->gradients, kinds->optimizer, kinds->activations, kinds->buffers};
    most_of_all(world, std::span<std::int64_t>(held));
    *kinds = {held[0], held[1], held[2], held[3], held[4]};
  }
}

/// One strategy, planned and trained.
template <class Strategy, class Model, class Data, class World, class... Policies>
[[nodiscard]] sweep_row sweep_one(Strategy const& strategy, Model const& model, Data const& data, World& world,
                                  sweep_options const& options, Policies const&... policies) {
  sweep_row row;
  row.name = strategy_name(strategy);
  auto counted = comm::decorate(world, comm::counted{});
  try {
    auto trainer = make_trainer(model, counted, strategy, policies...);
    auto const what = plan(trainer, data,
                           {.samples = options.batch,
                            .micro_batches = options.micro_batches,
                            .flops = options.flops,
                            .bandwidth = options.bandwidth,
                            .latency = options.latency});
    row.at_best = what.step_at_best;
    row.at_worst = what.step_at_worst;
    row.bubble = what.bubble;
    row.planned_bytes = what.bytes_sent();
    row.planned = what.memory;

    auto const sent = [&] {
      std::uint64_t bytes = 0;
      for (auto const& each : counted.counts().by_operation) bytes += each.bytes;
      return bytes;
    };
    std::vector<double> seconds;
    std::uint64_t before = 0;
    trainer.on_step([&](step_report const& done) {
      auto const now = sent();
      auto const bytes = now - std::exchange(before, now);
      if (done.step < 2) return;
      row.bytes = done.step == 2 ? bytes : std::min(row.bytes, bytes);  // ranks compare what they have in some steps
      seconds.push_back(done.seconds);
    });
    auto const report =
        trainer.fit(data, {.steps = options.steps, .batch = options.batch, .micro_batches = options.micro_batches});
    row.first_loss = report.first_loss;
    row.last_loss = report.last_loss;
    std::ranges::sort(seconds);
    row.seconds = seconds[seconds.size() / 2];
    row.memory = memory_of(trainer);
  } catch (config_error const& error) {  // the same on every rank: sizes do not fit
    row.refused = error.what();
    return row;
  }
  most_of_all(world, row);
  return row;
}

template <class List, class Model, class Data, class World, class... Policies>
[[nodiscard]] std::vector<sweep_row> sweep_all(List const& list, Model const& model, Data const& data, World& world,
                                               sweep_options options, Policies const&... policies) {
  if (options.steps < 3 || options.batch < 1) {
    throw config_error(text("trireme::sweep: ", options.steps, " steps of ", options.batch,
                            " samples; the first two are not timed: give at least three, of one sample"));
  }
  if (options.flops <= 0) options.flops = measured_flops(model, data, world, options, policies...);
  if (options.bandwidth <= 0) {
    auto const link = measured_link(world);
    options.bandwidth = link.bandwidth;
    options.latency = link.latency;
  }
  std::vector<sweep_row> rows;
  list.all.each([&](auto const& each) { rows.push_back(sweep_one(each, model, data, world, options, policies...)); });
  return rows;
}

}  // namespace detail

/// Trains the same model with each strategy of a list, from the same start on the same batches, and says beside each
/// other what the plan of each has predicted and what came of it.
///
/// What the machine reaches is measured first unless it is told: the operations of ranks that train the whole model
/// alone, all at once, and an all_reduce. So predictions know nothing of the strategies; they take all stages of a
/// pipeline for equal, and a rank for as fast however little it has to do.
///
/// Ranks    collective: every rank makes the same call; each gets the same rows.
/// Errors   config_error for fewer than three steps. A strategy whose sizes do not fit the world is a row that says so.
///
/// @param policies  an optimizer (optim::adamw{} if there is none), a precision, a compressor.
/// @example for (auto const& row : sweep<strategies<parallel::data, parallel::zero<1>>>(model, data, world)) ...
template <class List, staged_model Model, dataset Data, communicator World, class... Policies>
[[nodiscard]] std::vector<sweep_row> sweep(Model const& model, Data const& data, World& world,
                                           sweep_options const& options = {}, Policies const&... policies) {
  return sweep(List{}, model, data, world, options, policies...);
}
template <parallel::parallel_policy... Strategies, staged_model Model, dataset Data, communicator World,
          class... Policies>
[[nodiscard]] std::vector<sweep_row> sweep(strategies<Strategies...> const& list, Model const& model, Data const& data,
                                           World& world, sweep_options const& options = {},
                                           Policies const&... policies) {
  if constexpr (detail::count_of<slot::optimizer, Policies...> == 0) {
    return detail::sweep_all(list, model, data, world, options, policies..., optim::adamw{});
  } else {
    return detail::sweep_all(list, model, data, world, options, policies...);
  }
}

/// The rows as a table: milliseconds a step, bytes sent a step, and memory by kind, in MB; of what was measured, the
/// predicted numbers beside time and bytes.
[[nodiscard]] inline std::string to_string(std::span<sweep_row const> rows) {
  constexpr double ms = 1e3, mega = 1e-6;
  std::size_t width = 8;
  for (auto const& row : rows) width = std::max(width, row.name.size());
  int const name = static_cast<int>(width);
  char line[256];
  std::string out;
  auto const add = [&](char const* format, auto... values) {
    std::snprintf(line, sizeof line, format, values...);
    out += line;
  };
  add("%-*s | %-26s | %-19s | %-55s | %s\n", name, "", "ms a step", "MB sent a step", "MB held", "loss");
  add("%-*s | %17s %8s | %9s %9s | %9s %9s %9s %9s %9s %5s | %7s\n", name, "strategy", "predicted", "measured",
      "predicted", "counted", "params", "gradients", "optimizer", "activat.", "buffers", "sum", "last");
  for (auto const& row : rows) {
    if (!row.refused.empty()) {
      out += row.name + std::string(width - row.name.size(), ' ') + " | " + row.refused + '\n';
      continue;
    }
    auto const mb = [](auto bytes) { return mega * static_cast<double>(bytes); };
    auto const& held = row.memory;
    add("%-*s | %8.2f-%8.2f %8.2f | %9.3f %9.3f | %9.3f %9.3f %9.3f %9.3f %9.3f %5.1f | %7.4f\n", name,
        row.name.c_str(), ms * row.at_best, ms * row.at_worst, ms * row.seconds, mb(row.planned_bytes), mb(row.bytes),
        mb(held.parameters), mb(held.gradients), mb(held.optimizer), mb(held.activations), mb(held.buffers),
        mb(held.total()), row.last_loss);
  }
  return out;
}

}  // namespace trireme
