#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "trireme/comm/counted.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/core/device_rates.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/train/detail/plan_run.hpp"
#include "trireme/train/make_trainer.hpp"

namespace trireme {

namespace detail {
struct refused;  // what make_trainer returns after reporting an error
}

/// The input of a plan.
struct plan_options {
  std::int64_t samples = 32;       ///< samples in a step, over all ranks: fit_options::batch
  std::int64_t micro_batches = 0;  ///< logical micro-batches in a step; 0 = one per replica, as in fit_options
  std::int64_t context = 0;        ///< positions of a sample of tokens; 0 = the model's
  double flops = 0;                ///< operations per second of a rank; 0: its share of its device's, or else 1e12
  double bandwidth = 10e9;         ///< sending speed of a rank, in bytes per second
  double latency = 10e-6;          ///< of a message, in seconds; a collective of p ranks waits for ceil(log2(p))
  int ranks = 1;                   ///< size of the world, for plan_for
  int rank = 0;                    ///< the rank to plan, for plan_for
};

/// Memory of one rank, in bytes.
struct planned_memory {
  std::int64_t parameters = 0;   ///< read by layers: all of the rank's part, or its shards
  std::int64_t gradients = 0;    ///< held permanently
  std::int64_t optimizer = 0;    ///< moments, and master values if layers read another type
  std::int64_t activations = 0;  ///< maximum of saved activations of micro-batches in flight, and of scratch memory
  std::int64_t buffers = 0;      ///< gathered values, gradients and activations in transit, payloads
  [[nodiscard]] std::int64_t total() const noexcept {
    return parameters + gradients + optimizer + activations + buffers;
  }
  friend bool operator==(planned_memory const&, planned_memory const&) = default;
};

/// The memory of a trainer on this rank, as its components report it; all of it is allocated after two steps.
template <class Trainer>
[[nodiscard]] planned_memory memory_of(Trainer& trainer) {
  auto const held = trainer.exchange().memory();
  return {.parameters = held.parameters,
          .gradients = held.gradients,
          .optimizer = held.masters + trainer.moment_bytes(),
          .activations = static_cast<std::int64_t>(trainer.engine().peak_bytes()),
          .buffers = held.buffers + trainer.engine().message_bytes()};
}
/// For a trainer that the compiler has rejected: its one error is enough.
[[nodiscard]] inline planned_memory memory_of(detail::refused&) noexcept { return {}; }

/// The predicted cost of one training step on one rank.
struct training_plan {
  int ranks = 1;
  comm::traffic_table sent;     ///< by_operation: calls, messages and bytes of `steps`, over all groups; no by_peer
  std::uint64_t latencies = 0;  ///< for which the rank waits in `steps`, one after the other
  std::int64_t steps = 1;       ///< the period of `sent`: more than 1 if ranks communicate less often than every step
  planned_memory memory;
  std::int64_t device_bytes = 0;  ///< of the device that the rank computes on; 0: in host memory, or it is not known
  int ranks_on_device = 1;        ///< that share it
  device_rates rates;             ///< of the device, in products of the precision's type; 0: not known
  double flops = 0;               ///< additions and multiplications of products and attention in this rank's step
  double bubble = 0;              ///< share of the step in which the stage that waits longest waits for other stages
  double computing = 0;           ///< seconds for flops, without waiting
  double sending = 0;             ///< seconds for what is sent, one call after the other: bytes, and latencies
  double step_at_best = 0;        ///< seconds if all communication overlaps with computation
  double step_at_worst = 0;       ///< seconds if none does

  [[nodiscard]] int rank() const noexcept { return sent.rank; }
  /// What the ranks of the device hold, if all hold as much as this one.
  [[nodiscard]] std::int64_t bytes_on_device() const noexcept { return ranks_on_device * memory.total(); }
  /// Whether the device has that much. A plan leaves out what CUDA and its libraries hold.
  [[nodiscard]] bool fits() const noexcept { return device_bytes == 0 || bytes_on_device() <= device_bytes; }
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept {
    std::uint64_t sum = 0;
    for (auto const& each : sent.by_operation) sum += each.bytes;
    return sum;
  }
  [[nodiscard]] std::uint64_t messages_sent() const noexcept {
    std::uint64_t sum = 0;
    for (auto const& each : sent.by_operation) sum += each.messages;
    return sum;
  }
};

[[nodiscard]] inline std::string to_string(training_plan const& plan) {
  auto out = text("rank ", plan.rank(), " of ", plan.ranks,
                  plan.steps == 1 ? ", a step\n" : text(", ", how_many(plan.steps, "step"), "\n"));
  for (int kind = 0; kind < comm::collective_kinds; ++kind) {
    auto const& row = plan.sent.by_operation[kind];
    if (row.bytes == 0) continue;
    out += text("  sent by ", name_of(static_cast<comm::collective>(kind)), ": ", how_many(row.bytes, "byte"), " in ",
                row.calls, row.calls == 1 ? " call\n" : " calls\n");
  }
  out += text("  sent in all: ", how_many(plan.bytes_sent(), "byte"), "\n");
  auto const& memory = plan.memory;
  out += text("  memory: parameters ", memory.parameters, ", gradients ", memory.gradients, ", optimizer ",
              memory.optimizer, ", activations ", memory.activations, ", buffers ", memory.buffers, ", in all ",
              how_many(memory.total(), "byte"), "\n");
  if (plan.device_bytes > 0) {
    out += text("  device: ", how_many(plan.device_bytes, "byte"), ", planned for ",
                how_many(plan.ranks_on_device, "rank"), " on it: ", how_many(plan.bytes_on_device(), "byte"), "\n");
    if (plan.rates.flops > 0 && plan.rates.bandwidth > 0) {
      out += text("  device, at most: ", detail::fixed(1e-12 * plan.rates.flops, 1), " TFLOP/s, and ",
                  detail::fixed(1e-9 * plan.rates.bandwidth, 0), " GB/s of its memory\n");
    }
    if (!plan.fits()) {
      out +=
          "  the training will not fit into the memory of the device: take a smaller batch, more micro-batches or "
          "nn::checkpointed, or shard by parallel::zero\n";
    }
  }
  out += text("  bubble: ", 100 * plan.bubble, " % of the step\n");
  out += text("  time: ", plan.computing, " s computing, ", plan.sending, " s sending, ", plan.step_at_best, " to ",
              plan.step_at_worst, " s a step\n");
  return out;
}

namespace detail {

/// The form of a model's samples, if its description contains it.
template <class Model>
[[nodiscard]] sample_form form_of(Model const& model, plan_options const& options) {
  if constexpr (requires { model.vocabulary + model.context; }) {
    auto const context = options.context == 0 ? model.context : options.context;
    return {dtype::i32, dtype::i32, {context}, {context}};
  } else {
    static_assert(
        requires { model.inputs + model.outputs; },
        "trireme::plan: the model's description does not define what a sample is; pass a dataset too: "
        "plan(trainer, data, options)");
    return {dtype::f32, dtype::f32, {model.inputs}, {model.outputs}};
  }
}
template <dataset Data>
[[nodiscard]] sample_form form_of_data(Data const& data) {
  return {data.input_type(), data.target_type(), data.input_shape(), data.target_shape()};
}

/// `of_device` is what the rank's device does at most; 0: not known.
[[nodiscard]] inline training_plan planned(paper_step const& step, int ranks, plan_options const& options,
                                           double of_device = 0) {
  expect_number("plan", ".samples", options.samples, at_least_one);
  expect_number("plan", ".micro_batches", options.micro_batches, not_negative);
  expect_number("plan", ".context", options.context, not_negative);
  if (!(options.flops >= 0 && options.bandwidth > 0 && options.latency >= 0)) {
    throw config_error(text("trireme::plan: .flops = ", options.flops, ", .bandwidth = ", options.bandwidth,
                            ", .latency = ", options.latency,
                            "; the bandwidth must be above 0, and no number negative"));
  }
  constexpr double of_processors = 1e12;
  auto const flops = options.flops > 0 ? options.flops : of_device > 0 ? of_device : of_processors;
  training_plan plan;
  plan.ranks = ranks;
  plan.sent = step.sent;
  plan.latencies = step.latencies;
  plan.steps = step.steps;
  plan.memory = {.parameters = step.exchange.parameters,
                 .gradients = step.exchange.gradients,
                 .optimizer = step.exchange.masters + step.moments,
                 .activations = step.activations,
                 .buffers = step.exchange.buffers + step.message_buffers};
  plan.flops = step.flops;
  plan.bubble = step.bubble;
  plan.computing = step.flops / flops;
  plan.sending = (static_cast<double>(plan.bytes_sent()) / options.bandwidth +
                  static_cast<double>(plan.latencies) * options.latency) /
                 static_cast<double>(plan.steps);
  auto const busy = plan.computing / (1 - plan.bubble);
  plan.step_at_best = busy > plan.sending ? busy : plan.sending;
  plan.step_at_worst = busy + plan.sending;
  return plan;
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
[[nodiscard]] training_plan plan_like(
    basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression> const& trainer, sample_form const& form,
    plan_options const& options) {
  auto const& world = trainer.world();
  paper_training<Comm, Precision, Model, Optimizer, Parallel, Compression> paper(
      trainer.described_model(), trainer.optimizer(), trainer.parallel_policy(), trainer.precision_policy(),
      trainer.compression_policy(), {world.rank(), world.size()});
  using space = typename space_of<Comm>::type;
  int ranks_on_device = 1;
  device_rates rates;
  if constexpr (requires { space::device_bytes(); } && has_peers<Comm, float, space>)
    ranks_on_device = world.size();  // threads, on one device unless they say otherwise
  if constexpr (requires { space::rates(dtype{}, bool{}); }) {
    bool tf32 = false;
    if constexpr (requires { trainer.precision_policy().tf32_products; })
      tf32 = trainer.precision_policy().tf32_products;
    rates = space::rates(dtype_of<typename environment_of<Model, Precision, space>::compute>, tf32);
  }
  auto plan = planned(paper.step(form, options.samples, options.micro_batches), world.size(), options,
                      rates.flops / ranks_on_device);
  plan.ranks_on_device = ranks_on_device;
  plan.rates = rates;
  if constexpr (requires { space::device_bytes(); })
    plan.device_bytes = static_cast<std::int64_t>(space::device_bytes());
  if constexpr (requires { space::remember_plan(std::size_t{}); })
    space::remember_plan(static_cast<std::size_t>(plan.memory.total()));
  return plan;
}

}  // namespace detail

/// Predicts what a step of a trainer will send, hold and take on this rank. The step is simulated in a world that only
/// counts and in memory that is not allocated. The trainer is not changed, and nothing is sent.
///
/// Bytes    sent: equal to what the rank's communicators count in each step of fit(), except the first step of a
///          pipeline, which also sends shapes. Memory: equal to what exchange, optimizer and engine report after some
///          steps, without packed copies of weights and the communicators' own buffers. In the memory of a device,
///          the plan says whether that fits (fits()), and a device_memory_error of this thread names it.
/// Numerics flops are those of products (2 m n k each) and of attention (the unmasked half); kernels that only move
///          data count as free. Times assume that a rank runs everything at the speeds in `options`, and that the
///          stages of a pipeline are equal: they are a first estimate, not a measurement. If .flops is a device's,
///          times are lower bounds: trainings reach less than half of it.
/// Ranks    local: each rank gets its own plan.
/// Errors   config_error as for the trainer's mesh; if there are no samples; and, where gradients are sharded, if the
///          replicas would run different numbers of micro-batches.
/// @example std::cout << to_string(plan(trainer, {.samples = 64, .bandwidth = 25e9}));
template <staged_model Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
[[nodiscard]] training_plan plan(basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression> const& trainer,
                                 plan_options const& options = {}) {
  return detail::plan_like(trainer, detail::form_of(trainer.described_model(), options), options);
}
/// The same for a model whose description does not define what a sample is: samples are like those of `data`.
template <staged_model Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression,
          dataset Data>
[[nodiscard]] training_plan plan(basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression> const& trainer,
                                 Data const& data, plan_options const& options = {}) {
  return detail::plan_like(trainer, detail::form_of_data(data), options);
}

/// The plan of rank options.rank in a world of options.ranks, which need not exist. Policies as for make_trainer, in
/// any order, without a communicator: ranks are taken to exchange messages and not to share memory.
///
/// Threads  any; calls may run at the same time.
/// @example plan_for({.samples = 2048, .ranks = 1024}, nn::gpt{}, optim::adamw{}, parallel::zero<1>{});
template <class... Policies>
[[nodiscard]] training_plan plan_for(plan_options const& options, Policies const&... policies) {
  using world = detail::paper_world<detail::messages>;
  using sorted = detail::resolve<Policies..., world>;
  static_cast<void>(check_policies<Policies..., world>());
  if constexpr (sorted::ok) {
    static_assert(staged_model<typename sorted::model>,
                  "trireme::plan_for: a plain model does not show its activations, so it cannot be planned; "
                  "describe the model in units");
    if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks) {
      throw config_error(text("trireme::plan_for: there is no rank ", options.rank, " in a world of ", options.ranks));
    }
    auto const model = detail::pick<slot::model, void>(policies...);
    detail::paper_training<detail::messages, typename sorted::precision, typename sorted::model,
                           typename sorted::optimizer, typename sorted::parallel, typename sorted::compression>
        paper(model, detail::pick<slot::optimizer, void>(policies...),
              detail::pick<slot::parallel, parallel::data>(policies...),
              detail::pick<slot::precision, precision::fp32>(policies...),
              detail::pick<slot::compression, compression::none>(policies...), {options.rank, options.ranks});
    return detail::planned(paper.step(detail::form_of(model, options), options.samples, options.micro_batches),
                           options.ranks, options);
  } else {
    return {};
  }
}

}  // namespace trireme
