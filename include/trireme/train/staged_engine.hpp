#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/ops/types.hpp"

namespace trireme {

/// Hooks at the boundaries of units for an engine whose parameters have memory all the time: nothing happens. An
/// exchange has the same functions. Uses [first, last) are those of one unit.
struct resident_parameters {
  void ensure(int, int) {}    ///< the values are about to be read
  void prefetch(int, int) {}  ///< the values will be needed by the next unit
  void open(int, int) {}      ///< backward (or the last unit's forward) is about to add to the gradients
  void release(int, int) {}   ///< the values are not read any more
};

/// Runs a staged model: boxes its units, and takes micro-batches through them. Knows nothing of ranks.
///
/// Bytes    activations of one micro-batch; after the first step nothing is allocated any more.
/// Threads  one owner. Make it in the thread that runs it.
template <class Env>
class staged_engine {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;

  /// @param group  the ranks that share the matrices of each unit; it must outlive the engine.
  template <staged_model Model>
  explicit staged_engine(Model const& model, tensor_group<Env>& group = tensor_group<Env>::one()) : group_(group) {
    if constexpr (requires { model.validate(); }) model.validate();
    boxes emit{units_, group.share()};
    model.units(emit);
    for (auto const& unit : units_) {
      for (auto* const use : unit->parameters()) uses_.push_back(use);
      last_use_.push_back(static_cast<int>(uses_.size()));
    }
  }

  /// All uses of parameters, in the order of the units.
  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return uses_; }

  /// Where each unit's uses end.
  [[nodiscard]] std::vector<int> const& unit_ends() const noexcept { return last_use_; }

  /// Parameter values have changed: packed copies of them are stale.
  void invalidate() noexcept { ++version_; }

  /// One micro-batch forward and backward: adds to the gradients, and calls ready(use) as each becomes final.
  /// @param weight  of one sample's mean loss in the loss that is differentiated: 1 / samples in the step.
  /// @param hooks   called at the boundaries of units; see resident_parameters.
  template <class Ready, class Hooks = resident_parameters>
  loss_sum train(samples const& batch, double weight, random_key key, Ready&& ready, Hooks&& hooks = {}) {
    start();
    auto const here = place(batch);
    auto pass = make_pass(here, key, weight, purpose::train);
    forward(pass, hooks);
    view dy;
    for (std::size_t u = units_.size(); u-- > 0;) {
      hooks.ensure(first_use(u), last_use_[u]);
      hooks.open(first_use(u), last_use_[u]);
      if (u > 0) hooks.prefetch(first_use(u - 1), last_use_[u - 1]);
      dy = run(pass, [&] { return units_[u]->backward(pass, dy); });
      for (int use = first_use(u); use < last_use_[u]; ++use) ready(use);
      hooks.release(first_use(u), last_use_[u]);
    }
    return pass.loss;
  }

  /// The losses of some samples, without dropout and without gradients.
  template <class Hooks = resident_parameters>
  [[nodiscard]] loss_sum evaluate(samples const& batch, Hooks&& hooks = {}) {
    start();
    auto const here = place(batch);
    auto pass = make_pass(here, {}, 0, purpose::evaluate);
    forward(pass, hooks);
    return pass.loss;
  }

  /// The outputs for some inputs (n, outputs); valid until the next call.
  template <class Hooks = resident_parameters>
  [[nodiscard]] view predict(samples const& batch, Hooks&& hooks = {}) {
    start();
    auto const here = place(batch);
    auto pass = make_pass(here, {}, 0, purpose::predict);
    return forward(pass, hooks);
  }

  /// Most bytes of activations and scratch in use at any time so far.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return activations_.peak_bytes() + scratch_.peak_bytes(); }

 private:
  struct boxes {
    std::vector<std::unique_ptr<unit<Env>>>& units;
    share own;
    template <class Description>
    void operator()(Description const& description) {
      units.push_back(std::make_unique<boxed_unit<Env, Description>>(description, own));
    }
  };

  void start() {
    activations_.reset();
    scratch_.reset();
  }
  pass<Env> make_pass(samples_in<space> const& batch, random_key key, double weight, purpose why) {
    return {activations_, scratch_, batch, key, version_, weight, why, {}, group_};
  }
  // Activations go where kernels find them: the batch is copied unless it is there already.
  samples_in<space> place(samples const& batch) {
    if constexpr (std::is_same_v<space, host>) {
      return batch;
    } else {
      return {place(batch.inputs), place(batch.targets), batch.ids};
    }
  }
  any_view<space> place(any_view<host> const& from) {
    if (from.empty()) return {nullptr, from.type, from.extents};
    if (from.type == dtype::i32) return place_as<std::int32_t>(from);
    return place_as<float>(from);
  }
  template <class T>
  any_view<space> place_as(any_view<host> const& from) {
    auto const to = activations_.template take<T>(from.extents);
    ops::on<space>::upload(to, from.template as<T>().span());
    return erase_type(to);
  }
  [[nodiscard]] int first_use(std::size_t unit) const noexcept { return unit == 0 ? 0 : last_use_[unit - 1]; }
  template <class Hooks>
  view forward(pass<Env>& pass, Hooks& hooks) {
    view x;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      bool const last = u + 1 == units_.size();
      hooks.ensure(first_use(u), last_use_[u]);
      if (!last) hooks.prefetch(first_use(u + 1), last_use_[u + 1]);
      if (last && pass.training()) hooks.open(first_use(u), last_use_[u]);  // losses may add to gradients already
      x = run(pass, [&] { return units_[u]->forward(pass, x); });
      if (!last || !pass.training()) hooks.release(first_use(u), last_use_[u]);  // backward begins with the last one
    }
    return x;
  }
  template <class Body>
  view run(pass<Env>& pass, Body&& body) {
    auto const mark = pass.scratch.mark();
    auto const out = body();
    pass.scratch.rewind(mark);
    return out;
  }

  tensor_group<Env>& group_;
  std::vector<std::unique_ptr<unit<Env>>> units_;
  std::vector<parameter<Env>*> uses_;
  std::vector<int> last_use_;
  arena<space> activations_;
  arena<space> scratch_;
  std::uint64_t version_ = 1;
};

}  // namespace trireme
