// Trireme 0.1.0: trireme/train/sweep.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 99fbdc8d275037860f7731c127265c35ac4fcc14da4f02b0295e37ea26ce6ee9
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/train/plan.hpp"

// ---- trireme/train/sweep.hpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
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

/// `world`, for computing in Space: itself where that is its space already.
template <class Space, class World>
[[nodiscard]] decltype(auto) in_space_of(World& world) {
  if constexpr (std::is_same_v<typename space_of<World>::type, Space>)
    return (world);
  else
    return comm::in_space<Space>(world);
}

/// Operations per second of a rank that trains the whole model alone on its part of the samples while all others do the
/// same.
template <class Model, class Data, class World, class Options, class... Policies>
[[nodiscard]] double measured_flops(Model const& model, Data const& data, World& world, Options const& options,
                                    Policies const&... policies) {
  using space = typename space_of<World>::type;
  if constexpr (without_elements<space>) {
    throw config_error(text("trireme::sweep: nothing is computed in ", space::name,
                            " memory, so its speed is not measured; set .flops in the options"));
  } else {
    auto const share = [&](std::int64_t of) { return of > world.size() ? of / world.size() : std::int64_t{1}; };
    auto const samples = share(options.batch);
    auto const parts = share(options.micro_batches);
    double work = 0;
    double seconds = 0;  // of the fastest step
    world.barrier();
    together(world, [&] {
      comm::self_world single;
      auto&& alone = in_space_of<space>(single);
      auto trainer = make_trainer(model, alone, policies...);
      work = plan(trainer, data, {.samples = samples, .micro_batches = parts}).flops;
      trainer.on_step([&](step_report const& done) {
        if (done.step == 0 || done.seconds < seconds) seconds = done.seconds;
      });
      trainer.fit(data, {.steps = 6, .batch = samples, .micro_batches = parts});
    });
    world.all_reduce(tensor_view<double>(&seconds, shape{1}), reduction::max{});
    return work / seconds;
  }
}

struct link_rates {
  double bandwidth = 1;  // a world of one rank sends nothing
  double latency = 0;
};

/// Bandwidth and latency of a world, from all_reduces of one number and of a million: the fastest of a few, on the
/// slowest rank.
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

/// Strategies to compare: a list of types, or of values if the types do not contain everything, as for meshes.
/// @example strategies<parallel::data, parallel::zero<1>>
/// @example strategies{parallel::data{}, parallel::mesh{parallel::zero<1>{}, parallel::tensor{.ways = 2}}}
template <parallel::parallel_policy... Strategies>
struct strategies {
  pack<Strategies...> all;
  constexpr strategies() = default;
  constexpr explicit strategies(Strategies... each) requires(sizeof...(Strategies) > 0) : all(std::move(each)...) {}
};

/// Length, batch and machine of a sweep's training runs.
struct sweep_options {
  std::int64_t steps = 20;         ///< 3 at least; the first two are not timed
  std::int64_t batch = 32;         ///< samples per step, over all ranks
  std::int64_t micro_batches = 0;  ///< logical micro-batches per step; 0 = one per replica
  double flops = 0;                ///< speed of a rank, in operations per second; 0 = measured
  double bandwidth = 0;            ///< sending speed of a rank, in bytes per second; 0 = measured, and latency with it
  double latency = 0;              ///< of a message, in seconds; used if a bandwidth is given
  void validate() const {
    if (steps < 3 || batch < 1) {
      throw config_error(text("trireme::sweep: ", how_many(steps, "step"), " of ", batch,
                              " samples; give at least three steps, as the first two are not timed, and one sample"));
    }
    expect_number("sweep", ".micro_batches", micro_batches, not_negative);
    expect_number("sweep", ".flops", flops, not_negative);
    expect_number("sweep", ".bandwidth", bandwidth, not_negative);
    expect_number("sweep", ".latency", latency, not_negative);
  }
};

/// One strategy of a sweep. If ranks differ, each number is the largest of all ranks.
struct sweep_row {
  std::string name;                 ///< "zero1", "data=2,pipeline=2:1f1b"
  std::string refused;              ///< why it was not trained, or failed; empty if it succeeded
  double at_best = 0;               ///< predicted seconds per step, if all communication overlaps with computation
  double at_worst = 0;              ///< predicted, if none does
  double seconds = 0;               ///< measured: the median step
  double bubble = 0;                ///< predicted share of a step in which a stage waits for other stages
  std::uint64_t planned_bytes = 0;  ///< sent per step, predicted
  std::uint64_t bytes = 0;          ///< sent in the last step, counted
  planned_memory planned;           ///< predicted
  planned_memory memory;            ///< as reported by exchange, optimizer and engine
  double first_loss = 0;
  double last_loss = 0;
};

namespace detail {

/// "data=2,pipeline=2:1f1b": the axes, outermost first, with the degrees that are set.
template <class Policy>
[[nodiscard]] std::string strategy_name(Policy const& policy) {
  std::string all;
  auto const add = [&]<class Axis>(Axis const& axis) {
    all += text(all.empty() ? "" : ",", std::string_view(axis.name));
    if (auto const ways = parallel::detail::degree_of(axis); ways != 0) all += text("=", ways);
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

/// Replaces each number by its maximum over the ranks.
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
  std::int64_t sent[] = {static_cast<std::int64_t>(row.planned_bytes), static_cast<std::int64_t>(row.bytes)};
  most_of_all(world, std::span<std::int64_t>(sent));
  row.planned_bytes = static_cast<std::uint64_t>(sent[0]);
  row.bytes = static_cast<std::uint64_t>(sent[1]);
  for (auto* const kinds : {&row.planned, &row.memory}) {
    std::int64_t held[] = {kinds->parameters, kinds->gradients, kinds->optimizer, kinds->activations, kinds->buffers};
    most_of_all(world, std::span<std::int64_t>(held));
    *kinds = {held[0], held[1], held[2], held[3], held[4]};
  }
}

/// Collective. The failure to report, the same on every rank: the first sentence of a rank that failed by itself, else
/// of one that failed because others left; empty if none has failed.
template <class World>
[[nodiscard]] std::string failure_of_all(World& world, std::string const& own, std::string const& left_alone) {
  std::int64_t failed[2] = {own.empty() ? 0 : 1, left_alone.empty() ? 0 : 1};
  try {
    world.all_reduce(tensor_view<std::int64_t>(failed, shape{2}), reduction::sum{});
  } catch (comm_error const&) {  // other ranks still wait within the strategy: this rank's own failure is the reason
    if (own.empty()) throw;
    throw error(own);
  }
  if (failed[0] + failed[1] == 0) return {};
  auto const first = first_failure(world, failed[0] > 0 ? own : left_alone);
  bool const all = failed[failed[0] > 0 ? 0 : 1] == world.size();
  return all ? first->sentence : text("rank ", first->rank, ": ", first->sentence);
}

/// Plans and trains one strategy in a duplicate of the world. An exception becomes the text of its row on all ranks.
template <class Strategy, class Model, class Data, class World, class... Policies>
[[nodiscard]] sweep_row sweep_one(Strategy const& strategy, Model const& model, Data const& data, World& world,
                                  sweep_options const& options, Policies const&... policies) {
  sweep_row row;
  row.name = strategy_name(strategy);
  std::string failed, left_alone;
  try {
    auto counted = comm::decorate(world, comm::counted{});
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
    std::int64_t diverged = -1;  // the first of the last steps whose loss is not finite
    trainer.on_step([&](step_report const& done) {
      if (std::isfinite(done.loss))
        diverged = -1;
      else if (diverged < 0)
        diverged = done.step;
      auto const now = sent();
      auto const bytes = now - std::exchange(before, now);
      if (done.step < 2) return;
      row.bytes = done.step == 2 ? bytes : std::min(row.bytes, bytes);  // in some steps ranks also compare copies
      seconds.push_back(done.seconds);
    });
    auto const report =
        trainer.fit(data, {.steps = options.steps, .batch = options.batch, .micro_batches = options.micro_batches});
    row.first_loss = report.first_loss;
    row.last_loss = report.last_loss;
    std::ranges::sort(seconds);
    row.seconds = seconds[seconds.size() / 2];
    row.memory = memory_of(trainer);
    if (diverged >= 0) {
      failed = text("trireme::sweep: the loss is not finite from step ", diverged, " of ", options.steps,
                    " on; give the optimizer a lower learning rate, or .clip");
    }
  } catch (comm_error const& error) {
    left_alone = error.what();
  } catch (device_memory_error const& error) {
    failed = error.what();
  } catch (std::bad_alloc const&) {
    failed = "trireme::sweep: not enough memory for this strategy";
  } catch (std::exception const& error) {
    failed = error.what();
    if (failed.empty()) failed = "an exception without a message";
  }
  row.refused = failure_of_all(world, failed, left_alone);
  if (row.refused.empty()) most_of_all(world, row);
  return row;
}

template <class List, class Model, class Data, class World, class... Policies>
[[nodiscard]] std::vector<sweep_row> sweep_all(List const& list, Model const& model, Data const& data, World& world,
                                               sweep_options options, Policies const&... policies) {
  options.validate();
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

/// Trains the same model with each strategy of a list, from the same start on the same batches, and returns the
/// prediction of each strategy's plan next to the measurement.
///
/// The machine's limits are measured first unless given: the speed of ranks that train the whole model alone, all at
/// once, and an all_reduce. Predictions therefore assume that all stages of a pipeline are equal, and that a rank's
/// speed does not depend on how much work it has.
///
/// Ranks    collective: every rank makes the same call; each gets the same rows.
/// Errors   config_error for invalid numbers. A strategy that fails (sizes that do not fit the world, a loss that is no
///          longer finite, not enough memory, an exception that all ranks throw, or one of the dataset on one rank)
///          gets a row with the reason, and the next one is trained. If a model throws on one rank alone within a step,
///          where the others wait for it, the sweep ends: on that rank with its own exception, on the others with
///          comm_error at the communicator's deadline.
///
/// @param policies  an optimizer (default optim::adamw{}), a precision, a compressor.
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

/// The rows as a table: milliseconds and bytes sent per step, and memory by kind, in MB. Time and bytes have the
/// predicted numbers beside the measured ones.
[[nodiscard]] inline std::string to_string(std::span<sweep_row const> rows) {
  constexpr double ms = 1e3, mega = 1e-6;
  std::size_t width = 8;
  for (auto const& row : rows) width = std::max(width, row.name.size());
  std::string out;
  auto const gap = [](std::size_t wide, std::string const& word) {
    return std::string(wide - std::min(wide, word.size()), ' ');
  };
  auto const left = [&](std::size_t wide, std::string const& word) { return word + gap(wide, word); };
  auto const right = [&](std::size_t wide, std::string const& word) { return gap(wide, word) + word; };
  using trireme::detail::fixed;
  out += text(left(width, ""), " | ", left(26, "ms a step"), " | ", left(19, "MB sent a step"), " | ",
              left(55, "MB held"), " | loss\n");
  out += text(left(width, "strategy"), " |         predicted measured | predicted   counted |    params gradients",
              " optimizer  activat.   buffers   sum |    last\n");
  for (auto const& row : rows) {
    if (!row.refused.empty()) {
      out += row.name + std::string(width - row.name.size(), ' ') + " | " + row.refused + '\n';
      continue;
    }
    auto const mb = [](auto bytes) { return mega * static_cast<double>(bytes); };
    auto const& held = row.memory;
    auto const in_ms = [&](double seconds) { return right(8, fixed(ms * seconds, 2)); };
    auto const in_mb = [&](auto bytes) { return right(9, fixed(mb(bytes), 3)); };
    out +=
        text(left(width, row.name), " | ", in_ms(row.at_best), "-", in_ms(row.at_worst), " ", in_ms(row.seconds), " | ",
             in_mb(row.planned_bytes), " ", in_mb(row.bytes), " | ", in_mb(held.parameters), " ", in_mb(held.gradients),
             " ", in_mb(held.optimizer), " ", in_mb(held.activations), " ", in_mb(held.buffers), " ",
             right(5, fixed(mb(held.total()), 1)), " | ", right(7, fixed(row.last_loss, 4)), "\n");
  }
  return out;
}

}  // namespace trireme
