#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/plural.hpp"
#include "trireme/trireme.hpp"

/// Detects a rank that stays slower than the others.
///
/// Measures a rank's own part of its steps, without the time in which it waits for the exchange of gradients, since all
/// ranks wait for the slowest. Under strategies whose ranks also wait for each other within forward and backward
/// (tensor, context, pipeline), a slow rank cannot be told from the others of its group.
class stragglers {
 public:
  static constexpr double slow = 1.5;  ///< times the median
  static constexpr int long_ = 3;      ///< comparisons in a row

  /// After each step. @param waited  the total time that this rank has waited so far, in seconds.
  void add(double seconds, double waited) {
    own_ += seconds - (waited - waited_);
    waited_ = waited;
    ++steps_;
  }

  /// Collective. @returns a message if a rank has just been found slow; the same on every rank.
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
    if (times_ != long_) return {};  // report it once
    return trireme::text("rank ", slowest, " is slow: its part of a step takes ", 1e3 * time, " ms, the median of the ",
                         trireme::how_many(world.size(), "rank"), " ", 1e3 * *middle, " ms, for ",
                         trireme::how_many(steps, "step"),
                         " now, and all others wait for it; check what else its machine is doing");
  }

 private:
  double own_ = 0;
  double waited_ = 0;
  std::int64_t steps_ = 0;
  std::ptrdiff_t rank_ = -1;  // the slow rank of the last comparisons
  int times_ = 0;
};
