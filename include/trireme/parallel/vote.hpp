#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/numerics.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/parallel/exchange_report.hpp"

namespace trireme::parallel {

/// The decision of all ranks on a step, before any state changes: one all_reduce of integers.
///
/// Numerics the sums of squares and of losses are exact, so they do not depend on the distribution of the terms over
///          ranks. Losses are summed in the range 2^-240 to 2^240: a smaller one counts as 0, a larger one as infinite.
///          Non-finite losses add up like doubles: with an infinite loss the mean is infinite, with a NaN or with
///          infinities of both signs it is NaN.
/// Bytes    8 * (68 + 26) from each rank: less than a kilobyte, so in shared memory it travels with the announcement.
class vote {
 public:
  /// Starts the vote of another step, with this wish of the rank.
  void clear(std::int64_t wish = 0) noexcept {
    squares_ = losses_ = {};
    told_ = {};
    not_finite_ = {};
    wishes_ = wish;
    norm_known_ = true;
  }
  /// Adds this rank's losses of the step. If several ranks have the same ones, only one adds them.
  void add(loss_sum const& losses) noexcept {
    auto const size = std::abs(losses.sum);
    if (size < 0x1p240) {
      losses_.add(size < 0x1p-240 ? 0.0 : losses.sum);
    } else {
      ++(losses.sum > 0 ? not_finite_.infinite : losses.sum < 0 ? not_finite_.minus_infinite : not_finite_.nan);
    }
    told_ += {0, losses.count, losses.left_out};
  }
  /// Adds a number of the caller's that is summed over the ranks (a request to stop, say).
  void wish(std::int64_t number) noexcept { wishes_ += number; }

  /// Squares of the gradients that this rank owns; a non-finite term makes the step invalid on all ranks.
  [[nodiscard]] exact_sum& squares() noexcept { return squares_; }
  /// No rank has the summed gradients: there will be no norm.
  void without_norm() noexcept { norm_known_ = false; }

  /// Collective over all voting ranks. Returns the same result on each of them.
  template <class Comm>
  [[nodiscard]] exchange_result count(Comm& everyone) {
    numbers_.clear();
    for (auto const limb : squares_.state()) numbers_.push_back(limb);
    for (auto const limb : sent_losses()) numbers_.push_back(limb);
    for (auto const count : {not_finite_.infinite, not_finite_.minus_infinite, not_finite_.nan})
      numbers_.push_back(count);
    numbers_.push_back(told_.count);
    numbers_.push_back(told_.left_out);
    numbers_.push_back(wishes_);
    everyone.all_reduce(tensor_view<std::int64_t>(numbers_), reduction::sum{});
    auto next = numbers_.begin();
    for (auto& limb : squares_.state()) limb = *next++;
    for (auto& limb : sent_losses()) limb = *next++;
    for (auto* const count : {&not_finite_.infinite, &not_finite_.minus_infinite, &not_finite_.nan}) *count = *next++;
    told_.count = *next++;
    told_.left_out = *next++;
    auto const none = std::numeric_limits<double>::quiet_NaN();
    return {.norm = norm_known_ ? std::sqrt(squares_.value()) : none,
            .finite = squares_.non_finite() == 0,
            .votes = *next,
            .loss = mean_loss(),
            .finite_loss = not_finite_ == loss_counts{},
            .counted = told_.counted_fraction()};
  }

 private:
  // How many losses are not finite.
  struct loss_counts {
    std::int64_t infinite = 0, minus_infinite = 0, nan = 0;
    friend bool operator==(loss_counts const&, loss_counts const&) = default;
  };

  [[nodiscard]] double mean_loss() const noexcept {
    constexpr auto infinity = std::numeric_limits<double>::infinity();
    auto const& [above, below, nan] = not_finite_;
    if (above + below + nan == 0) return told_.count == 0 ? 0 : losses_.value() / static_cast<double>(told_.count);
    if (nan > 0 || (above > 0 && below > 0)) return std::numeric_limits<double>::quiet_NaN();
    return above > 0 ? infinity : -infinity;
  }
  // The limbs of the sum of losses that losses from 2^-240 to 2^240 reach. Limb i counts units of 2^(32 i - 1074), so
  // the least bit of such a loss, 2^-292, is in limb 24, and limb 43 has room above 2^240 for the sum.
  [[nodiscard]] std::span<std::int64_t> sent_losses() noexcept {
    constexpr std::size_t first = 24, count = 20;
    static_assert(32 * first <= 1074 - 240 - 52 && 32 * (first + count) > 1074 + 240 + 64);
    return losses_.state().subspan(first, count);
  }

  exact_sum squares_, losses_;
  loss_sum told_;  // counts alone
  loss_counts not_finite_;
  std::int64_t wishes_ = 0;
  bool norm_known_ = true;
  std::vector<std::int64_t> numbers_;  // kept to avoid allocation
};

}  // namespace trireme::parallel
