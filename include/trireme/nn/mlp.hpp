#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/nn/linear.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// One layer of a multi-layer perceptron; the first one reads the batch, the last one is compared with its targets.
///
/// Shapes   x (B, inputs), y (B, outputs). The loss of a sample is the mean of its squared errors.
struct mlp_layer {
  linear layer;
  std::int64_t index = 0;
  bool first = false;
  bool last = false;
  friend bool operator==(mlp_layer const&, mlp_layer const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class mlp_layer::instance {
  using space = typename Env::space;
  using kernels = ops::on<space>;

 public:
  using view = tensor_view<typename Env::compute, space>;
  struct saved {
    typename linear::instance<Env>::saved layer;
    view dy;  // (B, outputs), of the last layer
  };

  explicit instance(mlp_layer const& description)
      : what_(description), layer_(what_.layer, text("layers.", what_.index)) {}

  void visit(auto&& each) { layer_.visit(each); }

  view forward(pass<Env>& pass, saved& kept, view x) {
    if (what_.first) x = read_inputs(pass);
    auto const y = layer_.forward(pass, kept.layer, x);
    if (!what_.last || pass.purpose == purpose::predict) return y;
    expect_targets(pass.batch, y);
    kept.dy = pass.training() ? pass.take(y.extents()) : view{};
    pass.loss += kernels::squared_error(kept.dy, y, pass.batch.targets.template as<float>(), pass.weight);
    return {};
  }
  view backward(pass<Env>& pass, saved& kept, view dy) {
    auto const from = what_.last ? kept.dy : dy;
    if (!what_.first) return layer_.backward(pass, kept.layer, from);
    layer_.backward_without_input(pass, kept.layer, from);
    return {};
  }

 private:
  static void expect_targets(samples_in<space> const& batch, view y) {
    if (batch.targets.size() == y.size()) return;
    throw config_error(text("trireme::nn::mlp: targets of shape ", to_string(batch.targets.extents),
                            " for outputs of shape ", to_string(y.extents()),
                            "; give each sample as many targets as the model has outputs"));
  }
  view read_inputs(pass<Env>& pass) const {
    auto const inputs = pass.batch.inputs.template as<float>();
    auto const count = pass.batch.count();
    if (inputs.size() != count * what_.layer.inputs) {
      throw config_error(text("trireme::nn::mlp: inputs of shape ", to_string(inputs.extents()), " for a model with ",
                              what_.layer.inputs, " inputs a sample"));
    }
    auto const x = pass.take({count, what_.layer.inputs});  // (B,inputs)
    kernels::copy(x.flat(), inputs.flat());
    return x;
  }

  mlp_layer what_;
  linear::instance<Env> layer_;
};

/// A multi-layer perceptron for regression: hidden layers with an activation, a linear last layer, squared error.
///
/// Shapes   inputs (B, inputs) float, targets (B, outputs) float.
/// Errors   config_error from validate() if a size is not positive.
/// @models  staged_model, one unit a layer.
struct mlp {
  using policy_category = slot::model;
  static constexpr bool made_of_layers = true;

  std::int64_t inputs = 1;
  std::vector<std::int64_t> hidden{};
  std::int64_t outputs = 1;
  ops::activation act = ops::activation::tanh;
  friend bool operator==(mlp const&, mlp const&) = default;

  void validate() const {
    auto const positive = [](char const* what, std::int64_t number) {
      if (number < 1) throw config_error(text("trireme::nn::mlp: ", what, " is ", number, "; it must be at least 1"));
    };
    positive("inputs", inputs);
    positive("outputs", outputs);
    for (auto const width : hidden) positive("a hidden layer", width);
  }

  template <class Emit>
  void units(Emit&& emit) const {
    std::int64_t width = inputs;
    std::int64_t index = 0;
    auto const layer = [&](std::int64_t next, ops::activation with, bool last) {
      initial const start{initial::distribution::uniform, 1 / std::sqrt(static_cast<double>(width))};
      emit(mlp_layer{{.inputs = width, .outputs = next, .act = with, .start = start, .bias_start = start},
                     index,
                     index == 0,
                     last});
      width = next;
      ++index;
    };
    for (auto const next : hidden) layer(next, act, false);
    layer(outputs, ops::activation::none, true);
  }
};

[[nodiscard]] inline std::string to_string(mlp const& m) {
  std::string hidden;
  for (auto const width : m.hidden) hidden += text(hidden.empty() ? "" : ", ", width);
  char const* const names[] = {"none", "gelu", "tanh", "relu", "silu"};
  return text("nn::mlp{.inputs = ", m.inputs, ", .hidden = {", hidden, "}, .outputs = ", m.outputs,
              ", .act = ops::activation::", names[static_cast<int>(m.act)], "}");
}

}  // namespace trireme::nn
