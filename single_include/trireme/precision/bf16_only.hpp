// Trireme 0.1.0: trireme/precision/bf16_only.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 79136bae71db58769854d4b0354b8adb431641fed2646efed84ba258113eba24
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/precision/bf16_only.hpp
#include <string_view>

namespace trireme::precision {

/// As precision::bf16 without float master weights: 2 bytes a weight in place of 6.
///
/// Why      an update that is smaller than half of bfloat16's spacing changes nothing when the new weight is rounded to
///          the nearest. So combine it with an optimizer that rounds by chance: optim::adamw8<bfloat16>.
/// Numerics sums and gradients are float; moments of other optimizers are bfloat16, too, and rounded to the nearest.
struct bf16_only {
  using policy_category = slot::precision;
  using param = bfloat16;
  using compute = bfloat16;
  using accumulate = float;
  using reduce = float;
  using master = bfloat16;
  static constexpr double tolerance = 5e-2;
  static constexpr std::string_view name = "bf16_only";
  friend bool operator==(bf16_only const&, bf16_only const&) = default;
};

}  // namespace trireme::precision
