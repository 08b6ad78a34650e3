#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/replica_group.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/arrays.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/evaluation.hpp"
#include "trireme/parallel/broadcast.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/grid.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/replicas.hpp"
#include "trireme/train/detail/compute_watch.hpp"
#include "trireme/train/detail/placed_axes.hpp"
#include "trireme/train/detail/together.hpp"
#include "trireme/train/plain_engine.hpp"
#include "trireme/train/staged_engine.hpp"

namespace trireme {

namespace detail {

template <class Env, class Model>
struct engine_of {
  using type = plain_engine<Env, Model>;
};
template <class Env, staged_model Model>
struct engine_of<Env, Model> {
  using type = staged_engine<Env>;
};

}  // namespace detail

/// One rank's contribution to a step.
struct step_input {
  std::span<samples const> micro_batches;  ///< those that have samples
  interval range;                          ///< this rank's logical micro-batches
  std::span<std::int64_t const> places;    ///< the indices of those that have samples
  std::int64_t total = 0;                  ///< samples of the step, over all ranks
  std::exception_ptr failure{};            ///< why the samples could not be read on this rank
  /// The batch of the next step, or nullptr if it is not known yet. Called when this step's kernels are queued.
  std::function<data::batch const*()> ahead{};

  /// The samples of this rank.
  [[nodiscard]] std::int64_t own() const noexcept {
    std::int64_t sum = 0;
    for (auto const& each : micro_batches) sum += each.count();
    return sum;
  }

  /// Added to the wishes of a rank that has failed. It is larger than any sum of the other wishes.
  static constexpr std::int64_t gives_up = std::int64_t{1} << 42;
};

/// One rank's part of a model under a mesh: its position, its groups, the engine that runs its units, and the exchange
/// of its parameters. The trainer passes all samples through it.
///
/// Ranks    collective, as the trainer's calls are.
/// Threads  one owner; the world, and a plain model that was passed as an lvalue, must outlive it.
/// Errors   config_error for sizes that do not fit; comm_error from the communicator.
template <class Env, class Model, class Comm, class Parallel, class Compression>
class placed_model {
  using number = sample_number<Env>;

 public:
  using space = typename Env::space;
  using data_axis = parallel::data_axis_t<Parallel>;
  using engine_type = typename detail::engine_of<Env, Model>::type;
  static constexpr bool staged = staged_model<Model>;
  // The exchange gives units their memory; a plain model has its own.
  using exchange_type =
      std::conditional_t<staged, basic_exchange<Env, Comm, data_axis, Compression, parallel::own_memory>,
                         basic_exchange<Env, Comm, data_axis, Compression, parallel::callers_memory>>;

  template <class GivenModel>
  placed_model(GivenModel&& model, Comm& world, Parallel const& parallel, Compression const& compression,
               bucket_requirements const& requirements = {})
      : world_(world),
        grid_(parallel, world),
        axes_(parallel, grid_),
        replicas_(meet_replicas(parallel)),
        buffers_of_(with_unit_buffers(model)),
        engine_(make_engine(std::forward<GivenModel>(model))),
        exchange_(make_exchange(parallel, compression, requirements)) {
    axes_.each([&](auto& axis) {
      if constexpr (requires { axis.join(exchange_); }) axis.join(exchange_);
    });
  }
  placed_model(placed_model const&) = delete;
  placed_model& operator=(placed_model const&) = delete;

  [[nodiscard]] parallel::grid<Comm>& grid() noexcept { return grid_; }
  [[nodiscard]] parallel::grid<Comm> const& grid() const noexcept { return grid_; }
  [[nodiscard]] engine_type& engine() noexcept { return engine_; }
  [[nodiscard]] exchange_type& exchange() noexcept { return exchange_; }
  [[nodiscard]] exchange_type const& exchange() const noexcept { return exchange_; }

  /// Where a loader reads batches to; it must not outlive this object.
  [[nodiscard]] data::batch_memory memory_of_batches() {
    if constexpr (staged && has_staging<space>)
      return data::batch_memory::staging<space>([this](bool all) { engine_.finish_copies(all); });
    else
      return {};
  }
  /// Ranks that differ in this share see different samples.
  [[nodiscard]] group_rank sample_coordinate() const noexcept { return grid_.samples(); }

  /// Collective. Copies the parameters of each part's first replica to all its replicas, and what several parts hold
  /// alike from the first of them.
  void broadcast() {
    exchange_.broadcast(0, [&]([[maybe_unused]] auto&& send) {
      if constexpr (staged) {
        for (auto const& axis : grid_.shape().axes()) {
          auto* const ranks = grid_.along(axis.kind);
          if (ranks == nullptr || !axis.facts.same_losses()) continue;
          for (auto const& entry : exchange_.plan().entries()) {
            if (is_alike(axis, entry.info)) send(entry, *ranks);
          }
        }
      }
    });
  }

  /// Collective. Makes the buffers of a model equal on all ranks: for a plain model as it declares; for a staged one by
  /// copying from the first rank that has the unit.
  void synchronise_buffers() {
    if constexpr (has_unit_buffers<Model>) {
      std::vector<std::int64_t> roots;
      buffers_of_.visit_buffers([&](auto const&, auto const&, std::int64_t unit) {
        roots.push_back(engine_.has_unit(unit) ? world_.rank() : world_.size());
      });
      if (roots.empty()) return;
      world_.all_reduce(tensor_view<std::int64_t>(roots), reduction::min{});
      auto root = roots.begin();
      buffers_of_.visit_buffers([&](auto const&, auto values, std::int64_t) {
        parallel::broadcast(world_, values, static_cast<int>(*root++));
      });
    } else if constexpr (has_buffers<Model>) {
      constexpr bool mean = [] {
        if constexpr (requires { Model::buffers; }) return Model::buffers == shared_buffers::mean;
        return false;
      }();
      engine_.visit_buffers([&](auto const&, auto values) {
        if constexpr (mean && std::is_floating_point_v<typename decltype(values)::value_type>) {
          parallel::sum_of_all(world_, values, reduction::mean{});
        } else {
          parallel::broadcast(world_, values, 0);
        }
      });
    }
  }
  /// Visits the state besides parameters; see contract/state.hpp.
  template <class F>
  void visit_state([[maybe_unused]] state_scope scope, [[maybe_unused]] F&& f) {
    if (scope == state_scope::owned && world_.rank() != 0) return;
    [[maybe_unused]] auto const show = [&](auto const& name, auto values) {
      parameter_info const info{.name = name, .extents = values.extents()};
      f(text("buffer/", name), state_location{info}, values.flat(0, values.size()));
    };
    if constexpr (has_unit_buffers<Model>) {
      buffers_of_.visit_buffers([&](auto const& name, auto values, std::int64_t) { show(name, values); });
    } else if constexpr (has_buffers<Model>) {
      engine_.visit_buffers(show);
    }
  }

  /// Collective. The number of samples on all ranks together, given this rank's number.
  [[nodiscard]] std::int64_t samples_of_all(std::int64_t own) {
    tensor_view<std::int64_t> const sum(&own, shape{1});
    grid_.replicas().all_reduce(sum, reduction::sum{});
    for (auto const& axis : grid_.shape().axes()) {
      if (axis.facts.samples == axis_samples::shared) own /= axis.degree;  // those ranks have the same samples
      if (axis.facts.samples != axis_samples::split || axis.facts.replicates()) continue;
      if (auto* const ranks = grid_.along(axis.kind); ranks != nullptr) ranks->all_reduce(sum, reduction::sum{});
    }
    return own;
  }

  /// This rank's part of each sample; valid until the next call.
  [[nodiscard]] std::span<samples const> cut(std::span<samples const> batches) requires staged {
    return axes_.cut(batches);
  }
  /// The groups that the axes offer to the units.
  [[nodiscard]] rank_groups<Env> const& groups() const noexcept { return axes_.groups(); }

  /// Whether train() measures how long this rank computes.
  void measure(bool on) noexcept { watch_.measures = on; }
  /// The time of the last train(), without what this rank did in it for the exchange, where it may wait for others.
  [[nodiscard]] double computed_seconds() const noexcept { return watch_.seconds; }

  /// Forward and backward of a step's micro-batches. When it returns, gradients are being exchanged.
  /// @param scale  factor on the losses that are differentiated.
  /// @returns the losses that this rank contributes, to be read when the exchange is finished; equal samples are
  ///          counted by one rank.
  auto train(step_input const& input, double scale, random_key key) {
    auto const own = static_cast<std::int64_t>(input.micro_batches.size());
    auto const measured = watch_.whole();
    auto const most = shadows() || (meets_replicas && replicas_ != nullptr) ? most_of(world_, own) : own;
    watch_.leave_out([&] {
      exchange_.begin({.micro_batches = input.range.count,
                       .places = input.places,
                       .first = input.range.first,
                       .runs = most,
                       .scale = scale,
                       .number = static_cast<std::int64_t>(key.step),
                       .samples = input.own(),
                       .samples_of_all = input.total});
    });
    if constexpr (staged) {
      double const weight = exchange_.sample_weight(input.total) * scale;
      bool const always = exchange_.reports_every_micro_batch();
      auto const ready = [&](int use, bool last) {
        if (last || always) watch_.leave_out([&] { exchange_.ready(use); });
      };
      auto const here = cut(input.micro_batches);
      auto const rows = rows_of_loss(here, most - own, input.total);
      auto const losses = engine_.train_step(here, weight, key, ready, exchange_, most - own, rows);
      if constexpr (has_staging<space>) {
        bool const uncut = here.data() == input.micro_batches.data();
        auto const* const next = uncut && input.ahead ? input.ahead() : nullptr;
        if (next != nullptr && !next->micro_batches.empty()) engine_.bring(next->micro_batches.front());
      }
      return told(losses);
    } else {
      loss_sum sum;
      double const weight = 1.0 / static_cast<double>(input.total) * scale;
      constexpr bool sums = engine_type::sums_gradients;
      // The part of the weight that the model multiplies its loss by; the rest multiplies gradients.
      double const inside = !engine_type::scales_loss ? 1.0 : sums ? weight : scale;
      for (auto const& batch : input.micro_batches) {
        bool const last = &batch == &input.micro_batches.back();
        exchange_.weight((sums ? 1.0 : static_cast<double>(batch.count())) * weight / inside);
        auto const ready = [&](int use) {
          if (last) watch_.leave_out([&] { exchange_.ready(use); });
        };
        sum += engine_.train(batch, ready, inside);
        if (!last) exchange_.accumulate();
      }
      return told(sum);
    }
  }

  /// The losses of this rank's part of a dataset, at most `batch` samples at a time: if these are many, units get
  /// blocks of them, as in predict().
  /// @param failure  set to an exception of the dataset on this rank: the others wait for this rank until mean().
  template <dataset Data>
  [[nodiscard]] loss_sum evaluate(Data const& data, std::int64_t batch, std::exception_ptr& failure) {
    auto const own = sample_coordinate();
    if constexpr (staged)
      batch = std::min(batch, samples_of_a_block(data.input_type(), shape(data.input_shape()).size()));
    data::evaluation_batches parts(data, batch, own.rank, own.size, reading_of(data));
    parts.keep_failure();
    loss_sum sum;
    if constexpr (!staged) {
      for (auto const& part : parts) sum += engine_.evaluate(part);
    } else {
      auto missing = missing_passes(parts.batches().count);
      for (auto const& part : parts) sum += engine_.evaluate(cut({&part, 1}).front(), exchange_);
      for (; missing > 0; --missing) shadows() ? engine_.shadow(exchange_) : exchange_.sit_out_forward();
    }
    failure = parts.failure();
    return sum;
  }

  /// The outputs for some inputs (n, outputs), in host memory. If ranks split positions, each of them computes all
  /// positions. Many samples are computed in blocks, so that the memory for activations is that of one block for any n;
  /// a sample's outputs do not depend on the others.
  [[nodiscard]] typename outputs_of<Model, Env>::type predict(samples const& batch) requires(staged ||
                                                                                             has_model_predict<Model>) {
    if constexpr (!staged)
      return engine_.predict(batch);
    else
      return predict_blocks(batch);
  }
  /// The same for rows of many sequences; see staged_engine::predict_rows().
  [[nodiscard]] tensor<float> predict_rows(samples const& batch, paged_rows const& rows) requires staged {
    auto const out = engine_.predict_rows(batch, rows, exchange_);
    return rows.outputs.empty() ? tensor<float>() : everywhere<float>(out);
  }

  /// The gradient of these samples' mean loss by their inputs, in host memory, on each rank that calls it.
  [[nodiscard]] typename input_gradients_of<Model, Env>::type input_gradient(samples const& batch) {
    if (batch.inputs.type != dtype::f32 && batch.inputs.type != dtype::f64) {
      throw config_error(text("trireme::trainer::input_gradient: the inputs are ", name_of(batch.inputs.type),
                              ", which have no gradients; input_gradient() is for models whose inputs are numbers"));
    }
    if (batch.count() == 0) throw config_error("trireme::trainer::input_gradient: no samples; give it at least one");
    if constexpr (!staged) {
      return engine_.input_gradient(batch);
    } else {
      loss_sum loss;
      auto const out = everywhere<number>(engine_.input_gradient(batch, loss, exchange_));
      std::int64_t rows[2] = {loss.count, loss.left_out};
      if constexpr (has_stages) {
        if (auto* const stages = grid_.along(axes_type::stages); stages != nullptr)
          stages->all_reduce(tensor_view<std::int64_t>(rows, shape{2}), reduction::sum{});
      }
      // Backward has given every sample the weight 1, including rows without a loss; the mean is over rows with a loss.
      double const all = static_cast<double>(rows[0] + rows[1]), counted = static_cast<double>(rows[0]);
      double const factor = rows[0] == 0 ? 0 : all / counted / static_cast<double>(batch.count());
      tensor<number> as_inputs(batch.inputs.extents);
      for (std::int64_t i = 0; i < out.size(); ++i)
        as_inputs[i] = static_cast<number>(factor * static_cast<double>(out[i]));
      return as_inputs;
    }
  }

  /// Collective. Calls f(outputs, targets) for each batch of a dataset, on one of the ranks that have its outputs.
  /// @param failure  set to an exception of the dataset on this rank: the others still wait for this rank.
  template <dataset Data, class F>
  void for_each_prediction(Data const& data, std::int64_t batch, std::exception_ptr& failure, F&& f) {
    auto const own = sample_coordinate();
    data::evaluation_batches parts(data, batch, own.rank, own.size, reading_of(data));
    parts.keep_failure();
    bool const first = is_first_with_its_samples();
    auto missing = missing_passes(parts.batches().count);
    for (auto const& part : parts) {
      auto const outputs = detail::floats_of(predict(part));
      if (!failure) failure = parts.failure();
      if (first && !failure) f(outputs.view(), part.targets);
    }
    data::evaluation_batches any(data, batch, 0, 1, {.prefetch = 0});
    any.keep_failure();
    for (; missing > 0; --missing) static_cast<void>(predict(*any.begin()));
    if (!failure) failure = any.failure();
  }

  /// Collective. The mean over all ranks of the losses that evaluate() returned.
  /// Errors   if it failed on one rank, an error on all of them.
  [[nodiscard]] double mean(loss_sum const& sum, std::exception_ptr const& failure) {
    auto const own = told(sum);
    double all[3] = {own.sum, static_cast<double>(own.count), failure ? 1.0 : 0.0};
    world_.all_reduce(tensor_view<double>(all, shape{3}), reduction::sum{});
    if (all[2] > 0) detail::throw_together(world_, failure);
    return exactly_equal(all[1], 0) ? 0 : all[0] / all[1];
  }

 private:
  static constexpr bool gathers = data_axis::parameters == distribution::shard;
  using axes_type = detail::placed_axes<Env, Comm, parallel::mesh_of_t<Parallel>>;
  static constexpr bool has_stages = !axes_type::stages.empty();
  static constexpr bool meets_replicas = staged && synchronises<Model>;

  struct no_buffers {};
  using with_buffers = std::conditional_t<has_unit_buffers<Model>, std::remove_cvref_t<Model>, no_buffers>;
  template <class GivenModel>
  static with_buffers with_unit_buffers([[maybe_unused]] GivenModel const& model) {
    if constexpr (has_unit_buffers<Model>) {
      return model;
    } else {
      return {};
    }
  }

  // Collective if the model needs it: the number of rows of a step whose losses count, over all ranks.
  [[nodiscard]] std::optional<loss_rows> rows_of_loss(std::span<samples const> here, std::int64_t shadowed,
                                                      std::int64_t all_samples) requires staged {
    if (!engine_.adds_sample_losses()) return std::nullopt;
    auto const own = told(engine_.rows_of_loss(here, shadowed));
    std::int64_t rows[2] = {own.count, own.left_out};
    world_.all_reduce(tensor_view<std::int64_t>(rows, shape{2}), reduction::sum{});
    return loss_rows::of({0, rows[0], rows[1]}, all_samples);
  }
  tensor<number> predict_blocks(samples const& batch) {
    auto const all = batch.count();
    auto const block =
        samples_of_a_block(batch.inputs.type, batch.inputs.extents.size() / std::max<std::int64_t>(1, all));
    if (all <= block) return everywhere<number>(engine_.predict(batch, exchange_));
    tensor<number> outputs;
    for (std::int64_t first = 0; first < all; first += block) {
      auto const count = std::min(block, all - first);
      auto const ids = batch.ids.empty() ? batch.ids : batch.ids.subspan(std::size_t(first), std::size_t(count));
      samples const part{batch.inputs.rows(first, count), {}, ids};
      auto const some = everywhere<number>(engine_.predict(part, exchange_));
      if (first == 0) outputs = tensor<number>(shape{all, some.size() / count});
      std::copy(some.span().begin(), some.span().end(), outputs.view().rows(first, count).span().begin());
    }
    return outputs;
  }
  // The number of samples predicted at once: small enough that their activations stay near the cache, large enough that
  // matrix products reach full speed. A token counts as one row of activations, a sample of numbers as at least one.
  // @param each  numbers of one sample's inputs.
  [[nodiscard]] static std::int64_t samples_of_a_block(dtype type, std::int64_t each) {
    constexpr std::int64_t rows = 4096, numbers = std::int64_t{1} << 18;
    return std::clamp<std::int64_t>((type == dtype::i32 ? rows : numbers) / std::max<std::int64_t>(1, each), 1, rows);
  }
  // If several ranks compute the same losses, only the first of them contributes them.
  template <class Losses>
  [[nodiscard]] Losses told(Losses const& own) const {
    for (auto const& axis : grid_.shape().axes())
      if (axis.facts.same_losses() && grid_.coordinate(axis.kind).rank != 0) return {};
    return own;
  }
  template <dataset Data>
  [[nodiscard]] data::evaluation_reading reading_of(Data const& data) const {
    return {.workers = data::detail::usual_workers(slow_to_read(data), world_.size())};
  }
  // Collective. In how many further passes of other ranks this rank must take part after its own.
  [[nodiscard]] std::int64_t missing_passes(std::int64_t own) {
    if constexpr (!staged) return 0;
    return shadows() ? most_of(world_, own) - own : gathers ? most_of(grid_.replicas(), own) - own : 0;
  }
  [[nodiscard]] bool is_first_with_its_samples() const {
    for (auto const& axis : grid_.shape().axes())
      if (axis.facts.samples != axis_samples::split && grid_.coordinate(axis.kind).rank != 0) return false;
    return true;
  }
  // Whether other ranks' passes go through units on this rank; then all ranks run the same number of micro-batches.
  [[nodiscard]] bool shadows() const noexcept {
    for (auto const& axis : grid_.shape().axes())
      if (axis.facts.equal_passes && axis.degree > 1) return true;
    return false;
  }
  // Whether all ranks along an axis have this tensor, or the same part of it.
  [[nodiscard]] static bool is_alike(parallel::mesh_shape::sized_axis const& axis, parameter_info const& info) {
    switch (axis.facts.parameters) {
      case axis_parameters::sharded:
        return !info.is_shard();
      case axis_parameters::distributed:
        return info.distributed != axis.kind;
      case axis_parameters::units:
        return false;
      case axis_parameters::replicated:
        break;
    }
    return true;
  }
  [[nodiscard]] static std::int64_t most_of(Comm& ranks, std::int64_t own) {
    ranks.all_reduce(tensor_view<std::int64_t>(&own, shape{1}), reduction::max{});
    return own;
  }
  // Collective. Connects units with their replicas, if there are any. Only a model with synchronised layers needs it.
  std::unique_ptr<replica_group<Env>> meet_replicas([[maybe_unused]] Parallel const& parallel) {
    if constexpr (!staged) {
      return nullptr;
    } else {
      auto& ranks = grid_.replicas();
      std::unique_ptr<replica_group<Env>> out;
      if constexpr (meets_replicas) {
        auto const strategy = parallel::data_axis_of(parallel);
        if (sums_in_a_tree(strategy)) {
          throw config_error(text("trireme::parallel::", strategy.name,
                                  ": .reproducible promises the same bits on any number of ranks, "
                                  "but the model normalises over the micro-batches of all of them; "
                                  "leave one of the two out"));
        }
        if (ranks.size() > 1)
          out = std::make_unique<parallel::communicator_replicas<Env, Comm>>(grid_.replicas_apart());
      } else if (ranks.size() > 1) {
        out = std::make_unique<detail::apart_replicas<Env>>(group_rank{ranks.rank(), ranks.size()});
      }
      if (out != nullptr) axes_.offer(*out);
      return out;
    }
  }
  template <class GivenModel>
  engine_type make_engine(GivenModel&& model) {
    if constexpr (!staged) {
      return engine_type(std::forward<GivenModel>(model));
    } else {
      if constexpr (requires { model.validate(); }) model.validate();
      if constexpr (has_stages) {
        std::optional<parallel::stage_assignment> assignment;
        stage_link<space>* link = nullptr;
        axes_.each([&](auto& axis) {
          if constexpr (requires { axis.assignment(model); }) {
            assignment = axis.assignment(model);
            link = &axis.link();
          }
        });
        if (assignment) return engine_type(model, groups(), *std::move(assignment), link);
      }
      return engine_type(model, groups());
    }
  }
  exchange_type make_exchange(Parallel const& parallel, Compression const& compression,
                              bucket_requirements const& requirements) {
    auto const strategy = parallel::data_axis_of(parallel);
    if constexpr (staged) {
      axes_.expect_no_tree(strategy);
      auto const& uses = engine_.uses();
      axes_.each([&](auto& axis) {
        if constexpr (requires { axis.mark(uses); }) axis.mark(uses);
      });
      std::vector<distributed_axis<Comm>> again;
      for (auto const& axis : grid_.shape().axes()) {
        if (axis.facts.replicates() || axis.degree == 1) continue;
        if (axis.facts.parameters != axis_parameters::sharded && axis.facts.parameters != axis_parameters::units)
          answer_first(axis);
        if (axis.facts.sums_the_rest()) again.push_back({axis.kind, grid_.along(axis.kind)});
      }
      return exchange_type(uses, grid_.replicas(), strategy, compression, engine_.unit_ends(), &world_, again,
                           requirements, grid_.template learners<Parallel>());
    } else {
      return exchange_type(engine_.parameters(), grid_.replicas(), strategy, compression, {}, &world_, {},
                           engine_.requirements(requirements), grid_.template learners<Parallel>());
    }
  }

  // What all ranks along an axis hold alike belongs to the first of them.
  void answer_first(parallel::mesh_shape::sized_axis const& axis) {
    if (grid_.coordinate(axis.kind).rank == 0) return;
    for (auto* const use : engine_.uses()) use->info.is_owner = use->info.is_owner && !is_alike(axis, use->info);
  }
  // Outputs in host memory, also if another stage has computed them.
  template <class T, class View>
  tensor<T> everywhere(View const& out) {
    if constexpr (has_stages) {
      if (auto* const stages = grid_.along(axes_type::stages); stages != nullptr)
        return from_one_stage<T>(out, *stages);
    }
    return on_host<T>(out);
  }
  template <class T, class View>
  static tensor<T> on_host(View const& out) {
    tensor<T> result(out.extents());
    if constexpr (std::is_same_v<typename Env::compute, T>) {
      ops::on<space>::download(result.span(), out);
    } else {
      tensor<T, space> converted(out.extents());
      ops::on<space>::copy(converted.view(), out);
      ops::on<space>::download(result.span(), converted.view());
    }
    return result;
  }
  // The stage with the last unit sends its outputs to the others; the stage with the first unit sends gradients of
  // inputs.
  template <class T, class View>
  static tensor<T> from_one_stage(View const& out, Comm& stages) {
    std::int64_t what[3] = {-1, 0, 0};  // the rank that has them, and their extents
    if (!out.empty()) {
      what[0] = stages.rank();
      what[1] = out.extent(0);
      what[2] = out.extent(1);
    }
    stages.all_reduce(tensor_view<std::int64_t>(what, shape{3}), reduction::max{});
    auto const root = static_cast<int>(what[0]);
    auto result = stages.rank() == root ? on_host<T>(out) : tensor<T>({what[1], what[2]});
    parallel::broadcast(stages, result.view(), root);
    return result;
  }

  Comm& world_;
  parallel::grid<Comm> grid_;
  axes_type axes_;
  std::unique_ptr<replica_group<Env>> replicas_;  // null if there are none
  [[no_unique_address]] with_buffers buffers_of_;
  engine_type engine_;
  exchange_type exchange_;
  detail::compute_watch watch_;
};

}  // namespace trireme
