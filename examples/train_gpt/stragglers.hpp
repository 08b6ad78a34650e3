#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/plural.hpp"
#include "trireme/trireme.hpp"

/// Notices a rank that is slower than the others for long.
///
/// What counts is a rank's own part of its steps: without the time in which it waits for the exchange of gradients,
/// since all ranks wait for the slowest. Strategies whose ranks also wait for each other within forward and backward
/// (tensor, context, pipeline) hide a slow rank among those of its group.
class stragglers {
 public:
  static constexpr double slow = 1.5;  ///< times the median
  static constexpr int long_ = 3;      ///< comparisons in a row

  /// After each step. @param waited  all that this rank has waited so far, in seconds.
  void add(double seconds, double waited) {
    own_ += seconds - (waited - waited_);
    waited_ = waited;
    ++steps_;
  }

  /// Collective. @returns what is to be said, if a rank has just been slow for long; the same on every rank.
  template <class World>
  std::optional<std::string> compare(World& world) {
    std::vector<double> own(static_cast<std::size_t>(world.size()));
    own[static_cast<std::size_t>(world.rank())] = own_ / static_cast<double>(std::max<std::int64_t>(1, steps_));
    world.all_gather(trireme::tensor_view<double>(own));
    auto const steps = long_ * steps_;
    own_ = 0;
    steps_ = 0;
    auto sorted = own;
    auto const middle = sorted.begin() + (world.size() - 1) / 2;
    std::nth_element(sorted.begin(), middle, sorted.end());
    auto const slowest = std::max_element(own.begin(), own.end()) - own.begin();
    auto const time = own[static_cast<std::size_t>(slowest)];
    if (time <= slow * *middle) {
      rank_ = -1;
      return {};
    }
    times_ = slowest == rank_ ? times_ + 1 : 1;
    rank_ = slowest;
    if (times_ != long_) return {};  // once is enough
    return trireme::text("rank ", slowest, " is slow: its part of a step takes ", 1e3 * time, " ms, the median of the ",
                         trireme::how_many(world.size(), "rank"), " ", 1e3 * *middle, " ms, for ",
                         trireme::how_many(steps, "step"), " now; all wait for it: look at what else its machine does");
  }

 private:
  double own_ = 0;
  double waited_ = 0;
  std::int64_t steps_ = 0;
  std::ptrdiff_t rank_ = -1;  // that was slow in the last comparisons
  int times_ = 0;
};
