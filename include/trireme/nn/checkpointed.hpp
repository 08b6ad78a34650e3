#pragma once

#include <concepts>

#include "trireme/contract/model.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// A unit that saves nothing but its input: the backward pass runs forward again. A model then keeps one input for each
/// unit, and all activations of only one unit at a time, for about a third more arithmetic. Its backward has no halves,
/// because what the second one needs would have to be kept.
///
/// Not for a model's first and last units: they read the batch, add to the loss, and may form gradients in forward.
/// Numerics the second forward pass has the bits of the first: what is dropped depends on sample and position alone.
/// Method   [Chen et al., "Training deep nets with sublinear memory cost", 2016].
template <class Unit>
struct checkpointed {
  Unit unit;
  friend bool operator==(checkpointed const&, checkpointed const&) = default;

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

    explicit instance(checkpointed const& description) requires std::constructible_from<inner, Unit const&>
        : unit_(description.unit) {}
    instance(checkpointed const& description, share own) requires std::constructible_from<inner, Unit const&, share>
        : unit_(description.unit, own) {}
    instance(checkpointed const& description, rank_groups<Env> const& groups) requires std::constructible_from < inner,
        Unit const&, rank_groups<Env>
    const& > : unit_(description.unit, groups) {}

    void visit(auto&& each) { unit_.visit(each); }

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
      static_cast<void>(unit_.forward(pass, within_, kept.x));
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
checkpointed(Unit) -> checkpointed<Unit>;

namespace detail {

/// Emits a block of a model, as it is or checkpointed.
template <class Emit, class Block>
void emit_block(Emit& emit, Block const& block, bool saves_its_input_only) {
  if (saves_its_input_only) {
    emit(nn::checkpointed<Block>{block});  // nvcc does not deduce it
  } else {
    emit(block);
  }
}

}  // namespace detail

}  // namespace trireme::nn
