#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "trireme/contract/slot.hpp"
#include "trireme/nn/detail/expect.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/losses.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// One layer of a multi-layer perceptron. The `First` one reads the batch; the last one ends with a Loss.
///
/// Shapes   x (B, inputs), y (B, outputs).
template <bool First = false, class Loss = void>
struct mlp_layer {
  static constexpr bool first = First, last = !std::is_void_v<Loss>;
  linear layer;
  std::int64_t index = 0;
  std::conditional_t<last, Loss, std::monostate> loss{};
  friend bool operator==(mlp_layer const&, mlp_layer const&) = default;

  [[nodiscard]] std::string name() const { return text("layers.", index); }
  [[nodiscard]] std::int64_t width() const noexcept { return layer.inputs; }
  [[nodiscard]] std::uint32_t site() const noexcept { return 0; }
  [[nodiscard]] auto layers() const {
    auto product = layer;
    product.act = ops::activation::none;
    if constexpr (First && last) {
      return chain(features{layer.inputs}, product, loss);
    } else if constexpr (First) {
      return chain(features{layer.inputs}, product, activation{layer.act});
    } else if constexpr (last) {
      return chain(product, loss);
    } else {
      return chain(product, activation{layer.act});
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
    detail::expect_positive("mlp", {{"inputs", inputs}, {"outputs", outputs}});
    for (auto const width : hidden) detail::expect_positive("mlp", {{"a hidden layer", width}});
  }

  template <class Emit>
  void units(Emit&& put) const {
    std::int64_t width = inputs;
    auto const layer = [&](std::int64_t next, ops::activation with) {
      initial const start{initial::distribution::uniform, 1 / std::sqrt(static_cast<double>(width))};
      linear const out{.inputs = width, .outputs = next, .act = with, .start = start, .bias_start = start};
      width = next;
      return out;
    };
    if (hidden.empty()) return put(mlp_layer<true, Loss>{layer(outputs, ops::activation::none), 0, loss});
    std::int64_t index = 0;
    for (auto const next : hidden) {
      if (index == 0) {
        put(mlp_layer<true>{layer(next, act)});
      } else {
        put(mlp_layer<>{layer(next, act), index});
      }
      ++index;
    }
    put(mlp_layer<false, Loss>{layer(outputs, ops::activation::none), index, loss});
  }
};
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
