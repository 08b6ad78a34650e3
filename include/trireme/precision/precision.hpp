#pragma once

#include <string>

#include "trireme/contract/environment.hpp"
#include "trireme/contract/slot.hpp"

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
struct fp32 {
  using policy_category = slot::precision;
  using param = float;
  using compute = float;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 1e-5;
  static constexpr std::string_view name = "fp32";
  friend bool operator==(fp32 const&, fp32 const&) = default;
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

}  // namespace trireme::precision
