#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/counted.hpp"
#include "trireme/contract/casting_model.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/ops/phantom.hpp"
#include "trireme/parallel/schedules/simulate.hpp"
#include "trireme/train/detail/plan_world.hpp"
#include "trireme/train/step.hpp"

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
