#pragma once

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
