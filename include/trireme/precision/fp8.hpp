#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "trireme/contract/precision_state.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/pattern.hpp"
#include "trireme/core/text.hpp"
#include "trireme/precision/detail/tiles.hpp"

// Products of 8 and 4 bits, emulated on CPUs: operands are rounded exactly as the formats have it, each group of
// numbers with its scale, and multiplied and added as precision::bf16 does; bfloat16 has every number of these formats
// times its scale. This shows whether a model bears a format. It is slower than precision::bf16, for each operand is
// converted for each product.

namespace trireme::precision {

namespace detail {

/// Whether a product sums over the rows of this operand.
[[nodiscard]] inline bool sums_over_rows(product_operand const& which) noexcept {
  using product = product_operand::product;
  if (which.is != product_operand::role::weight) return which.of == product::weight_gradient;
  return (which.of == product::forward) != which.head;  // the weight of a head lies the other way
}
[[nodiscard]] inline tile along_sum(product_operand const& which, std::int64_t n) noexcept {
  return sums_over_rows(which) ? tile{n, 1} : tile{1, n};
}

}  // namespace detail

/// 8-bit products with fine-grained scales. Inputs, weights and gradients of nn::linear, convolutions and nn::experts
/// are rounded to E4M3; all else is as in precision::bf16: embeddings, the head, norms, attention, routers, master
/// weights, moments.
///
/// Method   [DeepSeek-AI, "DeepSeek-V3", 2024], section 3.3: a scale for each 1 x 128 numbers of inputs and gradients,
///          along the sum of the product that reads them, and for each 128 x 128 of weights. Scales are powers of two,
///          so that they add no rounding.
/// Shapes   tiles at the ends of a matrix may be smaller.
/// Bytes    as precision::bf16, and the rounded operands of one product.
/// Numerics emulated, on CPUs only. Parts of 128 products are added in float, as those parts are to each other; biases
///          get the sums of gradients that are not rounded.
/// Errors   config_error unless .tile >= 1.
struct fp8 {
  using policy_category = slot::precision;
  using param = bfloat16;
  using compute = bfloat16;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 5e-2;
  static constexpr std::string_view name = "fp8";
  std::int64_t tile = 128;
  /// Gradients get a scale for each tile x tile numbers, as weights have: with that the report's training diverged.
  bool square_gradients = false;
  bool head = false;  ///< the head's products, too
  friend bool operator==(fp8 const&, fp8 const&) = default;

  void validate() const { expect_number("precision::fp8", ".tile", tile, at_least_one); }
  [[nodiscard]] bool writes(product_operand const& which) const noexcept { return head || !which.head; }
  [[nodiscard]] detail::rounding rounding_of(product_operand const& which) const noexcept {
    using role = product_operand::role;
    bool const square = which.is == role::weight || (which.is == role::gradient && square_gradients);
    return {.of = square ? detail::tile{tile, tile} : detail::along_sum(which, tile)};
  }
  using instance = detail::rounded_operands<fp8>;
};

/// As precision::fp8 in the format MXFP8: a scale for each 32 numbers along the sum, of weights, too.
///
/// Method   [Open Compute Project, "Microscaling formats", 2023]: E4M3; a scale, E8M0, is the power of two with which
///          the largest number has the exponent of the format's largest, 448; larger numbers become 448.
struct mxfp8 {
  using policy_category = slot::precision;
  using param = bfloat16;
  using compute = bfloat16;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 5e-2;
  static constexpr std::string_view name = "mxfp8";
  bool head = false;  ///< the head's products, too
  friend bool operator==(mxfp8 const&, mxfp8 const&) = default;

  [[nodiscard]] bool writes(product_operand const& which) const noexcept { return head || !which.head; }
  [[nodiscard]] detail::rounding rounding_of(product_operand const& which) const noexcept {
    return {.of = detail::along_sum(which, 32), .by = detail::rounding::scales::of_exponent};
  }
  using instance = detail::rounded_operands<mxfp8>;
};

/// 4-bit products in the format NVFP4: numbers in E2M1, a scale in E4M3 for each 16 along the sum, and for each 16 x 16
/// of weights, so that both products that read a weight read the same.
///
/// Method   [NVIDIA, "Pretraining large language models with NVFP4", 2025]: the operands of weights' gradients are
///          first multiplied by a Hadamard matrix of 16 with signs; gradients are rounded up or down by chance, so that
///          their mean is right. Each matrix has a scale of its own beside, here a power of two.
/// Numerics as precision::fp8. What is drawn follows from the run's seed, the step and the samples. The paper keeps a
///          part of the linear layers in bfloat16: `keep` names them.
struct nvfp4 {
  using policy_category = slot::precision;
  using param = bfloat16;
  using compute = bfloat16;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 2e-1;
  static constexpr std::string_view name = "nvfp4";
  bool hadamard = true;    ///< of weights' gradients
  bool stochastic = true;  ///< rounding of gradients
  bool head = false;       ///< the head's products, too
  std::string keep{};      ///< weights whose products stay as in bf16: patterns of names, separated by spaces
  friend bool operator==(nvfp4 const&, nvfp4 const&) = default;

  [[nodiscard]] bool writes(product_operand const& which) const noexcept {
    return (head || !which.head) && !matches_any(keep, which.weight);
  }
  [[nodiscard]] detail::rounding rounding_of(product_operand const& which) const noexcept {
    using role = product_operand::role;
    return {.of = which.is == role::weight ? detail::tile{16, 16} : detail::along_sum(which, 16),
            .to = detail::rounding::numbers::e2m1,
            .by = detail::rounding::scales::e4m3,
            .turned = hadamard && which.of == product_operand::product::weight_gradient,
            .random = stochastic && which.is == role::gradient};
  }
  using instance = detail::rounded_operands<nvfp4>;
};

/// One of these, chosen at run time: one trainer is compiled for all. Bits and checkpoints are those of the chosen one.
struct rounded {
  using policy_category = slot::precision;
  using param = bfloat16;
  using compute = bfloat16;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = nvfp4::tolerance;
  static constexpr std::string_view name = "rounded";
  std::variant<fp8, mxfp8, nvfp4> chosen{};
  friend bool operator==(rounded const&, rounded const&) = default;

  void validate() const {
    if (auto const* const tiled = std::get_if<fp8>(&chosen)) tiled->validate();
  }
  [[nodiscard]] bool writes(product_operand const& which) const {
    return std::visit([&](auto const& one) { return one.writes(which); }, chosen);
  }
  [[nodiscard]] detail::rounding rounding_of(product_operand const& which) const {
    return std::visit([&](auto const& one) { return one.rounding_of(which); }, chosen);
  }
  using instance = detail::rounded_operands<rounded>;
};

[[nodiscard]] inline std::string to_string(fp8 const& p) {
  return text("precision::fp8{.tile = ", p.tile, ", .square_gradients = ", p.square_gradients, ", .head = ", p.head,
              "}");
}
[[nodiscard]] inline std::string to_string(mxfp8 const& p) { return text("precision::mxfp8{.head = ", p.head, "}"); }
[[nodiscard]] inline std::string to_string(nvfp4 const& p) {
  return text("precision::nvfp4{.hadamard = ", p.hadamard, ", .stochastic = ", p.stochastic, ", .head = ", p.head,
              ", .keep = \"", p.keep, "\"}");
}
[[nodiscard]] inline std::string to_string(rounded const& p) {
  return std::visit([](auto const& one) { return to_string(one); }, p.chosen);
}

}  // namespace trireme::precision
