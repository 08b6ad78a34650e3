#pragma once

#include <cstdint>
#include <string>

#include "trireme/contract/model.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/detail/packed_weights.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// y = act(x w + b) (+ residual), with the weight stored (inputs, outputs) as GPT-2 does.
///
/// As a layer of an expression it is `linear{.outputs = n}`: `inputs` follows from the layer before it, an activation
/// is a layer of its own behind it, and how a tensor group cuts it follows from its neighbours. `instance` is for units
/// written by hand: it has the whole weight on every rank.
///
/// Shapes   x (rows, inputs), y (rows, outputs), w (inputs, outputs), b (outputs).
/// Bytes    saves a view of x, and a copy of x w + b where an activation follows.
struct linear {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  ops::activation act = ops::activation::none;
  initial start{initial::distribution::normal, 0.02};
  initial bias_start{};
  bool bias = true;  ///< false: y = act(x w)
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
  };

  instance(linear const& description, std::string const& name)
      : what_(description),
        weight_{{name + ".weight", {what_.inputs, what_.outputs}, what_.start, true}, {}, {}},
        bias_{{name + ".bias", {what_.outputs}, what_.bias_start, false}, {}, {}} {}

  void visit(auto&& each) {
    each(weight_);
    if (what_.bias) each(bias_);
  }

  view forward(pass<Env>& pass, saved& kept, view x, view residual = {}) {
    auto const y = pass.take({x.extent(0), what_.outputs});
    kept.x = x;
    bool const keep = what_.act != ops::activation::none && pass.backward_follows();
    kept.before_activation = keep ? pass.take(y.extents()) : view{};
    auto const here = pass.scratch.mark();
    kernels::linear(y, operand(pass, role::input, x), packed(pass),
                    {bias_.value, what_.act, kept.before_activation, residual});
    pass.scratch.rewind(here);
    return y;
  }
  view backward(pass<Env>& pass, saved const& kept, view dy) {
    if (what_.act != ops::activation::none) {
      auto const before = pass.take(dy.extents());
      kernels::activate_backward(before, dy, kept.before_activation, what_.act);
      dy = before;
    }
    auto const dx = pass.take(kept.x.extents());
    auto const here = pass.scratch.mark();
    kernels::linear_backward_weight(weight_.gradient, bias_.gradient, operand(pass, role::input, kept.x),
                                    operand(pass, role::gradient, dy), ops::orientation::in_out);
    kernels::linear_backward_input(dx, operand(pass, role::gradient, dy), packed(pass));
    pass.scratch.rewind(here);
    return dx;
  }

 private:
  [[nodiscard]] view operand(pass<Env>& pass, role which, view x) { return pass.operand(weight_.info.name, which, x); }
  auto& packed(pass<Env>& pass) { return detail::packed_weights(packed_, pass, weight_.info.name, weight_.value); }

  linear what_;
  parameter<Env> weight_, bias_;
  ops::weights<value, space> packed_;
};

}  // namespace trireme::nn
