#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "trireme/contract/model.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/detail/own_rows.hpp"
#include "trireme/nn/detail/packed_weights.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// The part of a linear layer that one rank of a tensor group has: some columns of the weight, which gives some
/// outputs, or some rows of it, which gives a term of all outputs.
struct linear_part {
  enum class axis { none, outputs, inputs };
  axis cut = axis::none;
  interval range{};  ///< of the inputs, or of the outputs of each fused matrix
  int rank = 0;      ///< in its group
};

/// When a backward pass makes the parameters' gradients: at once, or in a second half. What that needs is kept among
/// the activations; of cut rows those that lie here.
enum class weight_half { at_once, later };

/// y = act(x w + b) (+ residual), with the weight stored (inputs, outputs) as GPT-2 does.
///
/// As a layer of an expression it is `linear{.outputs = n}`: inputs are what comes in, an activation is a layer behind
/// it, and fused matrices are asked for by the layer that takes them.
///
/// Shapes   x (rows, inputs), y (rows, outputs), w (inputs, outputs), b (outputs).
/// Ranks    a layer of which this rank has some inputs gives partial sums (forward_term), one of which it has some
///          outputs gives them backward (input_gradient_term). The bias of the former is everybody's, added by rank 0.
/// Bytes    saves a reference to x, and x w + b where an activation follows.
struct linear {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  ops::activation act = ops::activation::none;
  initial start{initial::distribution::normal, 0.02};
  initial bias_start{};
  std::int64_t fused = 1;  ///< matrices that lie side by side in the outputs, each of which is cut alike
  bool bias = true;        ///< false: y = act(x w)
  friend bool operator==(linear const&, linear const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class linear::instance {
  using space = typename Env::space;
  using value = typename Env::compute;
  using kernels = ops::on<space>;
  using role = product_operand::role;

 public:
  using view = tensor_view<value, space>;
  struct saved {
    view x;                  // (rows, inputs)
    view before_activation;  // (rows, outputs), or empty
    view dy;                 // (rows, outputs): the gradient of x w + b, between the halves of a backward pass
  };

  instance(linear const& description, std::string const& name, linear_part const& part = {})
      : what_(description),
        weight_{{name + ".weight", {what_.inputs, what_.outputs}, what_.start, true}, {}, {}},
        bias_{{name + ".bias", {what_.outputs}, what_.bias_start, false}, {}, {}},
        adds_bias_(part.cut != linear_part::axis::inputs || part.rank == 0) {
    cut(part);
  }

  void visit(auto&& each) {
    each(weight_);
    if (what_.bias) each(bias_);
  }

  view forward(pass<Env>& pass, saved& kept, view x, view residual = {}) {
    auto const y = pass.take({x.extent(0), what_.outputs});
    kept.x = x;
    bool const keep = what_.act != ops::activation::none && pass.training();
    kept.before_activation = keep ? pass.take(y.extents()) : view{};
    auto const here = pass.scratch.mark();
    kernels::linear(y, operand(pass, role::input, x), packed(pass),
                    {bias_.value, what_.act, kept.before_activation, residual});
    pass.scratch.rewind(here);
    return y;
  }
  /// This rank's term of x w + b, where it has some of the inputs; in memory of `from`.
  partial_sum<view> forward_term(pass<Env>& pass, saved& kept, view x, arena<space>& from) {
    auto const y = from.template take<value>({x.extent(0), what_.outputs});
    kept.x = x;
    auto const here = pass.scratch.mark();
    kernels::linear(y, operand(pass, role::input, x), packed(pass),
                    {.bias = adds_bias_ ? bias_.value : decltype(bias_.value){}});
    pass.scratch.rewind(here);
    return partial_sum<view>(y);
  }
  /// residual + dropout(x w + b), summed over the group: the end of a branch of a residual stream.
  view end_branch(pass<Env>& pass, saved& kept, view x, view residual, ops::dropout_site drop) {
    auto const rows = x.extent(0);
    if (pass.group.size() == 1 && !drop.active()) return forward(pass, kept, x, residual);
    auto const y = detail::kept_sum(pass, [&](auto& from) { return forward_term(pass, kept, x, from); });
    detail::drop_rows(pass, y, rows, drop);
    kernels::add(y, residual);
    return y;
  }
  /// The gradient of x w + b in all rows, from that of end_branch()'s result: dy itself, or in scratch memory. For a
  /// later half a copy of what lies here is saved, since dy goes on to change.
  view branch_gradient(pass<Env>& pass, saved& kept, view dy, ops::dropout_site drop, weight_half when) {
    auto const rows = kept.x.extent(0);
    bool const later = when == weight_half::later;
    if (drop.active() || later) {
      auto const own = (later ? pass.activations : pass.scratch).template take<value>(dy.extents());
      kernels::copy(own, dy);
      detail::drop_rows(pass, own, rows, drop);
      dy = own;
    }
    if (later) kept.dy = dy;
    return pass.group.gather(dy, rows, pass.scratch);
  }

  /// @param dy  gradient of x w + b: the caller has taken it through this layer's activation (see input_gradient's
  ///            epilogue of the layer above, or activation_backward()).
  void weight_gradient(pass<Env>& pass, view x, view dy) {
    auto const here = pass.scratch.mark();
    kernels::linear_backward_weight(weight_.gradient.reshaped(matrix()), bias_.gradient, operand(pass, role::input, x),
                                    operand(pass, role::gradient, dy), ops::orientation::in_out);
    pass.scratch.rewind(here);
  }
  /// dx (+)= dy w^T, then through the activation of the layer below, if it is given.
  void input_gradient(pass<Env>& pass, view dx, view dy, ops::input_epilogue<value, space> epilogue = {}) {
    auto const here = pass.scratch.mark();
    kernels::linear_backward_input(dx, operand(pass, role::gradient, dy), packed(pass), epilogue);
    pass.scratch.rewind(here);
  }
  /// This rank's term of dy w^T, where it has some of the outputs; in the memory of dx.
  partial_sum<view> input_gradient_term(pass<Env>& pass, view dx, view dy) {
    input_gradient(pass, dx, dy);
    return partial_sum<view>(dx);
  }

  view backward(pass<Env>& pass, saved const& kept, view dy) {
    auto const before = through_activation(pass, kept, dy);
    weight_gradient(pass, kept.x, before);
    auto const dx = pass.take(kept.x.extents());
    input_gradient(pass, dx, before);
    return dx;
  }
  /// Like backward, for the first layer of a model: nobody wants dx.
  void backward_without_input(pass<Env>& pass, saved const& kept, view dy) {
    weight_gradient(pass, kept.x, through_activation(pass, kept, dy));
  }

 private:
  // Fused matrices get the dimension along which they are cut.
  void cut(linear_part const& part) {
    if (part.cut == linear_part::axis::none) return;
    if (part.cut == linear_part::axis::inputs) {
      weight_.info = part_of(weight_.info, 0, part.range);
      bias_.info.answers = part.rank == 0;
      what_.inputs = part.range.count;
      return;
    }
    if (what_.fused > 1) {
      weight_.info.extents = {what_.inputs, what_.fused, what_.outputs / what_.fused};
      bias_.info.extents = {what_.fused, what_.outputs / what_.fused};
    }
    weight_.info = part_of(weight_.info, weight_.info.extents.rank() - 1, part.range);
    bias_.info = part_of(bias_.info, bias_.info.extents.rank() - 1, part.range);
    what_.outputs = what_.fused * part.range.count;
  }
  [[nodiscard]] shape matrix() const { return {what_.inputs, what_.outputs}; }

  view through_activation(pass<Env>& pass, saved const& kept, view dy) {
    if (what_.act == ops::activation::none) return dy;
    auto const before = pass.take(dy.extents());
    kernels::activate_backward(before, dy, kept.before_activation, what_.act);
    return before;
  }
  [[nodiscard]] view operand(pass<Env>& pass, role which, view x) { return pass.operand(weight_.info.name, which, x); }
  auto& packed(pass<Env>& pass) {
    return detail::packed_weights(packed_, pass, weight_.info.name, weight_.value.reshaped(matrix()));
  }

  linear what_;
  parameter<Env> weight_;
  parameter<Env> bias_;
  bool adds_bias_;
  ops::weights<value, space> packed_;
};

}  // namespace trireme::nn
