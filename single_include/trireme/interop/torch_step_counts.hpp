// Trireme 0.1.0: trireme/interop/torch_step_counts.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: a0589aa830072b3949d95a221acdd562cc30b58eef9b82b12d153b296871b460
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_step_counts.hpp
#include <cstdint>

namespace trireme::interop {

/// The counts of ranks that the vote of a data_parallel step sums.
///
/// A vote sums one number of its caller's. number() puts the three counts into it, 20 bits each, so that sums over
/// fewer than 2^20 ranks stay apart; from_sum() takes them out again.
struct torch_step_counts {
  static constexpr std::int64_t base = std::int64_t{1} << 20;  ///< above every count

  std::int64_t batches = 0;    ///< ranks that had a batch
  std::int64_t undefined = 0;  ///< ranks on which autograd has produced an undefined gradient
  std::int64_t raises = 0;     ///< ranks in join(early_end::raise)

  [[nodiscard]] constexpr std::int64_t number() const noexcept {
    return batches + undefined * base + raises * base * base;
  }
  [[nodiscard]] static constexpr torch_step_counts from_sum(std::int64_t sum) noexcept {
    return {.batches = sum % base, .undefined = sum / base % base, .raises = sum / (base * base)};
  }
  friend bool operator==(torch_step_counts const&, torch_step_counts const&) = default;
};

}  // namespace trireme::interop
