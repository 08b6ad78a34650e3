#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/losses.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// One layer of a multi-layer perceptron. The `First` one reads the batch; the last one ends with a Loss in place of an
/// activation.
///
/// Shapes   x (B, inputs), y (B, outputs).
template <bool First = false, class Loss = void>
struct mlp_layer {
  static constexpr bool first = First, last = !std::is_void_v<Loss>;
  linear layer;  ///< with its inputs
  std::int64_t index = 0;
  ops::activation act = ops::activation::none;
  std::conditional_t<last, Loss, std::monostate> loss{};
  friend bool operator==(mlp_layer const&, mlp_layer const&) = default;

  [[nodiscard]] std::string name() const { return text("layers.", index); }
  [[nodiscard]] std::int64_t width() const noexcept { return layer.inputs; }
  [[nodiscard]] auto layers() const {
    if constexpr (First && last) {
      return chain(features{layer.inputs}, layer, loss);
    } else if constexpr (First) {
      return chain(features{layer.inputs}, layer, activation{act});
    } else if constexpr (last) {
      return chain(layer, loss);
    } else {
      return chain(layer, activation{act});
    }
  }
  template <class Env>
  using instance = expression<Env>;
};

/// A multi-layer perceptron: hidden layers with an activation, a linear last layer, and any loss. `nn::mlp` is the one
/// for regression, with squared errors.
///
/// Shapes   inputs (B, inputs) float; targets as the loss wants them: (B, outputs) float for squared errors.
/// Errors   config_error from validate() if a size is not positive.
/// @models  staged_model, one unit a layer.
template <class Loss>
struct mlp_with {
  using policy_category = slot::model;
  static constexpr bool made_of_layers = true;

  std::int64_t inputs = 1;
  std::vector<std::int64_t> hidden{};
  std::int64_t outputs = 1;
  ops::activation act = ops::activation::tanh;
  Loss loss{};
  friend bool operator==(mlp_with const&, mlp_with const&) = default;

  void validate() const {
    expect_number("nn::mlp", ".inputs", inputs, at_least_one);
    expect_number("nn::mlp", ".outputs", outputs, at_least_one);
    for (auto const width : hidden) expect_number("nn::mlp", ".hidden of a layer", width, at_least_one);
  }

  template <class Emit>
  void units(Emit&& put) const {
    std::int64_t width = inputs;
    auto const layer = [&](std::int64_t next) {
      initial const start{initial::distribution::uniform, 1 / std::sqrt(static_cast<double>(width))};
      linear const out{.inputs = width, .outputs = next, .start = start, .bias_start = start};
      width = next;
      return out;
    };
    if (hidden.empty()) return put(mlp_layer<true, Loss>{.layer = layer(outputs), .loss = loss});
    std::int64_t index = 0;
    for (auto const next : hidden) {
      if (index == 0) {
        put(mlp_layer<true>{layer(next), 0, act});
      } else {
        put(mlp_layer<>{layer(next), index, act});
      }
      ++index;
    }
    put(mlp_layer<false, Loss>{.layer = layer(outputs), .index = index, .loss = loss});
  }
};
/// A perceptron whose loss is the mean squared error.
using mlp = mlp_with<loss::squared_error>;

template <class Loss>
[[nodiscard]] std::string to_string(mlp_with<Loss> const& m) {
  std::string hidden;
  for (auto const width : m.hidden) hidden += text(hidden.empty() ? "" : ", ", width);
  char const* const names[] = {"none", "gelu", "tanh", "relu", "silu", "gelu_erf"};
  auto const numbers = text("{.inputs = ", m.inputs, ", .hidden = {", hidden, "}, .outputs = ", m.outputs,
                            ", .act = ops::activation::", names[static_cast<int>(m.act)], "}");
  if constexpr (std::is_same_v<Loss, loss::squared_error>)
    return text("nn::mlp", numbers);
  else
    return text("nn::mlp_with<", to_string(m.loss), ">", numbers);
}

}  // namespace trireme::nn
