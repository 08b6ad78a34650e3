#pragma once

#include <string>
#include <string_view>

#include "trireme/contract/environment.hpp"
#include "trireme/contract/precision_state.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/dtype.hpp"

namespace trireme::precision {

/// Double throughout. For checks: gradients against central differences, golden tensors.
struct fp64 {
  using policy_category = slot::precision;
  using param = double;
  using compute = double;
  using accumulate = double;
  using reduce = double;
  using master = double;
  static constexpr double tolerance = 1e-11;
  static constexpr std::string_view name = "fp64";
  friend bool operator==(fp64 const&, fp64 const&) = default;
};

/// Float throughout: the default.
///
/// Numerics  with .tf32_products, for trainers in CUDA memory, the products of a model's units round their operands to
///           TF32 (ops::tf32_products): `tolerance` then is not kept.
/// Errors    config_error with .tf32_products in host memory, and for a plain model, whose products are its own.
struct fp32 {
  using policy_category = slot::precision;
  using param = float;
  using compute = float;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 1e-5;
  static constexpr std::string_view name = "fp32";
  bool tf32_products = false;
  friend bool operator==(fp32 const&, fp32 const&) = default;

  class instance : public plain_precision<fp32> {
   public:
    explicit instance(fp32 const& what) : plain_precision<fp32>(what), tf32_products_(what.tf32_products) {}
    [[nodiscard]] bool tf32_products() const noexcept { return tf32_products_; }

   private:
    bool tf32_products_;
  };
};

/// Activations and products in bfloat16, sums in float, master weights and moments in float.
///
/// Numerics  products by vdpbf16ps where the CPU has it, else by conversion to float; the two differ by rounding only.
struct bf16 {
  using policy_category = slot::precision;
  using param = bfloat16;
  using compute = bfloat16;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 2e-2;
  static constexpr std::string_view name = "bf16";
  friend bool operator==(bf16 const&, bf16 const&) = default;
};

template <class Policy>
requires requires { Policy::tolerance; }
[[nodiscard]] std::string to_string(Policy const&) { return "precision::" + std::string(Policy::name) + "{}"; }
/// Checkpoints compare this text, so that of the default stays what it was.
[[nodiscard]] inline std::string to_string(fp32 const& p) {
  return p.tf32_products ? "precision::fp32{.tf32_products = true}" : "precision::fp32{}";
}

}  // namespace trireme::precision
