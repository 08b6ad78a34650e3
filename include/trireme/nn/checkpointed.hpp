#pragma once

#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// A unit that saves nothing but its input: the backward pass runs forward again. A model then keeps one input for each
/// unit, and all activations of only one unit at a time, for about a third more arithmetic. Its backward has no halves,
/// because what the second one needs would have to be kept.
///
/// nn::checkpointed does the same for some layers of a unit; this is for units written by hand, and for whole blocks.
/// Not for a model's first and last units: they read the batch, add to the loss, and may form gradients in forward.
/// Numerics the second forward pass has the bits of the first: what is dropped depends on sample and position alone.
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
             share own) requires std::constructible_from<inner, Unit const&, share> : unit_(description.unit, own) {}
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
    [[nodiscard]] std::vector<std::uint32_t> const& dropout_sites() const noexcept requires says_dropout_sites<inner> {
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

    void serve_forward(pass<Env>& pass, saved&) requires serves_others<inner, Env> {
      auto const here = pass.activations.mark();
      unit_.serve_forward(pass, within_);
      pass.activations.rewind(here);
    }
    void serve_backward(pass<Env>& pass, saved&) requires serves_others<inner, Env> {
      auto const here = pass.activations.mark();
      unit_.serve_forward(pass, within_);
      unit_.serve_backward(pass, within_);
      pass.activations.rewind(here);
    }

   private:
    template <class Backward>
    view again(pass<Env>& pass, saved const& kept, view dy, Backward&& backward) {
      auto const here = pass.activations.mark();
      auto const scratch = pass.scratch.mark();
      auto const told = pass.loss;
      static_cast<void>(unit_.forward(pass, within_, kept.x));
      pass.loss = told;  // losses of forward have been told the first time
      pass.scratch.rewind(scratch);
      auto const dx = backward();
      if (dx.address() != dy.address()) return keep_only(pass, here, dx);
      pass.activations.rewind(here);
      return dx;
    }
    // Gives back all activations since `here` but the result.
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

/// Layers of an expression that save nothing but their input; made by nn::checkpointed.
template <class Chain>
struct checkpointed_of {
  Chain layers;
  friend bool operator==(checkpointed_of const&, checkpointed_of const&) = default;
};

/// These layers, one after the other, save nothing but their input: the backward pass runs them forward again.
/// Gradients have the bits of the layers without it, because what is dropped depends on sample and position alone.
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
[[nodiscard]] checkpointed_of<chain_of<L...>> checkpointed(L... layers) {
  return {nn::chain(std::move(layers)...)};
}

template <class Chain>
struct says_of<checkpointed_of<Chain>> {
  static constexpr layer_says value{.does = flow::rows};
};

namespace detail {

template <class Chain>
struct inside<checkpointed_of<Chain>> : inside<residual_of<Chain>> {};

template <class Env>
class checkpointed_node final : public node<Env> {
  using value = typename Env::compute;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  template <class Chain>
  explicit checkpointed_node(checkpointed_of<Chain> const& what) : checkpointed_node(nodes_of<Env>(what.layers)) {}
  explicit checkpointed_node(std::vector<node_pointer<Env>> layers) : layers_(std::move(layers)) {
    this->facts_ = {.inside = true, .adds_residual = true, .accumulates = true};
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  [[nodiscard]] std::int64_t width(std::int64_t from) const override { return layers_.width(from); }
  void visit(parameter_visitor<Env> const& each) override { layers_.visit(each); }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>& to, view residual) override {
    auto const here = pass.activations.mark();
    auto const y = layers_.forward(pass, x.v, residual);
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
    static_cast<void>(layers_.forward(pass, x.here));
    pass.loss = told;  // losses of forward have been told the first time
    pass.scratch.rewind(mark);
    layers_.backward(pass, x, {dy, false, memory::passing}, {to.into, to.accumulate},
                     when == half::never ? half::never : half::at_once);
    pass.scratch.rewind(mark);
    pass.activations.rewind(here);
  }
  void serve_forward(pass<Env>& pass) override {
    auto const here = pass.activations.mark();
    layers_.serve_forward(pass);
    pass.activations.rewind(here);
  }
  void serve_backward(pass<Env>& pass) override {
    auto const here = pass.activations.mark();
    layers_.serve_forward(pass);
    layers_.serve_backward(pass);
    pass.activations.rewind(here);
  }

 private:
  [[nodiscard]] bool adds_sample_losses() const override { return layers_.adds_sample_losses(); }
  void do_place(placing<Env>& at, layer_step const&) override { layers_.place(at, lie::rows, lie::rows); }

  chain_node<Env> layers_;
};

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

template <class Env, class Chain>
struct node_of<Env, checkpointed_of<Chain>> {
  using type = detail::checkpointed_node<Env>;
};

}  // namespace trireme::nn
