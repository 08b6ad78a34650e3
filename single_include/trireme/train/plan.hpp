// Trireme 0.1.0: trireme/train/plan.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 5028108f35f8b868a2f02ec3e5f6667cb04881145d570be469a2968053e977cc
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/core/device_rates.hpp"

// ---- trireme/train/plan.hpp
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#ifndef TRIREME_TRAIN_DETAIL_PLAN_RUN_INCLUDED
#define TRIREME_TRAIN_DETAIL_PLAN_RUN_INCLUDED

// ---- trireme/train/detail/plan_run.hpp
#include <memory>
#include <span>
#include <vector>

#ifndef TRIREME_TRAIN_DETAIL_PLAN_WORLD_INCLUDED
#define TRIREME_TRAIN_DETAIL_PLAN_WORLD_INCLUDED

// ---- trireme/train/detail/plan_world.hpp
#include <string_view>

namespace trireme::detail {

/// Ranks    that only exchange messages: the communicator of a plan that names none.
struct messages {};

/// What would be sent, and the latencies of it.
struct paper_counts : comm::traffic_table {
  std::uint64_t latencies = 0;
};

/// One rank of a simulated world. It counts what would be sent, also in groups split from it, and has the capabilities
/// of Like. Tensors are in phantom memory. For the few numbers in host memory that ranks decide by, every other rank is
/// taken to contribute what this one contributes.
template <class Like>
class paper_world : public comm::collectives<paper_world<Like>> {
  using like_space = typename space_of<Like>::type;

 public:
  using request = comm::self_request;
  using space = phantom;
  static constexpr std::string_view name = "paper";

  paper_world(group_rank own, std::shared_ptr<paper_counts> counts) noexcept : own_(own), counts_(std::move(counts)) {}

  [[nodiscard]] int rank() const noexcept { return own_.rank; }
  [[nodiscard]] int size() const noexcept { return own_.size; }

  template <class Space>
  static constexpr bool supports(comm::collective kind, dtype type, comm::reduction_kind op) noexcept {
    using theirs = std::conditional_t<std::is_same_v<Space, phantom>, like_space, Space>;
    if constexpr (requires { Like::template supports<theirs>(kind, type, op); }) {
      return Like::template supports<theirs>(kind, type, op);
    } else {
      return true;
    }
  }
  void run(comm::command const& it) const {
    auto& row = counts_->by_operation[static_cast<std::size_t>(it.what.kind)];
    ++row.calls;
    row.messages += it.messages;
    row.bytes += it.bytes;
    counts_->latencies += static_cast<std::uint64_t>(comm::latencies_of(it, size()));
    if (size() > 1 && it.elements != nullptr && it.elements->touchable) answer(it);
  }
  [[nodiscard]] request start(comm::command const& it) const {
    run(it);
    return {};
  }

  /// The group in which this rank has that share.
  [[nodiscard]] paper_world split(group_rank own) const { return {own, counts_}; }
  [[nodiscard]] paper_world split(int /*color*/, int /*key*/) const { return {group_rank{}, counts_}; }
  [[nodiscard]] paper_world duplicate() const { return {own_, counts_}; }
  template <class T>
  requires has_peers<Like, T, like_space>
  [[nodiscard]] std::vector<tensor_view<T, phantom>> peers(tensor_view<T, phantom> view) const {
    return std::vector<tensor_view<T, phantom>>(static_cast<std::size_t>(size()), view);
  }

 private:
  void answer(comm::command const& it) const {
    if (it.what.kind == comm::collective::all_reduce) {
      std::vector<void const*> const terms(static_cast<std::size_t>(size()), it.from);
      void* const outputs = it.to;
      it.elements->combine(std::span<void* const>(&outputs, 1), terms, it.what.count,
                           it.divisor == 0 ? size() : it.divisor);
    } else if (it.what.kind == comm::collective::all_gather && it.counts.empty()) {
      auto const bytes = static_cast<std::size_t>(it.what.count / size()) * it.element_bytes;
      auto* const all = static_cast<std::byte*>(it.to);
      for (int other = 0; other < size(); ++other)
        it.elements->copy(all + static_cast<std::size_t>(other) * bytes, all + static_cast<std::size_t>(rank()) * bytes,
                          bytes);
    }
  }

  group_rank own_;
  std::shared_ptr<paper_counts> counts_;
};

}  // namespace trireme::detail

#endif  // TRIREME_TRAIN_DETAIL_PLAN_WORLD_INCLUDED

// ---- trireme/train/detail/plan_run.hpp (goes on)
namespace trireme::detail {

/// The type and extents of one sample.
struct sample_form {
  dtype input_type = dtype::f32;
  dtype target_type = dtype::f32;
  shape inputs, targets;
};

/// Samples without memory; they are never read.
class paper_samples {
 public:
  paper_samples(sample_form const& form, std::int64_t most) : form_(form), ids_(static_cast<std::size_t>(most)) {}
  [[nodiscard]] samples take(std::int64_t count) const {
    return {view(form_.input_type, form_.inputs, count), view(form_.target_type, form_.targets, count),
            std::span<std::int64_t const>(ids_).first(static_cast<std::size_t>(count)), 1};
  }

 private:
  any_view<host> view(dtype type, shape const& one, std::int64_t count) const {
    shape all{count};
    for (int axis = 0; axis < one.rank(); ++axis) all.push_back(one[axis]);
    return {&form_, type, all};
  }
  sample_form form_;
  std::vector<std::int64_t> ids_;
};

/// All units of a model, used to compute the extents of their outputs.
template <class Env>
class paper_units {
  using view = tensor_view<typename Env::compute, phantom>;

 public:
  template <staged_model Model>
  paper_units(Model const& model, rank_groups<Env> const& groups)
      : groups_(groups), rows_of_sample_(rows_of_sample(model)) {
    auto const add = [&]<class Description>(Description const& description) {
      units_.push_back(std::unique_ptr<unit<Env>>(new boxed_unit<Env, Description>(description, groups)));
      for (auto* const each : units_.back()->parameters()) {
        each->value = {reinterpret_cast<typename Env::param*>(phantom::alignment), each->info.extents};
      }
    };
    model.units(add);
  }
  /// The extents of every unit's output for a micro-batch, except the last unit's.
  [[nodiscard]] std::vector<shape> outputs(samples const& batch) {
    samples_in<phantom> const here{{batch.inputs.address, batch.inputs.type, batch.inputs.extents},
                                   {batch.targets.address, batch.targets.type, batch.targets.extents},
                                   {batch.ids.data(), {batch.count()}}};
    arena<phantom> activations, scratch;
    pass<Env> pass{.activations = activations,
                   .scratch = scratch,
                   .batch = here,
                   .key = {},
                   .version = 1,
                   .weight = 0,
                   .purpose = purpose::evaluate,
                   .groups = groups_,
                   .rows_of_sample = rows_of_sample_};
    std::vector<shape> all;
    view x;
    for (std::size_t u = 0; u + 1 < units_.size(); ++u) {
      x = units_[u]->forward(pass, x);
      all.push_back(x.extents());
    }
    return all;
  }

 private:
  rank_groups<Env> const& groups_;
  std::int64_t rows_of_sample_ = 0;  // of the model
  std::vector<std::unique_ptr<unit<Env>>> units_;
};

/// The result of a simulated step.
struct paper_step {
  comm::traffic_table sent;
  std::uint64_t latencies = 0;
  exchange_memory exchange;
  std::int64_t moments = 0;
  std::int64_t activations = 0;
  std::int64_t message_buffers = 0;
  double flops = 0;
  std::int64_t steps = 1;  // the number of steps that `sent` covers
  double bubble = 0;
};

/// One rank's part in a step, simulated in phantom memory with a counting world: everything except arithmetic happens
/// as in a training with the communicator Like.
template <class Like, class Precision, class Model, class Optimizer, class Parallel, class Compression>
class paper_training {
  using env = environment_of<Model, Precision, phantom>;
  using world_type = paper_world<Like>;
  using data_axis = parallel::data_axis_t<Parallel>;

 public:
  paper_training(Model const& model, Optimizer const& optimizer, Parallel const& parallel, Precision const& precision,
                 Compression const& compression, group_rank own)
      : model_(model),
        optimizer_(optimizer),
        counts_(std::make_shared<paper_counts>()),
        world_(own, counts_),
        run_(model, world_, parallel, typename env::precision{precision}, compression, optimizer) {
    counts_->rank = own.rank;
    if constexpr (std::is_same_v<typename space_of<Like>::type, host>) placed_.engine().leave_batches();
    if constexpr (has_staging<typename space_of<Like>::type>) placed_.engine().stage_batches();
    placed_.engine().watch([this](schedule::step const& step, bool begins) {
      auto const kind = static_cast<std::size_t>(step.kind);
      flops_[kind] += begins ? -ops::on<phantom>::flops() : ops::on<phantom>::flops();
      steps_[kind] += begins ? 0 : 1;
    });
  }

  /// @param micro_batches  logical micro-batches of the batch; 0: one per replica.
  [[nodiscard]] paper_step step(sample_form const& form, std::int64_t batch, std::int64_t micro_batches) {
    auto const own = placed_.sample_coordinate();
    auto const parts = micro_batches == 0 ? own.size : micro_batches;
    check(batch, parts, own.size);
    auto const range = data::even_split(parts, own.size, own.rank);
    paper_samples const paper(form, batch);
    std::vector<samples> here;
    std::vector<std::int64_t> places;
    for (auto m = range.first; m < range.end(); ++m) {
      auto const count = data::even_split(batch, parts, m).count;
      if (count == 0) continue;
      here.push_back(paper.take(count));
      places.push_back(m);
    }
    if (stages() > 1) predict_shapes(placed_.cut(here));
    auto const first = placed_.exchange().settles_after();
    auto const period = placed_.exchange().period();
    for (std::int64_t step = 0; step < first + period; ++step) {
      if (step <= first) {
        for (auto& row : counts_->by_operation) row = {};
        counts_->latencies = 0;
        ops::on<phantom>::flops() = 0;
      }
      std::int64_t no_wishes = 0;
      static_cast<void>(take_step(run_, optimizer_, {here, range, places, batch}, no_wishes));
    }
    return {.sent = *counts_,
            .latencies = counts_->latencies,
            .exchange = placed_.exchange().memory(),
            .moments = run_.moments.bytes(),
            .activations = static_cast<std::int64_t>(placed_.engine().peak_bytes()),
            .message_buffers = placed_.engine().message_bytes(),
            .flops = ops::on<phantom>::flops() / static_cast<double>(period),
            .steps = period,
            .bubble = bubble(static_cast<int>(here.size()))};
  }

 private:
  static void check(std::int64_t batch, std::int64_t parts, std::int64_t ways) {
    if (batch < 1 || parts < 1) {
      throw config_error(text("trireme::plan: a step of ", how_many(batch, "sample"), " in ",
                              how_many(parts, "micro-batch"), "; give at least one of each"));
    }
    if (data_axis::gradients == distribution::shard && (parts % ways != 0 || batch < parts)) {
      throw config_error(text(
          "trireme::plan: ", how_many(batch, "sample"), " in ", how_many(parts, "micro-batch"), " for ", ways,
          " replicas; where gradients are sharded, each replica needs the same number of non-empty micro-batches"));
    }
  }
  // The simulation receives no message with the extents of the next one, so they are computed here.
  void predict_shapes(std::span<samples const> batches) {
    paper_units<env> units(model_, placed_.groups());  // not counted as sent: no step has begun
    std::vector<shape> known;
    for (auto const& each : batches) {
      auto const& key = each.inputs.extents;
      bool told = false;
      for (auto const& before : known) told = told || before == key;
      if (told) continue;
      known.push_back(key);
      placed_.engine().predict_shapes(key, units.outputs(each));
    }
  }
  // The cost of this stage's steps by kind, in millionths of the total. A unit whose backward cannot be split does all
  // of it in the first half.
  [[nodiscard]] schedule::costs costs() const {
    double mean[4]{};
    double sum = 0;
    for (std::size_t kind = 0; kind < 4; ++kind) {
      mean[kind] = exactly_equal(steps_[kind], 0) ? 0 : flops_[kind] / steps_[kind];
      sum += mean[kind];
    }
    auto const of = [&](schedule::work kind) {
      return static_cast<std::int64_t>(mean[static_cast<std::size_t>(kind)] / sum * 1e6);
    };
    if (exactly_equal(mean[static_cast<std::size_t>(schedule::work::forward)], 0))
      return {};  // nothing is known: a third each
    bool const halves = steps_[static_cast<std::size_t>(schedule::work::backward_input)] > 0;
    return {.forward = of(schedule::work::forward),
            .backward_input = of(halves ? schedule::work::backward_input : schedule::work::backward),
            .backward_weight = halves ? of(schedule::work::backward_weight) : 0};
  }
  [[nodiscard]] int stages() { return placed_.engine().assignment().where.stages; }
  // For the stage that waits longest, the share of the step in which it waits. Steps do not overlap, since all ranks
  // vote at the end of each, so waiting before a stage's first and after its last work counts too.
  [[nodiscard]] double bubble(int micro_batches) {
    if (micro_batches == 0 || stages() == 1) return 0;
    auto const run = schedule::simulate(placed_.engine().assignment().lists(micro_batches), costs());
    return run.span() == 0 ? 0 : static_cast<double>(run.waiting()) / static_cast<double>(run.span());
  }

  Model const& model_;
  Optimizer const& optimizer_;
  std::shared_ptr<paper_counts> counts_;
  world_type world_;
  run_state<env, Model, Optimizer, world_type, Parallel, Compression> run_;
  placed_model<env, Model, world_type, Parallel, Compression>& placed_ = run_.model;
  double flops_[4]{};  // by schedule::work
  double steps_[4]{};
};

}  // namespace trireme::detail

#endif  // TRIREME_TRAIN_DETAIL_PLAN_RUN_INCLUDED

// ---- trireme/train/plan.hpp (goes on)
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
