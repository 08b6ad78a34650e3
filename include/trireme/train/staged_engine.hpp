#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/contract/precision_state.hpp"
#include "trireme/contract/stage_link.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/tf32.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/stage_assignment.hpp"
#include "trireme/parallel/unit_walk.hpp"
#include "trireme/train/detail/batch_upload.hpp"
#include "trireme/train/detail/micro_batch_states.hpp"
#include "trireme/train/detail/stage_messages.hpp"
#include "trireme/train/detail/stage_program.hpp"
#include "trireme/train/detail/unit_chunks.hpp"
#include "trireme/train/detail/unit_edges.hpp"

namespace trireme {

/// Functions called at the boundaries of units, for an engine whose parameters are always in memory: they do nothing.
/// An exchange has the same functions, of the number of a unit.
struct resident_parameters {
  void gather(int) {}    ///< the values are about to be read
  void prefetch(int) {}  ///< the values will be needed by the next unit
  void open(int) {}      ///< backward (or the last unit's forward) is about to add to the gradients
  void release(int) {}   ///< the values are not read any more
  /// Changes whenever values change. Nothing counts changes here, so nothing derived from values is cached.
  [[nodiscard]] static constexpr std::uint64_t version() noexcept { return ops::passing_values; }
};

/// Runs a staged model, or one stage of it: holds type-erased units, and runs micro-batches through them in the order
/// of its step list. It does not depend on ranks: other stages are reached through a link.
///
/// Bytes    activations of the micro-batches in flight. After the first step (with other stages, the first two) nothing
///          is allocated.
/// Threads  one owner. Make it in the thread that runs it.
/// Errors   assertion_error that names the unit: from its kernels, and if the ranks of a tensor group have different
///          numbers where they should be equal (see detail/unit_edges.hpp). device_error that names it likewise.
template <class Env>
class staged_engine {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;

  /// All units.
  /// @param groups  must outlive the engine. Except in predict(), the engine gets samples cut to this rank's positions.
  template <staged_model Model>
  explicit staged_engine(Model const& model, rank_groups<Env> const& groups = {})
      : groups_(groups), programs_(parallel::single_stage(model)), rows_of_sample_(rows_of_sample(model)) {
    units_.box(model, assignment(), groups_);
  }

  /// The units of one stage.
  /// @param link  to the other stages; it must outlive the engine.
  template <staged_model Model>
  staged_engine(Model const& model, rank_groups<Env> const& groups, parallel::stage_assignment at,
                stage_link<space>* link)
      : groups_(groups),
        programs_(std::move(at)),
        rows_of_sample_(rows_of_sample(model)),
        messages_(std::make_unique<detail::linked_stage_messages<Env>>(link)) {
    units_.box(model, assignment(), groups_);
  }

  /// All uses of parameters, in the order of the units on this rank.
  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return units_.uses(); }

  /// The end of each unit's parameter uses.
  [[nodiscard]] std::vector<int> const& unit_ends() const noexcept { return units_.ends(); }

  /// Whether the unit with this number in the model is on this rank.
  [[nodiscard]] bool has_unit(std::int64_t number) const noexcept { return units_.has(number); }

  [[nodiscard]] parallel::stage_assignment const& assignment() const noexcept { return programs_.assignment(); }

  /// Sets the run state of the precision that passes use from now on; it must outlive the engine.
  void follow(precision_state<typename Env::precision>& precision) noexcept { precision_ = &precision; }

  /// One step: all micro-batches forward and backward. Adds to the gradients, and calls ready(use, last) when a
  /// micro-batch's contribution to a gradient is complete; `last` if it was the last micro-batch.
  /// @param weight  of one sample's mean loss in the loss that is differentiated: 1 / samples in the step.
  /// @param hooks   called at the boundaries of units; see resident_parameters.
  /// @param shadowed  number of further micro-batches that only other ranks have, but in whose passes all ranks take
  ///                  part.
  /// @param rows    of the whole step's loss, if adds_sample_losses(); empty: there are no other ranks.
  /// @returns the losses of the units on this rank; most of a model's losses are in its last unit.
  template <class Ready, class Hooks = resident_parameters>
  losses_in<space> train_step(std::span<samples const> micro_batches, double weight, random_key key, Ready&& ready,
                              Hooks&& hooks = {}, std::int64_t shadowed = 0, std::optional<loss_rows> rows = {}) {
    auto const all = static_cast<std::int64_t>(micro_batches.size()) + shadowed;
    if (all == 0) return {};
    version_ = hooks.version();
    auto const& list = programs_.for_training(static_cast<int>(all));
    if (adds_sample_losses() && !rows) {
      std::int64_t all_samples = 0;
      for (auto const& batch : micro_batches) all_samples += batch.count();
      rows = loss_rows::of(rows_of_loss(micro_batches, shadowed), all_samples);
    }
    start(list, micro_batches,
          {.key = key, .weight = weight, .purpose = purpose::train, .rows = rows.value_or(loss_rows{})});
    auto const* const steps = list.steps();
    int const count = list.count();
    for (int i = 0; i < count; ++i) {
      auto const& step = steps[i];
      if (step.kind == schedule::work::forward) {
        bool const turns = i + 1 < count && steps[i + 1].kind != schedule::work::forward &&
                           steps[i + 1].chunk == step.chunk && steps[i + 1].micro_batch == step.micro_batch;
        forward(step, turns, hooks);
      } else {
        backward(step, ready, hooks);
      }
      copy_next(list, i);
    }
    report_idle(list.passes, ready);
    if (messages_ != nullptr) messages_->end();
    states_.end();
    scratch_.reset();
    if (now_.rows.none) now_.loss.count_all_rows();
    return std::exchange(now_.loss, {});
  }

  /// Whether the model adds loss terms that count once per sample: see pass::rows_of_loss().
  [[nodiscard]] bool adds_sample_losses() const noexcept { return units_.adds_sample_losses(); }
  /// For the micro-batches of a step whose loss is computed on this rank: how many rows count, and how many do not.
  [[nodiscard]] loss_sum rows_of_loss(std::span<samples const> micro_batches, std::int64_t shadowed = 0) {
    loss_sum sum;
    auto const all = static_cast<std::int64_t>(micro_batches.size()) + shadowed;
    if (all == 0) return sum;
    auto const& list = programs_.for_training(static_cast<int>(all));
    for (int i = 0; i < list.count(); ++i) {
      auto const& step = list.steps()[i];
      auto const number = static_cast<std::size_t>(step.micro_batch);
      if (step.kind != schedule::work::forward || step.output >= 0 || number >= micro_batches.size()) continue;
      sum += units_[units_.chunk(step.chunk).last - 1].rows_of_loss(micro_batches[number]);
    }
    return sum;
  }

  /// A step of one micro-batch: calls ready(use).
  template <class Ready, class Hooks = resident_parameters>
  losses_in<space> train(samples const& batch, double weight, random_key key, Ready&& ready, Hooks&& hooks = {}) {
    return train_step(
        std::span(&batch, 1), weight, key, [&](int use, bool) { ready(use); }, hooks);
  }

  /// The losses of some samples, without dropout and without gradients, on the stage that has the last unit.
  template <class Hooks = resident_parameters>
  [[nodiscard]] loss_sum evaluate(samples const& batch, Hooks&& hooks = {}) {
    static_cast<void>(look({&batch, 1}, purpose::evaluate, hooks));
    return std::exchange(now_.loss, {}).read();
  }

  /// The outputs for some inputs (n, outputs), on the stage that has the last unit (empty on the others); valid until
  /// the next call.
  template <class Hooks = resident_parameters>
  [[nodiscard]] view predict(samples const& batch, Hooks&& hooks = {}) {
    return look({&batch, 1}, purpose::predict, hooks);
  }

  /// The outputs of some positions of many sequences, whose tokens are (1, rows.count()): those of rows.outputs, in
  /// their order; empty if none are wanted. Layers keep what later positions need in pages: see paged_rows. Valid until
  /// the next call.
  ///
  /// Numerics a row's outputs have the same bits regardless of which rows and sequences are computed with it, in host
  ///          memory.
  /// Errors   config_error for tokens of another form, and layers that need whole samples or whose memory space has no
  ///          attention over pages.
  template <class Hooks = resident_parameters>
  [[nodiscard]] view predict_rows(samples const& batch, paged_rows const& rows, Hooks&& hooks = {}) {
    auto const& tokens = batch.inputs;
    if (tokens.type != dtype::i32 || tokens.extents != shape{1, rows.count()} || rows.count() == 0) {
      throw config_error(text("trireme::predict_rows: inputs are ", name_of(tokens.type), " ",
                              to_string(tokens.extents), ", but they are the tokens of ", how_many(rows.count(), "row"),
                              ", (1, rows), one row at least"));
    }
    return look({&batch, 1}, purpose::predict, hooks, &rows);
  }
  /// The gradient of the sum of these samples' mean losses by their inputs, on the stage that has the first unit; empty
  /// on the others. As in evaluate(), there is no dropout; gradients of parameters do not change. Valid until the next
  /// call. If ranks split positions, each of them computes all positions.
  /// @param[out] loss  of these samples, on the stage that has the last unit.
  template <class Hooks = resident_parameters>
  [[nodiscard]] view input_gradient(samples const& batch, loss_sum& loss, Hooks&& hooks = {}) {
    version_ = hooks.version();
    auto const& list = programs_.for_training(1);
    start(list, {&batch, 1}, {{}, 1, purpose::input_gradient});
    auto const nothing_is_ready = [](int, bool) {};
    view dx;
    for (int i = 0; i < list.count(); ++i) {
      auto const& step = list.steps()[i];
      if (step.kind == schedule::work::forward) {
        static_cast<void>(forward(step, false, hooks));
      } else if (step.kind != schedule::work::backward_weight) {
        auto const made = backward(step, nothing_is_ready, hooks);
        if (step.output < 0) dx = made;
      }
    }
    if (messages_ != nullptr) messages_->end();
    loss = std::exchange(now_.loss, {}).read();
    return dx;
  }

  /// Takes part in evaluate() for a micro-batch that only other ranks have.
  template <class Hooks = resident_parameters>
  void shadow(Hooks&& hooks = {}) {
    static_cast<void>(look({}, purpose::evaluate, hooks));
  }

  /// Calls f(step, true) when a step has its inputs and begins, and f(step, false) when it ends: for timelines.
  void watch(std::function<void(schedule::step const&, bool)> f) { watch_ = std::move(f); }

  /// Starts to copy a micro-batch of the next step, if it is in staging memory.
  void bring(samples const& batch) { places_.ahead(batch); }
  /// Returns when no copy reads the memory of batches any more; without `all`, except the one that bring() has begun.
  void finish_copies(bool all) { places_.finish(all); }

  /// The highest number of bytes of activations, scratch and batches in use so far.
  [[nodiscard]] std::size_t peak_bytes() const noexcept {
    return scratch_.peak_bytes() + states_.peak_bytes() + places_.bytes();
  }
  /// Bytes    of the buffers for transfers between stages so far.
  [[nodiscard]] std::int64_t message_bytes() const noexcept { return messages_ == nullptr ? 0 : messages_->bytes(); }

  /// For a simulated training, where no message contains the next one's extents: sets the extents of every unit's
  /// output in the whole model for inputs of extents `key`.
  void predict_shapes(shape const& key, std::span<shape const> outputs) {
    auto const& cuts = assignment().cuts;
    for (int boundary = 0; boundary + 1 < assignment().where.virtual_stages(); ++boundary) {
      auto const first_after = static_cast<std::size_t>(cuts.data()[boundary + 1]);
      messages_->predict_shapes(boundary, key, outputs[first_after - 1]);
    }
  }
  /// For a simulated training whose kernels read batches in place: they are not copied.
  void leave_batches() noexcept { places_.leave(); }
  /// For one whose batches would be in staging memory.
  void stage_batches() noexcept { places_.stage(); }

 private:
  static constexpr shape nothing{0};  // the extents of a micro-batch that only other ranks have

  struct mode {
    random_key key;
    double weight = 0;
    trireme::purpose purpose = purpose::evaluate;
    losses_in<space> loss{};
    loss_rows rows{};
    paged_rows const* paged = nullptr;
  };

  void start(detail::stage_program const& what, std::span<samples const> batches, mode how) {
    now_ = how;
    batches_ = batches;
    scratch_.reset();
    edges_.begin(tensor_group<Env>::of(groups_), how.purpose == purpose::train);
    auto& chunks = units_.chunks();
    states_.begin(chunks.size(), what.lists.where().micro_batches);
    places_.begin(batches);
    for (std::size_t c = 0; c < chunks.size(); ++c) chunks[c].left = what.passes[c];
    keys_.assign(static_cast<std::size_t>(what.micro_batches), nothing);
    for (std::size_t m = 0; m < batches.size(); ++m) keys_[m] = batches[m].inputs.extents;
    if (messages_ != nullptr) messages_->begin(what.message_buffers, keys_);
  }

  template <class Hooks>
  view look(std::span<samples const> batch, purpose why, Hooks& hooks, paged_rows const* paged = nullptr) {
    version_ = hooks.version();
    auto const& list = programs_.for_looking();
    start(list, batch, {.key = {}, .purpose = why, .paged = paged});
    view out;
    for (int i = 0; i < list.count(); ++i) {
      auto const& step = list.steps()[i];
      auto const made = forward(step, false, hooks);
      if (step.output < 0) out = made;
    }
    if (messages_ != nullptr) messages_->end();
    return out;
  }

  template <class Hooks>
  view forward(schedule::step const& step, bool turns, Hooks& hooks) {
    auto const& here = units_.chunk(step.chunk);
    auto const index = states_.take(step.chunk, step.micro_batch);
    auto& own = states_[index];
    bool const shadows = is_shadow(step);
    own.batch =
        shadows ? samples_in<space>{} : places_.place(batches_[static_cast<std::size_t>(step.micro_batch)], own.landed);
    auto pass = make_pass(index);
    view x;
    if (step.from != schedule::nobody)
      x = messages_->receive(step.from, step.input, own.activations);
    else if (step.input >= 0)
      x = neighbour(here.part - 1, step.micro_batch).out;
    if (watch_) watch_(step, true);
    parallel::walk_forward(hooks, static_cast<int>(here.first), static_cast<int>(here.last), turns, [&](int unit) {
      auto const u = static_cast<std::size_t>(unit);
      bool const last = u + 1 == here.last;
      if (last && step.output < 0 && pass.training()) hooks.open(unit);  // losses may already add to gradients
      x = run(pass, u, "forward", [&] {
        if (!shadows) return units_[u].forward(pass, x);
        units_[u].shadow_forward(pass);
        return view(nullptr, nothing);
      });
      if (!last || step.output >= 0) edges_.check(pass, x, "output", [&] { return units_.name_of(u); });
    });
    own.out = x;
    now_.loss += pass.loss;
    if (watch_) watch_(step, false);
    if (step.to != schedule::nobody) messages_->send(step.to, step.output, x);
    return x;
  }

  template <class Ready, class Hooks>
  view backward(schedule::step const& step, Ready& ready, Hooks& hooks) {
    auto& here = units_.chunk(step.chunk);
    auto const index = states_.of(step.chunk, step.micro_batch);
    auto& own = states_[index];
    auto pass = make_pass(index);
    bool const shadows = is_shadow(step);
    bool const weights_only = step.kind == schedule::work::backward_weight;
    bool const inputs = pass.purpose == purpose::input_gradient;
    bool const input_only = step.kind == schedule::work::backward_input && !inputs;
    bool const last_time = here.left == 1;
    view dy = own.returned;
    if (step.from != schedule::nobody) dy = messages_->receive(step.from, step.input, own.activations);
    if (watch_) watch_(step, true);
    auto const open = [&](int unit) {
      if (!inputs) hooks.open(unit);
    };
    parallel::walk_backward(hooks, static_cast<int>(here.first), static_cast<int>(here.last), open, [&](int number) {
      auto const u = static_cast<std::size_t>(number);
      dy = run(pass, u, "backward", [&] {
        auto& unit = units_[u];
        if (shadows) {
          if (!weights_only) unit.shadow_backward(pass);
          return view(nullptr, nothing);
        }
        if (inputs) return unit.input_gradient(pass, dy);
        if (input_only) return unit.backward_input(pass, dy);
        if (!weights_only) return unit.backward(pass, dy);
        unit.backward_weight(pass);
        return view{};
      });
      if (!weights_only && (u > here.first || step.output >= 0))
        edges_.check(pass, dy, "gradient", [&] { return units_.name_of(u); });
      bool const final = !input_only && !inputs;
      for (int use = units_.first_use(u); use < units_.last_use(u) && final; ++use) ready(use, last_time);
    });
    now_.loss += pass.loss;
    if (watch_) watch_(step, false);
    if (step.to != schedule::nobody) {
      messages_->send(step.to, step.output, dy);
    } else if (step.output >= 0) {
      auto& before = neighbour(here.part - 1, step.micro_batch);
      before.returned = before.activations.template take<typename Env::compute>(dy.extents());
      ops::on<space>::copy(before.returned, dy);
    }
    if (!input_only) {
      --here.left;
      if (inputs) return dy;  // which may be in it
      places_.give_back(own.landed);
      states_.give_back(index);
    }
    return dy;
  }

  // While the kernels of a forward pass compute, the batch of the next one is copied.
  void copy_next(detail::stage_program const& what, int done) {
    auto const* const steps = what.steps();
    if (steps[done].kind != schedule::work::forward) return;
    for (int i = done + 1; i < what.count(); ++i) {
      if (steps[i].kind != schedule::work::forward) continue;
      if (!is_shadow(steps[i])) places_.ahead(batches_[static_cast<std::size_t>(steps[i].micro_batch)]);
      return;
    }
  }
  // Whether only other ranks have the micro-batch.
  [[nodiscard]] bool is_shadow(schedule::step const& step) const noexcept {
    return static_cast<std::size_t>(step.micro_batch) >= batches_.size();
  }
  // The same micro-batch in another part on this rank.
  [[nodiscard]] detail::micro_batch_state<Env>& neighbour(int part, int micro_batch) {
    int c = 0;
    while (units_.chunk(c).part != part) ++c;
    return states_[states_.of(c, micro_batch)];
  }

  pass<Env> make_pass(std::size_t index) {
    auto& own = states_[index];
    bool const whole = now_.purpose == purpose::predict || now_.purpose == purpose::input_gradient;
    auto& groups = whole ? whole_samples_ : groups_;
    return {.activations = own.activations,
            .scratch = scratch_,
            .batch = own.batch,
            .key = now_.key,
            .version = version_,
            .weight = now_.weight,
            .purpose = now_.purpose,
            .groups = groups,
            .saved_index = index,
            .rows_of_sample = rows_of_sample_,
            .precision = precision_,
            .rows = now_.rows,
            .paged = now_.paged};
  }
  template <class Body>
  view run(pass<Env>& pass, std::size_t unit, char const* direction, Body&& body) {
    auto const mark = pass.scratch.mark();
    ops::tf32_products const products(ops::tf32_products::allowed() || rounds_to_tf32());
    pass.key = units_.key_of(unit, now_.key);
    pass.first_site = units_.first_site(unit);
    try {
      auto const out = body();
      pass.scratch.rewind(mark);
      return out;
    } catch (assertion_error const& problem) {
      throw edges_.in_unit(pass, direction, units_.name_of(unit), problem);
    } catch (device_error const& problem) {
      throw edges_.in_unit(direction, units_.name_of(unit), problem);
    }
  }

  [[nodiscard]] bool rounds_to_tf32() const {
    if constexpr (may_round_to_tf32<precision_state<typename Env::precision>>)
      return precision_ != nullptr && precision_->tf32_products();
    else
      return false;
  }

  // If there are few micro-batches a chunk may get none of them: its gradients are final, too.
  template <class Ready>
  void report_idle(std::vector<int> const& passes, Ready& ready) {
    for (std::size_t c = 0; c < passes.size(); ++c) {
      if (passes[c] > 0) continue;
      auto const& idle = units_.chunks()[c];
      for (auto u = idle.last; u-- > idle.first;) {
        for (int use = units_.first_use(u); use < units_.last_use(u); ++use) ready(use, true);
      }
    }
  }

  rank_groups<Env> groups_;
  rank_groups<Env> whole_samples_ = groups_.with_whole_samples();  // to predict, and for gradients of inputs
  detail::stage_programs programs_;
  std::int64_t rows_of_sample_ = 0;  // of the model
  detail::unit_chunks<Env> units_;
  detail::batch_upload<space> places_;
  detail::unit_edges<Env> edges_;

  // State of the current step.
  mode now_;
  std::span<samples const> batches_;
  std::vector<shape> keys_;
  detail::micro_batch_states<Env> states_;
  arena<space> scratch_;
  std::unique_ptr<detail::stage_messages<Env>> messages_;  // to other stages, if there are any
  std::function<void(schedule::step const&, bool)> watch_;
  std::uint64_t version_ = ops::passing_values;  // of the values
  precision_state<typename Env::precision>* precision_ = nullptr;
};

}  // namespace trireme
