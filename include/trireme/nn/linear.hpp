#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "trireme/contract/model.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// y = act(x w + b) (+ residual), with the weight stored (inputs, outputs) as GPT-2 does.
///
/// Shapes   x (rows, inputs), y (rows, outputs), w (inputs, outputs), b (outputs).
/// Bytes    saves a reference to x, and x w + b where an activation follows.
struct linear {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  ops::activation act = ops::activation::none;
  initial start{initial::distribution::normal, 0.02};
  initial bias_start{};
  friend bool operator==(linear const&, linear const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class linear::instance {
  using space = typename Env::space;
  using value = typename Env::compute;
  using kernels = ops::on<space>;

 public:
  using view = tensor_view<value, space>;
  struct saved {
    view x;                  // (rows, inputs)
    view before_activation;  // (rows, outputs), or empty
  };

  instance(linear const& description, std::string const& name)
      : what_(description),
        weight_{{name + ".weight", {what_.inputs, what_.outputs}, what_.start, true}, {}, {}},
        bias_{{name + ".bias", {what_.outputs}, what_.bias_start, false}, {}, {}} {}

  void visit(auto&& each) {
    each(weight_);
    each(bias_);
  }

  view forward(pass<Env>& pass, saved& saved, view x, view residual = {}) {
    auto const y = pass.take({x.extent(0), what_.outputs});
    saved.x = x;
    bool const keep = what_.act != ops::activation::none && pass.training();
    saved.before_activation = keep ? pass.take(y.extents()) : view{};
    kernels::linear(y, x, packed(pass), {bias_.value, what_.act, saved.before_activation, residual});
    return y;
  }

  /// @param dy  gradient of x w + b: the caller has taken it through this layer's activation (see input_gradient's
  ///            epilogue of the layer above, or activation_backward()).
  void weight_gradient(saved const& saved, view dy) {
    kernels::linear_backward_weight(weight_.gradient, bias_.gradient, saved.x, dy, ops::orientation::in_out);
  }
  /// dx (+)= dy w^T, then through the activation of the layer below, if it is given.
  void input_gradient(pass<Env>& pass, view dx, view dy, ops::input_epilogue<value, space> epilogue = {}) {
    kernels::linear_backward_input(dx, dy, packed(pass), epilogue);
  }

  view backward(pass<Env>& pass, saved const& saved, view dy) {
    auto const before = through_activation(pass, saved, dy);
    weight_gradient(saved, before);
    auto const dx = pass.take(saved.x.extents());
    input_gradient(pass, dx, before);
    return dx;
  }
  /// Like backward, for the first layer of a model: nobody wants dx.
  void backward_without_input(pass<Env>& pass, saved const& saved, view dy) {
    weight_gradient(saved, through_activation(pass, saved, dy));
  }

 private:
  view through_activation(pass<Env>& pass, saved const& saved, view dy) {
    if (what_.act == ops::activation::none) return dy;
    auto const before = pass.take(dy.extents());
    kernels::activate_backward(before, dy, saved.before_activation, what_.act);
    return before;
  }
  auto& packed(pass<Env> const& pass) {
    packed_.bind(weight_.value, ops::orientation::in_out);
    packed_.refresh(pass.version);
    return packed_;
  }

  linear what_;
  parameter<Env> weight_;
  parameter<Env> bias_;
  ops::weights<value, space> packed_;
};

}  // namespace trireme::nn
