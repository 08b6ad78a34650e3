#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/labels.hpp"
#include "trireme/contract/casting_model.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/contract/own_start.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/precision_state.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/arithmetic.hpp"
#include "trireme/core/arrays.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/model_files.hpp"
#include "trireme/data/read_problem.hpp"
#include "trireme/data/shares.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/ops/tf32.hpp"
#include "trireme/parallel/broadcast.hpp"
#include "trireme/parallel/patterns.hpp"
#include "trireme/parallel/same_on_all_ranks.hpp"
#include "trireme/train/checkpoint.hpp"
#include "trireme/train/detail/background_save.hpp"
#include "trireme/train/detail/copies.hpp"
#include "trireme/train/detail/left_out_samples.hpp"
#include "trireme/train/detail/run_checks.hpp"
#include "trireme/train/detail/run_directory.hpp"
#include "trireme/train/detail/run_shares.hpp"
#include "trireme/train/detail/slips.hpp"
#include "trireme/train/detail/together.hpp"
#include "trireme/train/detail/whole_tensors.hpp"
#include "trireme/train/environment.hpp"
#include "trireme/train/metrics.hpp"
#include "trireme/train/patience.hpp"
#include "trireme/train/report.hpp"
#include "trireme/train/slots.hpp"
#include "trireme/train/step.hpp"

namespace trireme {

/// Length, batch and checks of a training run. Numbers only; what changes types is a policy.
struct fit_options {
  std::int64_t steps = 0;          ///< where the schedule ends, counted from the first step ever taken
  std::int64_t batch = 32;         ///< samples per step, over all ranks
  std::int64_t micro_batches = 0;  ///< logical micro-batches of a batch; 0 = one per rank
  std::int64_t stop_after = -1;    ///< return after this many steps of the schedule; -1 = at its end
  std::int64_t check_every = 100;  ///< steps between comparisons of copies that several ranks keep; 0 = never
  std::int64_t workers = 0;        ///< reading threads of a rank; 0 = one, or cores / ranks if slow_to_read(data)
  std::int64_t bad_samples = 0;    ///< samples that may be left out because they cannot be read, over all ranks
  /// Keeps samples together that lie together in the data, for data that is larger than the memory.
  std::optional<data::blocks> locality{};
  data::shares shares{};  ///< of the samples, for ranks that are not equally fast
  friend bool operator==(fit_options const&, fit_options const&) = default;
};

/// The whole loop: micro-batches, exchange, vote, clipping, update, evaluation, checkpoints. Made by make_trainer.
///
/// The type does not depend on the order of the policies. The trainer uses only the public interface of the exchange,
/// as a loop of your own can.
///
/// Ranks    collective: every rank makes the same calls in the same order. Descriptions, seed, schedule and dataset are
///          the same on all of them; they are compared when the trainer is made, initialised, and at the start of
///          fit().
/// Numerics a step's loss is the mean over its samples on all ranks, whatever each rank's share; so are its gradients.
/// Threads  one owner; the communicator, and a model passed as an lvalue, must outlive it.
/// Errors   config_error for sizes that do not fit, and for arguments that differ between ranks; comm_error from the
///          communicator; numeric_error after ten steps in a row without a finite loss and gradients. An exception of a
///          dataset on one rank ends fit() or evaluate() on all of them: that rank throws it, the others throw an error
///          with its sentence and rank; the communicator remains usable. A step that throws has not changed the state.
///          With fit_options::bad_samples up to so many different samples that cannot be read, on all ranks, are
///          replaced by others as by data::loader, and one more is an error on all of them.
template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
class basic_trainer {
 public:
  using env = environment_of<Model, Precision, typename space_of<Comm>::type>;
  using space = typename env::space;
  using master = typename env::master;
  static constexpr bool staged = staged_model<Model>;
  static constexpr bool predicts = staged || has_model_predict<Model>;
  using output_tensor = typename outputs_of<Model, env>::type;
  using input_gradient_tensor = typename input_gradients_of<Model, env>::type;
  /// The number type of a network's samples, double or float; void for a plain model, which may use any type.
  using sample_type = std::conditional_t<staged, sample_number<env>, void>;

  /// Makes the trainer from the policies that its type names, in any order, like make_trainer.
  template <class... Policies>
  requires(sizeof...(Policies) > 2 && !(std::is_void_v<detail::kind_of_t<std::remove_cvref_t<Policies>>> ||
                                        ...)) explicit basic_trainer(Policies&&... policies)
      : basic_trainer(checked<Policies...>(), detail::pick<slot::model, void>(std::forward<Policies>(policies)...),
                      detail::pick<slot::optimizer, void>(std::forward<Policies>(policies)...),
                      detail::pick<slot::communicator, void>(policies...),
                      detail::pick<slot::parallel, parallel::data>(std::forward<Policies>(policies)...),
                      detail::pick<slot::precision, precision::fp32>(std::forward<Policies>(policies)...),
                      detail::pick<slot::compression, compression::none>(std::forward<Policies>(policies)...)) {}
  ~basic_trainer();
  basic_trainer(basic_trainer const&) = delete;
  basic_trainer& operator=(basic_trainer const&) = delete;

  /// Trains on a dataset, from the trainer's current step (0, or that of a loaded checkpoint) to the end of the
  /// schedule.
  ///
  /// Errors   config_error if there is no step to take. (One exception: a complete run that is loaded again may be at
  ///          the end. It takes no step, and its losses are NaN.) config_error for another number or form of samples
  ///          than in the epoch that has begun; see start_epoch().
  template <dataset Data>
  fit_report fit(Data const& data, fit_options const& options) {
    auto const labels = labelled();
    detail::expect_same_schedule(world_, data, options, steps());
    auto const last = options.stop_after < 0 ? options.steps : std::min(options.steps, options.stop_after);
    detail::expect_steps(options, last, steps(), loaded_at_);
    auto form = detail::form_of(data, options.locality);
    detail::expect_same_data(run_.clock.data, form, run_.clock.position);
    run_.clock.data = std::move(form);
    data::detail::merge_model_files(model_files_, data::model_files_of(data));
    auto const own = run_.model.sample_coordinate();
    detail::expect_shares(options.shares, facts_for_shares(), own.size);
    detail::run_shares division(options.shares, run_.clock.shares, own);
    std::optional<data::loader<Data>> loader;
    begin_loader(loader, data, options);
    auto const none = std::numeric_limits<double>::quiet_NaN();
    fit_report report{.first_step = steps(), .first_loss = none, .last_loss = none, .last_norm = none};
    auto const start = detail::step_clock::now();
    stopped_ = false;
    run_.model.measure(division.measures());
    detail::left_out_samples left_out(options.bad_samples);
    while (steps() < last && !stopped_) {
      std::exception_ptr failure;  // of this rank's data: the step reports it to the other ranks
      auto const before = loader->waited();
      auto const& batch = next_of(*loader, failure);
      auto const waited = loader->waited() - before;
      left_out.add(world_, loader->left_out(), failure != nullptr);
      auto done = run_step({batch.micro_batches, loader->parts(), batch.parts, batch.samples, failure,
                            [&loader] { return loader->ahead(); }});
      done.waited = waited;
      done.left_out = left_out.count();
      run_.clock.position = loader->position();
      report.add(done);
      if (division.measures()) {
        std::int64_t computed = 0;
        for (auto const& each : batch.micro_batches) computed += each.count();
        if (division.count(world_, steps(), computed, run_.model.computed_seconds(), options.batch)) {
          begin_loader(loader, data, options);
          left_out.begin_loader();
        }
      }
      if (options.check_every > 0 && steps() % options.check_every == 0) expect_equal_copies();
      tell(step_calls_, done);
    }
    wants_stop_ = false;
    run_.model.synchronise_buffers();
    finish_save();
    report.stopped = stopped_;
    report.seconds = detail::seconds_since(start);
    report.slowest_read = loader->slowest();
    return report;
  }

  /// The next fit() begins an epoch, on any dataset; the rest of the current epoch is skipped. Every rank calls it.
  void start_epoch() noexcept {
    if (run_.clock.position.position != 0) run_.clock.position = run_.clock.position.next_epoch();
  }

  /// An argument that is not a dataset gives one error.
  template <class Data>
  fit_report fit(Data const&, fit_options const&) {
    static_cast<void>(sizeof(detail::check_data<detail::slip_of_data<Data>()>));
    return {};
  }

  /// One step on samples of your own: each rank passes its own part, of any size; ranks of one replica of the model
  /// pass the same. If no rank has a sample, no step is taken: the report has samples = 0, nothing has changed, and
  /// steps() and schedules stay where they were; under parallel::federated it counts as a step of the round.
  step_report step(samples const& batch) { return step(std::span(&batch, 1)); }
  /// The same with several micro-batches, one after the other, of any sizes; with parallel::zero<2> and zero<3> and
  /// with .reproducible every rank passes the same number. Empty ones are skipped.
  step_report step(std::span<samples const> micro_batches);
  /// The same from arrays of your own, of any form that array_of_samples accepts; arrays that are not contiguous are
  /// copied.
  template <class Features, class Targets>
  step_report step(Features const& features, Targets const& targets) {
    auto const x = detail::dense_samples<sample_type>(features);
    auto const y = detail::dense_samples<sample_type>(targets);
    return step(make_samples(x.view(), y.view()));
  }

  /// The mean loss over a whole dataset, the same on every rank; does not change the trainer.
  template <dataset Data>
  [[nodiscard]] double evaluate(Data const& data, std::int64_t batch = 8) {
    auto const labels = labelled();
    run_.model.synchronise_buffers();
    std::exception_ptr failure;
    auto const sum = run_.model.evaluate(data, batch, failure);
    return run_.model.mean(sum, failure);
  }
  template <class Data>
  [[nodiscard]] double evaluate(Data const&, std::int64_t = 8) {
    static_cast<void>(sizeof(detail::check_data<detail::slip_of_data<Data>()>));
    return 0;
  }

  /// Evaluates metrics over a whole dataset, whose samples are predicted `batch` at a time. Returns copies of them with
  /// the counts of all ranks, the same on every rank. Does not change the trainer.
  /// Errors   what a metric throws, on every rank.
  /// @example auto const [seen] = trainer.evaluate(data, 64, metric::confusion(10));  // seen.accuracy(), seen.f1(3)
  template <dataset Data, metric_policy... Metrics>
  [[nodiscard]] std::tuple<Metrics...> evaluate(Data const& data, std::int64_t batch,
                                                Metrics... metrics) requires(predicts && sizeof...(Metrics) > 0) {
    auto const labels = labelled();
    run_.model.synchronise_buffers();
    std::exception_ptr failure;  // of a rank whose samples cannot be read or are refused: the others are in collectives
    run_.model.for_each_prediction(data, batch, failure, [&](auto const& outputs, auto const& targets) {
      if (failure) return;
      try {
        (metrics.add(outputs, targets), ...);
      } catch (std::exception const&) {
        failure = std::current_exception();
      }
    });
    detail::throw_together(world_, failure);
    (world_.all_reduce(metrics.counts(), reduction::sum{}), ...);
    return {std::move(metrics)...};
  }

  /// The model's outputs for some inputs (n, outputs): float, or double in precision::fp64. A GPT returns the logits of
  /// the token that follows each sample. Only this rank computes, unless the model is distributed: then the ranks that
  /// have the other parts call it too, with the same inputs (if parameters are sharded, all ranks).
  template <class Features>
  [[nodiscard]] output_tensor predict(Features const& features) requires(predicts &&
                                                                         !std::is_same_v<Features, samples>) {
    auto const x = detail::dense_samples<sample_type>(features);
    return run_.model.predict(make_samples(x.view(), tensor_view<float const>{}));
  }
  [[nodiscard]] output_tensor predict(samples const& batch) requires predicts { return run_.model.predict(batch); }
  /// The outputs of positions of many sequences, in one pass: what serve::engine and generate() compute with.
  /// @see     staged_engine::predict_rows, paged_rows
  [[nodiscard]] tensor<float> predict_rows(samples const& batch, paged_rows const& rows) requires staged {
    return run_.model.predict_rows(batch, rows);
  }

  /// The gradient of the loss by the inputs of some samples, in the inputs' shape: for attribution, or to train what
  /// produced these inputs. The loss is that of evaluate(): the mean over the rows of these samples, without dropout,
  /// with the running statistics of nn::batch_norm. It does not change any state of training. The ranks that call it,
  /// and their samples, are as for predict().
  ///
  /// Numerics computed for the sum over the samples and divided at the end, so that in precision::fp16 numbers do not
  ///          underflow if there are many samples.
  /// Errors   config_error if there are no samples. The compiler rejects inputs that are tokens, units written by hand
  ///          without input_gradient(), and plain models without it.
  template <class Samples>
  requires std::is_same_v<Samples, samples>
  [[nodiscard]] input_gradient_tensor input_gradient(Samples const& batch) {
    detail::expect_input_gradient<env, Model>();
    return run_.model.input_gradient(batch);
  }
  template <class Features, class Targets>
  [[nodiscard]] input_gradient_tensor input_gradient(Features const& features, Targets const& targets) {
    auto const x = detail::dense_samples<sample_type>(features);
    auto const y = detail::dense_samples<sample_type>(targets);
    return input_gradient(make_samples(x.view(), y.view()));
  }

  /// Collective. Starts over with the parameters and random numbers of another seed (a plain model, and one with given
  /// initial parameters, keeps them). Without this call the seed is 0.
  void initialise(std::uint64_t seed);

  /// Collective. Copies the first rank's parameters to all ranks, after they were changed by hand.
  ///
  /// If a mesh distributes the model, each part is copied from its first replica, and what several parts hold alike
  /// from the first of them. Under parallel::data moments are copied with the parameters. Where parameters are sharded
  /// there are no copies, and nothing is sent.
  void broadcast();

  /// Collective. Makes the model's buffers the same on all ranks, as fit(), evaluate(), save() and state_hash() do by
  /// themselves: call it before predict() after steps of your own.
  void synchronise_buffers() {
    auto const labels = labelled();
    run_.model.synchronise_buffers();
  }
  /// Collective over `everyone`. Copies the parameters of its rank `root`; see broadcast_parameters().
  template <class Ranks>
  void synchronise_buffers(Ranks& everyone, int root) {
    run_.model.visit_state(state_scope::kept,
                           [&](auto const&, auto const&, auto values) { parallel::broadcast(everyone, values, root); });
  }

  /// Calls f(step_report const&) on every rank after each step.
  void on_step(std::function<void(step_report const&)> f) { step_calls_.push_back(std::move(f)); }
  /// Calls f(data::read_problem const&) in fit(), on the rank that meets it: when a sample has been left out, and again
  /// and again while a step waits for a sample whose reading takes 10 seconds and more.
  void on_read_problem(std::function<void(data::read_problem const&)> f) { read_calls_.push_back(std::move(f)); }
  /// Ends fit() after the current step if any rank calls it: all ranks return together. Not safe in a signal handler,
  /// which should set a flag that on_step reads.
  void request_stop() noexcept { wants_stop_ = true; }

  /// Records phases and exchanges in a timeline from now on; it must outlive the trainer.
  void record(observe::timeline& timeline) {
    timeline_ = &timeline;
    exchange().record(timeline);
  }

  /// Steps taken, skipped ones included.
  [[nodiscard]] std::int64_t steps() const noexcept { return run_.clock.step; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return run_.clock.seed; }
  /// The ranks' shares of a batch, as the last fit() gave or measured them; empty: equal ones. Checkpoints keep them.
  [[nodiscard]] std::vector<std::int64_t> const& shares() const noexcept { return run_.clock.shares; }
  [[nodiscard]] Comm& world() const noexcept { return world_; }
  [[nodiscard]] parallel::grid<Comm> const& grid() const noexcept { return run_.model.grid(); }
  [[nodiscard]] auto& exchange() noexcept { return run_.model.exchange(); }
  [[nodiscard]] auto const& exchange() const noexcept { return run_.model.exchange(); }
  [[nodiscard]] auto& engine() noexcept { return run_.model.engine(); }
  [[nodiscard]] Optimizer const& optimizer() const noexcept { return optimizer_; }
  /// Bytes    of the optimizer's state for this rank's parameters, without master values.
  [[nodiscard]] std::int64_t moment_bytes() const noexcept { return run_.moments.bytes(); }
  /// The model's description (a plain model has none).
  [[nodiscard]] Model const& described_model() const noexcept requires staged { return described_; }
  [[nodiscard]] Parallel const& parallel_policy() const noexcept { return parallel_; }
  [[nodiscard]] Precision const& precision_policy() const noexcept { return precision_; }
  [[nodiscard]] Compression const& compression_policy() const noexcept { return compression_; }

  /// Collective. A hash of all state: master values, moments, residuals, step, position in the data. Each element
  /// counts once, so the hash does not depend on which rank owns it.
  ///
  /// Errors   numeric_error that names the tensor if ranks that keep the same part of it have different numbers.
  [[nodiscard]] std::uint64_t state_hash();

  /// Collective. Publishes a checkpoint in `directory` and keeps older ones as `keep` says; see checkpoint.hpp. A
  /// directory belongs to one run: that of another run is refused (prepare_saves() checks it at the start).
  ///
  /// Errors   also comm_error, if a rank does not finish before the deadline of `patience`; numeric_error as
  ///          state_hash().
  void save(std::string const& directory, checkpoint::patience const& patience = {},
            checkpoint::keeping const& keep = {}, formats::file_system& files = formats::real_files());
  void save(std::string const& directory, formats::file_system& files) { save(directory, {}, {}, files); }

  /// Collective. For the start of a run that will save in `directory`: throws now what the first save() would throw, if
  /// another run's checkpoints are there, or later ones of this run, or nothing can be written there. Creates the
  /// directory.
  /// @see checkpoint::resume_or_start
  void prepare_saves(std::string const& directory, checkpoint::patience const& patience = {},
                     formats::file_system& files = formats::real_files()) {
    finish_save();
    auto const labels = labelled();
    files_.prepare(world_, directory, progress_of_run(), patience, files);
  }

  /// Collective. save() while training continues: this call copies the state, and a thread on each rank writes it. The
  /// checkpoint is published after the step in which the last rank has finished; an earlier one still being written is
  /// published first. fit() does not return before that; with steps of your own, call finish_save() at the end, or the
  /// checkpoint is discarded.
  ///
  /// Bytes    a copy of this rank's part of the state, whose memory is kept for the next save.
  /// Errors   of the device are passed to the on_save() callbacks on every rank; if there is none they are thrown, here
  ///          or by fit(), step() and finish_save(). Earlier checkpoints stay whole in any case. Others as save().
  void save_in_background(std::string const& directory, checkpoint::patience const& patience = {},
                          checkpoint::keeping const& keep = {}, formats::file_system& files = formats::real_files());
  /// Collective. Waits for the checkpoint that is being written in the background, if there is one.
  void finish_save();
  /// Calls f(save_report const&) on every rank when a checkpoint written in the background is published or has failed.
  /// Training continues after a failure.
  void on_save(std::function<void(save_report const&)> f) { save_calls_.push_back(std::move(f)); }

  /// Collective. Restores all state from the newest whole checkpoint in `directory` (or from the one that the path
  /// names, checkpoint::best_in(directory)->path, say) and continues its run. Any number of ranks and any strategy may
  /// have written it (local steps need the same number of ranks).
  ///
  /// Errors   as save().
  ///
  /// @returns the checkpoint that was loaded, and which newer ones are damaged.
  checkpoint::loaded load(std::string const& directory, checkpoint::patience const& patience = {},
                          formats::file_system& files = formats::real_files());
  checkpoint::loaded load(std::string const& directory, formats::file_system& files) {
    return load(directory, {}, files);
  }

  /// The files that came with the model if load_pretrained() has read it, on the first rank: config.json, the
  /// tokenizer's and so on; and those of the data of fit() (data::has_model_files). Checkpoints keep them, and
  /// save_pretrained() writes them again. initialise() drops them.
  [[nodiscard]] std::vector<formats::model_file> const& model_files() const noexcept { return model_files_; }
  void keep_model_files(std::vector<formats::model_file> files) { model_files_ = std::move(files); }

  /// Calls f(name, info, first, view) for every piece of state that this rank owns or, if `replicas`, for every piece
  /// that it keeps: where state is replicated, each rank keeps all of it. A piece is elements from `first` on of the
  /// part of a tensor that the parameter_info describes. If each rank has its own numbers, the name contains the rank.
  /// f must not write here; use change_parameters() to change parameters.
  template <class F>
  void for_each_state(F&& f, bool replicas = false) {
    visit_state(replicas ? state_scope::kept : state_scope::owned, [&](std::string const& name,
                                                                       state_location const& place, auto view) {
      using element = typename decltype(view)::value_type;
      f(name_of_shard(name, place, world_.rank()), place.info, place.first, tensor_view<element const, space>(view));
    });
  }

  /// Collective. Calls f(std::string const& name, shape const& extents, std::span<master const> values) with the whole
  /// master value of each parameter, on every rank in the same order, however it is distributed; master is float, and
  /// double in precision::fp64. If ranks have parameters of their own, the first rank's are used.
  template <class F>
  void for_each_parameter(F&& f) {
    detail::for_each_whole_tensor<master>(exchange(), f);
  }

  /// Collective. Changes parameters from outside: weights from elsewhere, an average over several runs. Calls
  /// f(std::string const& name, shape const& extents, std::span<master> values) with the whole master value of each, as
  /// for_each_parameter() does; f writes the values. Afterwards everything that layers read on any rank has the new
  /// values, and so has what a strategy starts from (the outer values of parallel::diloco). Moments, residuals and
  /// buffers do not change.
  ///
  /// A function of four arguments, f(std::string const& name, parameter_info const& info, std::int64_t first,
  /// tensor_view<master, space> values), gets the pieces that this rank keeps instead, as in for_each_state(): nothing
  /// is sent, and it works for models larger than a rank's memory. for_each_run() maps a piece to the whole tensor.
  ///
  /// Ranks    f writes the same numbers to the same elements on every rank that has them, unless ranks have parameters
  ///          of their own, as with parallel::diloco, and f gets pieces. f may call collectives, and throws on all
  ///          ranks or on none.
  /// Errors   numeric_error that names the tensor if ranks that keep the same part of it have different numbers
  ///          afterwards; broadcast() then copies those of the first rank to all.
  /// @example trainer.change_parameters([](std::string const& name, shape const&, std::span<float> values) {
  ///            if (name == "layers.0.bias") std::ranges::fill(values, 0.0F);
  ///          });
  template <class F>
  void change_parameters(F&& f) {
    if constexpr (std::is_invocable_v<F&, std::string const&, shape const&, std::span<master>>) {
      std::vector<state_shard> own;
      shard_collector const collect{world_.rank(), own};
      exchange().visit_values(state_scope::kept, collect);
      for_each_parameter([&](std::string const& name, shape const& extents, std::span<master const> values) {
        std::vector<master> whole(values.begin(), values.end());
        f(name, extents, std::span<master>(whole));
        detail::upload_parts<master>(own, text(value_prefix, name), whole);
      });
      exchange().change_values([](auto const&, auto const&, auto) {});  // updates everything derived from them
    } else {
      exchange().change_values([&](std::string const& name, state_location const& place, auto view) {
        f(name.substr(value_prefix.size()), place.info, place.first, view);
      });
    }
    expect_equal_copies();
  }

 private:
  using numbers = typename env::precision;
  using combination = detail::combination<Model, Comm, Parallel, Precision, Compression>;
  using exchange_type = typename placed_model<env, Model, Comm, Parallel, Compression>::exchange_type;
  static constexpr std::string_view value_prefix = "value/";
  static constexpr std::int64_t written = std::int64_t{1} << 21;  // a wish; see step_input::gives_up

  struct in_order {};
  template <class... Policies>
  static in_order checked() {
    using sorted = detail::resolve<std::remove_cvref_t<Policies>...>;
    static_assert(
        std::is_same_v<Model, typename sorted::model> && std::is_same_v<Optimizer, typename sorted::optimizer> &&
            std::is_same_v<Comm, typename sorted::comm> && std::is_same_v<Parallel, typename sorted::parallel> &&
            std::is_same_v<Precision, typename sorted::precision> &&
            std::is_same_v<Compression, typename sorted::compression>,
        "trireme::trainer: the arguments are not the policies of trainer_for<...>: use the same types in both");
    static_cast<void>(sizeof(detail::check_lent_world<detail::slip_of_world<Policies...>()>));
    check_environment();
    expect_exact_arithmetic();
    return {};
  }
  basic_trainer(in_order, Model model, Optimizer optimizer, Comm& world, Parallel const& parallel,
                Precision const& precision, Compression const& compression) requires(staged_model<Model>);
  template <class GivenModel>
  basic_trainer(in_order, GivenModel&& model, Optimizer optimizer, Comm& world, Parallel const& parallel,
                Precision const& precision, Compression const& compression) requires(!staged_model<Model>)
      : basic_trainer(std::in_place, std::forward<GivenModel>(model), std::move(optimizer), world, parallel, precision,
                      compression) {}
  template <class GivenModel>
  basic_trainer(std::in_place_t, GivenModel&& model, Optimizer optimizer, Comm& world, Parallel const& parallel,
                Precision const& precision, Compression const& compression)
      : described_(kept(model)),
        parallel_(parallel),
        precision_(precision),
        compression_(compression),
        optimizer_(std::move(optimizer)),
        model_text_(describe(model)),
        compression_text_(describe(compression)),
        owner_(comm::label_owner(world, comm::call_label::owner_kind::trainer)),
        making_(std::in_place, world, comm::call_label{owner_}),
        world_(agreed(world)),
        run_(std::forward<GivenModel>(model), world, parallel, numbers{precision}, compression, optimizer_) {
    expect_patterns();
    initialise(0);
    making_.reset();
  }

  // Until the end of the scope, calls on the world carry whose they are: those of two trainers on one world are not
  // taken for each other, nor for the program's.
  [[nodiscard]] comm::labelled labelled() const noexcept { return {world_, comm::call_label{owner_}}; }
  // Callbacks are the program's.
  template <class Calls, class Report>
  void tell(Calls const& calls, Report const& report) {
    comm::labelled const none(world_, {});
    for (auto const& call : calls) call(report);
  }

  data::loader_options loader_options(fit_options const& options, bool slow_to_read) const {
    auto const micro = options.micro_batches == 0 ? run_.model.sample_coordinate().size : options.micro_batches;
    auto const usual = data::detail::usual_workers(slow_to_read, world_.size());
    return {.batch = options.batch,
            .micro_batches = micro,
            .seed = seed(),
            .workers = options.workers > 0 ? options.workers : usual,
            .bad_samples = options.bad_samples,
            .locality = options.locality,
            .weights = run_.clock.shares};
  }
  [[nodiscard]] detail::shares_facts facts_for_shares() const {
    bool alone = true;
    for (auto const& axis : grid().shape().axes()) alone = alone && (axis.facts.replicates() || axis.degree == 1);
    return {.supported = detail::rules::shares_need_replicas::template holds<combination> && alone,
            .in_a_tree = sums_in_a_tree(parallel::data_axis_of(parallel_)),
            .on_a_device = !std::is_same_v<space, host>,
            .synchronised = combination::synchronised};
  }
  // At the clock's position, with the shares of now.
  template <class Data>
  void begin_loader(std::optional<data::loader<Data>>& loader, Data const& data, fit_options const& options) {
    auto const own = run_.model.sample_coordinate();
    loader.reset();
    loader.emplace(data, loader_options(options, slow_to_read(data)), own.rank, own.size,
                   run_.model.memory_of_batches());
    loader->on_problem([this](data::read_problem const& problem) {
      for (auto const& call : read_calls_) call(problem);
    });
    loader->seek(run_.clock.position);
  }

  template <class Loader>
  static data::batch const& next_of(Loader& loader, std::exception_ptr& failure) {
    try {
      return loader.next();
    } catch (...) {
      failure = std::current_exception();
      return loader.zeros();
    }
  }

  // Compares what must be the same on all ranks before any other collective.
  [[nodiscard]] Comm& agreed(Comm& world) const;
  void expect_equal_copies();
  // Collective. A pattern that matches nothing would have no effect, and no error.
  void expect_patterns() {
    std::vector<std::string> names;
    for (auto const& entry : exchange().plan().entries()) names.push_back(entry.info.name);
    if constexpr (staged) parallel::expect_patterns(world_, described_, names);
    parallel::expect_patterns(world_, optimizer_, names);
    parallel::expect_patterns(world_, compression_, names);
  }

  // Collective.
  void start_parameters(std::uint64_t seed);

  step_report run_step(step_input const& input);

  // A disk error is passed to on_save() if there is a callback; a lost rank is always an error.
  template <class Body>
  void attempt_save(save_report& report, std::string_view phase, Body&& body) {
    try {
      detail::timed(timeline_, phase, body);
    } catch (comm_error const&) {
      throw;
    } catch (error const& problem) {
      if (save_calls_.empty()) throw;
      report.failure = problem.what();
    }
  }
  void notify(save_report const& report) { tell(save_calls_, report); }

  // Collective.
  checkpoint::run_description description(std::span<state_shard const> owned);
  // The name without the numbers: a resumed run may change rates and schedules.
  [[nodiscard]] std::string optimizer_name() const {
    auto const full = describe(optimizer_);
    return full.substr(0, full.find('{'));
  }
  // All state, to be read or written.
  [[nodiscard]] std::vector<state_shard> shards(state_scope scope) {
    std::vector<state_shard> all;
    visit_state(scope, shard_collector{world_.rank(), all});
    return all;
  }
  // Of all slots' run states.
  template <class F>
  void visit_state(state_scope scope, F&& f) {
    exchange().visit_state(scope, f);
    run_.model.visit_state(scope, f);
    run_.moments.visit_state(scope, f);
  }
  template <class F>
  void visit_numbers(F&& f) {
    exchange().visit_numbers(f);
    if constexpr (requires { run_.precision.visit_numbers(f); }) run_.precision.visit_numbers(f);
  }
  checkpoint::progress progress_of_run();

  using kept_model = std::conditional_t<staged, std::remove_cvref_t<Model>, std::nullptr_t>;
  template <class GivenModel>
  static kept_model kept([[maybe_unused]] GivenModel const& model) {
    if constexpr (staged) {
      return model;
    } else {
      return nullptr;
    }
  }

  kept_model described_;
  Parallel parallel_;
  Precision precision_;
  Compression compression_;
  Optimizer optimizer_;
  std::string model_text_;
  std::string compression_text_;
  std::uint16_t owner_;                   // whose calls of this trainer are
  std::optional<comm::labelled> making_;  // while it is made
  Comm& world_;
  run_state<env, Model, Optimizer, Comm, Parallel, Compression> run_;
  checkpoint::detail::run_directory<Comm> files_;
  checkpoint::detail::held_state held_;  // the state being written in the background
  std::unique_ptr<checkpoint::detail::pending_save> background_;
  std::vector<std::function<void(step_report const&)>> step_calls_;
  std::vector<std::function<void(save_report const&)>> save_calls_;
  std::vector<std::function<void(data::read_problem const&)>> read_calls_;
  detail::copy_holders holders_;
  std::int64_t loaded_at_ = -1;  // the step of the last loaded checkpoint
  std::vector<formats::model_file> model_files_;
  observe::timeline* timeline_ = nullptr;
  bool has_started_ = false;
  bool wants_stop_ = false;
  bool stopped_ = false;
};

// Bodies are outside the class where the library trireme::compiled may contain them: a member defined in its class is
// inline, and g++ would instantiate it in every program again.

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::basic_trainer(
    in_order, Model model, Optimizer optimizer, Comm& world, Parallel const& parallel, Precision const& precision,
    Compression const& compression) requires(staged_model<Model>)
    : basic_trainer(std::in_place, std::move(model), std::move(optimizer), world, parallel, precision, compression) {}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::~basic_trainer() = default;

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
step_report basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::step(
    std::span<samples const> micro_batches) {
  std::vector<samples> filled;
  std::vector<std::int64_t> places;
  std::int64_t own = 0;
  for (std::size_t m = 0; m < micro_batches.size(); ++m) {
    if (micro_batches[m].count() == 0) continue;
    own += micro_batches[m].count();
    filled.push_back(micro_batches[m]);
    places.push_back(static_cast<std::int64_t>(m));
  }
  auto const labels = labelled();
  auto const total = run_.model.samples_of_all(own);
  if (total == 0) {
    step_report const none{.step = steps(), .loss = std::numeric_limits<double>::quiet_NaN()};
    if (exchange().pass_step()) ++run_.clock.step;
    return none;
  }
  auto const done = run_step({filled, {0, static_cast<std::int64_t>(micro_batches.size())}, places, total});
  tell(step_calls_, done);
  return done;
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
void basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::initialise(std::uint64_t seed) {
  auto const labels = labelled();
  parallel::rank_value const items[] = {{"the seed", text(seed)}};
  parallel::expect_same_on_all_ranks(world_, "trireme::trainer", world_.rank(), items,
                                     "call initialise() with the same one on every rank");
  finish_save();
  run_.clock = {};
  run_.clock.seed = seed;
  run_.precision = precision_state<numbers>(numbers{precision_});
  loaded_at_ = -1;
  files_.run() = {};
  model_files_.clear();
  run_.moments.clear();
  exchange().forget_compression();
  start_parameters(seed);
  exchange().verify_replicas();
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
void basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::start_parameters(
    [[maybe_unused]] std::uint64_t seed) {
  if constexpr (has_own_start<Model>) {
    if (std::exchange(has_started_, true)) return;
    parallel::rank_value const items[] = {{"what the parameters begin with", text(described_.start_hash())}};
    parallel::expect_same_on_all_ranks(world_, "trireme::trainer", world_.rank(), items,
                                       "give the models of all ranks the same numbers");
    change_parameters([&](std::string const&, parameter_info const& info, std::int64_t first, auto view) {
      std::vector<master> values(static_cast<std::size_t>(view.size()));
      described_.start(info, first, std::span(values));
      ops::on<space>::upload(view, std::span<master const>(values));
    });
  } else if constexpr (staged) {
    exchange().initialise(seed);
  }
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
void basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::broadcast() {
  auto const labels = labelled();
  if constexpr (parallel::data_axis_t<Parallel>::optimizer_state == distribution::replicate) {
    run_.moments.visit_state(state_scope::kept, [&](std::string const&, state_location const&, auto view) {
      parallel::broadcast(exchange().world(), view, 0);
    });
  }
  run_.model.broadcast();
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
std::uint64_t basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::state_hash() {
  auto const labels = labelled();
  expect_equal_copies();
  std::uint64_t sum = 0;
  for (auto const& each : shards(state_scope::owned)) {
    for_each_run(each.box, each.first, each.size(), [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
      sum += each.hash(in_part - each.first, n, hash_name(each.name), in_whole);
    });
  }
  world_.all_reduce(tensor_view<std::uint64_t>(&sum, shape{1}), reduction::sum{});
  auto const progress = progress_of_run();
  auto const add = [&](std::uint64_t number) { sum = mix(sum ^ mix(number)); };
  for (auto const number : {static_cast<std::uint64_t>(progress.step), static_cast<std::uint64_t>(progress.updates),
                            progress.seed, progress.epoch, static_cast<std::uint64_t>(progress.position)}) {
    add(number);
  }
  visit_numbers([&](std::string_view, auto& number) { add(std::bit_cast<std::uint64_t>(number)); });
  return sum;
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
void basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::save(std::string const& directory,
                                                                                   checkpoint::patience const& patience,
                                                                                   checkpoint::keeping const& keep,
                                                                                   formats::file_system& files) {
  expect_valid(patience);
  finish_save();
  auto const labels = labelled();
  expect_equal_copies();  // spoiled copies are not saved
  auto const owned = shards(state_scope::owned);
  files_.save(world_, directory, description(owned), progress_of_run(), owned, patience, keep, files, model_files_);
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
void basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::save_in_background(
    std::string const& directory, checkpoint::patience const& patience, checkpoint::keeping const& keep,
    formats::file_system& files) {
  expect_valid(patience);
  finish_save();
  auto const labels = labelled();
  expect_equal_copies();
  save_report begun{steps(), 0, {}};
  auto const owned = shards(state_scope::owned);
  attempt_save(begun, "copy for a checkpoint", [&] {
    background_.reset(new checkpoint::detail::background_save<Comm>(
        files_.for_disks(world_, patience.deadline), directory, files_.run(), description(owned), progress_of_run(),
        patience, keep, files, held_, owned, model_files_));
  });
  if (background_ == nullptr) notify(begun);
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
void basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::finish_save() {
  if (background_ == nullptr) return;
  auto const saving = std::move(background_);
  save_report done{saving->step(), 0, {}};
  attempt_save(done, "publish a checkpoint", [&] { saving->publish(); });
  done.seconds = saving->seconds();
  notify(done);
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
checkpoint::loaded basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::load(
    std::string const& directory, checkpoint::patience const& patience, formats::file_system& files) {
  expect_valid(patience);
  finish_save();
  auto const labels = labelled();
  auto const owned = shards(state_scope::owned);
  auto found = files_.load(world_, directory, description(owned), shards(state_scope::kept), owned, patience, files);
  auto const& progress = found.at;
  run_.clock = {.seed = progress.seed,
                .step = progress.step,
                .updates = progress.updates,
                .position = {progress.epoch, progress.position},
                .shares = progress.list("shares"),
                .data = progress.data};
  visit_numbers([&](std::string_view name, auto& number) { progress.read(found.path, name, number); });
  loaded_at_ = progress.step;
  if (!found.model_files.empty()) model_files_ = found.model_files;
  exchange().refresh_parameters();
  return found;
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
Comm& basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::agreed(Comm& world) const {
  parallel::rank_value const items[] = {{"the model", model_text_},
                                        {"the learning rate", text(optimizer_.rate_at(0))},
                                        {"the optimizer", describe(optimizer_)},
                                        {"the parallel strategy", describe(parallel_)},
                                        {"the precision", describe(precision_)},
                                        {"the compressor", compression_text_},
                                        parallel::arithmetic_of_rank()};
  parallel::expect_same_on_all_ranks(world, "trireme::trainer", world.rank(), items,
                                     "make the trainer of the same descriptions on every rank");
  if constexpr (staged) expect_valid(described_);
  expect_valid(optimizer_);
  expect_valid(parallel_);
  expect_valid(precision_);
  if constexpr (may_round_to_tf32<precision_state<Precision>>) {
    if (precision_state<Precision>(precision_).tf32_products())
      detail::expect_tf32_products(describe(precision_), ops::has_tf32_products<typename env::space>, staged);
  }
  expect_valid(compression_);
  trireme::expect_momentum(compression_,
                           parallel::momentum_of_sums(parallel::data_axis_of(parallel_), momentum_of(optimizer_)));
  return world;
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
void basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::expect_equal_copies() {
  auto const labels = labelled();
  detail::timed(timeline_, "compare copies", [&] {
    run_.model.synchronise_buffers();
    detail::kept_copies copies;
    copies.add(shards(state_scope::kept));
    if constexpr (parallel::data_axis_t<Parallel>::parameters == distribution::replicate &&
                  !exchange_type::replicas_differ) {
      for (auto const& entry : exchange().plan().entries())
        copies.add(state_shard(entry.info.name, entry.info, 0, exchange().parameter_values(entry)));
    }
    copies.expect_equal(world_, holders_);
  });
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
step_report basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::run_step(step_input const& input) {
  // Two counts in one wish: of ranks that want to stop, and of those whose checkpoint is written.
  std::int64_t requirements = (wants_stop_ ? 1 : 0) + (background_ != nullptr && background_->done() ? written : 0);
  auto const done = [&] {
    try {
      return take_step(run_, optimizer_, input, requirements, timeline_);
    } catch (...) {
      exchange().abandon();
      throw;
    }
  }();
  stopped_ = requirements % written > 0;
  if (requirements / written == world_.size()) finish_save();
  return done;
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
checkpoint::run_description basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::description(
    std::span<state_shard const> owned) {
  return {.model = model_text_,
          .optimizer = optimizer_name(),
          .precision = describe(precision_),
          .compression = compression_text_,
          .of_ranks = checkpoint::detail::numbers_of_ranks(world_, owned),
          .learners = exchange().learners()};
}

template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
checkpoint::progress basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>::progress_of_run() {
  auto const& clock = run_.clock;
  checkpoint::progress now{clock.step, clock.updates, clock.seed, clock.position.epoch, clock.position.position};
  now.data = clock.data;
  now.write_list("shares", clock.shares);
  visit_numbers([&](std::string_view name, auto& number) { now.write(name, number); });
  return now;
}

}  // namespace trireme
