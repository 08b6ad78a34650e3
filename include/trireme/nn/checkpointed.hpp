#pragma once

#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/precision/precision.hpp"

namespace trireme::nn {

/// A unit that saves only its input: the backward pass runs forward again. A model then keeps one input for each unit,
/// and all activations of only one unit at a time, for about a third more arithmetic. Its backward has no halves,
/// because the second half would need what is not kept.
///
/// nn::checkpointed does the same for some layers of a unit; this is for units written by hand, and for whole blocks.
/// Not for a model's first and last units: they read the batch, add to the loss, and may form gradients in forward.
/// Numerics the second forward pass has the bits of the first: dropout depends on sample and position alone.
/// Method   [Chen et al., "Training deep nets with sublinear memory cost", 2016].
template <class Unit>
struct checkpointed_unit {
  Unit unit;
  friend bool operator==(checkpointed_unit const&, checkpointed_unit const&) = default;

  template <class Env>
  class instance {
    using inner = typename Unit::template instance<Env>;
    using space = typename Env::space;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<typename Env::compute, space>;
    struct saved {
      view x;
    };

    explicit instance(checkpointed_unit const& description) requires std::constructible_from<inner, Unit const&>
        : unit_(description.unit) {}
    instance(checkpointed_unit const& description,
             group_rank own) requires std::constructible_from<inner, Unit const&, group_rank>
        : unit_(description.unit, own) {}
    instance(checkpointed_unit const& description,
             rank_groups<Env> const& groups) requires std::constructible_from < inner,
        Unit const&, rank_groups<Env>
    const& > : unit_(description.unit, groups) {}

    [[nodiscard]] static bool adds_sample_losses(checkpointed_unit const& description) {
      return trireme::adds_sample_losses<Env>(description.unit);
    }
    [[nodiscard]] loss_sum rows_of_loss(samples const& batch) const requires requires(inner const& it) {
      it.rows_of_loss(batch);
    }
    { return unit_.rows_of_loss(batch); }
    void visit(auto&& each) { unit_.visit(each); }
    [[nodiscard]] std::uint32_t dropout_sites() const noexcept requires counts_dropout_sites<inner> {
      return unit_.dropout_sites();
    }

    view forward(pass<Env>& pass, saved& kept, view x) {
      kept.x = x;
      if (!pass.backward_follows()) return unit_.forward(pass, within_, x);
      auto const here = pass.activations.mark();
      return keep_only(pass, here, unit_.forward(pass, within_, x));
    }
    view backward(pass<Env>& pass, saved const& kept, view dy) {
      return again(pass, kept, dy, [&] { return unit_.backward(pass, within_, dy); });
    }
    view input_gradient(pass<Env>& pass, saved const& kept, view dy) requires has_input_gradient<inner, Env> {
      return again(pass, kept, dy, [&] { return unit_.input_gradient(pass, within_, dy); });
    }

    void shadow_forward(pass<Env>& pass, saved&) requires has_shadow_passes<inner, Env> {
      auto const here = pass.activations.mark();
      unit_.shadow_forward(pass, within_);
      pass.activations.rewind(here);
    }
    void shadow_backward(pass<Env>& pass, saved&) requires has_shadow_passes<inner, Env> {
      auto const here = pass.activations.mark();
      unit_.shadow_forward(pass, within_);
      unit_.shadow_backward(pass, within_);
      pass.activations.rewind(here);
    }

   private:
    template <class Backward>
    view again(pass<Env>& pass, saved const& kept, view dy, Backward&& backward) {
      auto const here = pass.activations.mark();
      auto const scratch = pass.scratch.mark();
      auto const told = pass.loss;
      static_cast<void>(unit_.forward(pass, within_, kept.x));
      pass.loss = told;  // the first forward pass has counted these losses
      pass.scratch.rewind(scratch);
      auto const dx = backward();
      if (dx.address() != dy.address()) return keep_only(pass, here, dx);
      pass.activations.rewind(here);
      return dx;
    }
    // Frees all activations since `here` but the result.
    static view keep_only(pass<Env>& pass, typename arena<space>::position here, view result) {
      auto const copy = pass.scratch.template take<typename Env::compute>(result.extents());
      kernels::copy(copy, result);
      pass.activations.rewind(here);
      auto const out = pass.take(result.extents());
      kernels::copy(out, copy);
      return out;
    }

    inner unit_;
    typename inner::saved within_{};  // of the micro-batch that it works on now
  };
};
template <class Unit>
checkpointed_unit(Unit) -> checkpointed_unit<Unit>;

struct checkpointed_kind {
  static constexpr branch_rule rule{.runs_again = true, .facts = {.adds_residual = true}};
};

/// These layers, one after the other, save only their input: the backward pass runs them forward again. Gradients have
/// the same bits as without it, because dropout depends on sample and position alone.
///
/// They take and give whole rows. An activation behind them is not fused into their last product: put it inside.
/// Bytes    in place of all that they save: the input, and the result where the next layer saves its input. In backward
///          all of it for one micro-batch at a time.
/// Ranks    under tensor, sequence, context and expert the second pass forward sends what the first one has sent.
/// Numerics all gradients of their parameters are formed in the first half of backward, where a schedule has halves.
/// @example checkpointed(residual(named("norm", layer_norm{}), named("up", linear{.outputs = 4 * c}), gelu(),
///                                named("down", linear{.outputs = c})))
/// Method   [Chen et al., "Training deep nets with sublinear memory cost", 2016].
template <class... L>
[[nodiscard]] auto checkpointed(L... layers) {
  return compose<checkpointed_kind>(nn::chain(std::move(layers)...));
}

namespace detail {

template <class Env>
class layer_node<Env, checkpointed_kind> final : public branching_node<Env> {
  using value = typename Env::compute;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;

  using branching_node<Env>::branching_node;

  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view residual) override {
    auto const here = pass.activations.mark();
    auto const y = layers().forward(pass, x.v, residual);
    if (!pass.backward_follows()) return {y.v, y.ours, x.entry && y.entry};
    auto const mark = pass.scratch.mark();
    auto const copy = pass.scratch.template take<value>(y.v.extents());
    kernels::copy(copy, y.v);
    pass.activations.rewind(here);
    auto const result = to.template take<value>(copy.extents());
    kernels::copy(result, copy);
    pass.scratch.rewind(mark);
    return {result, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half when) override {
    auto const here = pass.activations.mark();
    auto const mark = pass.scratch.mark();
    auto const told = pass.loss;
    static_cast<void>(layers().forward(pass, x.here));
    pass.loss = told;  // the first forward pass has counted these losses
    pass.scratch.rewind(mark);
    layers().backward(pass, x, {dy, false, memory::passing}, {to.into, to.accumulate},
                      when == half::never ? half::never : half::at_once);
    pass.scratch.rewind(mark);
    pass.activations.rewind(here);
  }
  void backward_weight(pass<Env>&, layer_input<Env>, view) override {}  // backward_input has formed all gradients
  void shadow_forward(pass<Env>& pass) override {
    auto const here = pass.activations.mark();
    layers().shadow_forward(pass);
    pass.activations.rewind(here);
  }
  void shadow_backward(pass<Env>& pass) override {
    auto const here = pass.activations.mark();
    layers().shadow_forward(pass);
    layers().shadow_backward(pass);
    pass.activations.rewind(here);
  }

 private:
  row_shape join(row_shape const&, std::vector<row_shape> const& made, bool) override { return made[0]; }
  [[nodiscard]] chain_node<Env>& layers() { return this->branches_[0]; }
};

struct counts_operations {
  std::int64_t positions;
  std::vector<double>& costs;

  template <class Unit>
  void operator()(Unit const& unit) const {
    auto const counted = expression<environment<precision::fp32>>::operations_of(unit, positions);
    costs.push_back(counted.forward + counted.backward);
  }
  template <class Unit>
  void operator()(checkpointed_unit<Unit> const& it) const {
    auto const counted = expression<environment<precision::fp32>>::operations_of(it.unit, positions);
    costs.push_back(2 * counted.forward + counted.backward);
  }
};
/// What each unit of a model computes in training, forward and backward: the multiplications and additions of a row
/// that its layers count, for samples of so many positions.
template <class Model>
[[nodiscard]] std::vector<double> count_operations(Model const& model, std::int64_t positions) {
  model.validate();
  std::vector<double> costs;
  counts_operations put{positions, costs};
  model.units(put);
  return costs;
}

/// Emits a block of a model, as it is or checkpointed.
template <class Emit, class Block>
void emit_block(Emit& put, Block const& block, bool saves_its_input_only) {
  if (saves_its_input_only) {
    put(checkpointed_unit<Block>{block});  // nvcc does not deduce it
  } else {
    put(block);
  }
}

}  // namespace detail

}  // namespace trireme::nn
