#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/shares.hpp"
#include "trireme/train/compatibility.hpp"

namespace trireme::detail {

/// What unequal shares need to know of a trainer.
struct shares_facts {
  bool supported = false;     ///< by the strategy, without other axes
  bool in_a_tree = false;     ///< sums are reproducible
  bool on_a_device = false;   ///< kernels run later than they are asked to
  bool synchronised = false;  ///< ranks wait for each other within a pass
};

/// Throws config_error unless fit() may give the ranks such shares.
inline void expect_shares(data::shares const& asked, shares_facts const& run, int ranks) {
  if (!asked.given()) return;
  auto const refuse = [](auto const&... parts) { return config_error(text("trireme::trainer: fit(): ", parts...)); };
  constexpr auto rule = rules::shares_need_replicas::rule;
  if (!run.supported) throw refuse(rule.sentence, "; ", rule.remedy, " [", rule.id, "]");
  asked.validate(ranks);
  if (run.in_a_tree) {
    throw refuse(
        ".shares with .reproducible: sums that do not depend on the ranks need micro-batches of equal shares; "
        "leave one of them out");
  }
  if (run.on_a_device && asked.measure_every > 0) {
    throw refuse(
        ".shares.measure_every: a device computes later than its program asks it to, so that a step's time is not "
        "known on each rank; give .weights instead");
  }
  if (run.synchronised && asked.measure_every > 0) {
    throw refuse(
        ".shares.measure_every: the model normalises over the micro-batches of all ranks, so that each rank's passes "
        "take the time of the slowest; give .weights instead");
  }
}

/// The weights of a call of fit(): those that were asked for, or those that follow from measured times.
class run_shares {
 public:
  /// @param weights  of the run: empty where shares are equal, and what a resumed run continues with if they are
  ///                 measured.
  run_shares(data::shares const& asked, std::vector<std::int64_t>& weights, group_rank own)
      : every_(asked.measure_every), own_(own), weights_(weights) {
    auto const ranks = static_cast<std::size_t>(own.size);
    if (every_ > 0 && weights_.size() == ranks) return;
    weights_ = asked.weights;
    if (every_ > 0 && weights_.empty()) weights_.assign(ranks, 1);
  }

  [[nodiscard]] bool measures() const noexcept { return every_ > 0; }

  /// Collective, after each step. Whether the weights have changed: then the next batch is divided by the new ones.
  /// @param samples  that this rank has computed, and
  /// @param seconds  the time that it needed. The first step is not counted, since it allocates.
  /// @param batch    samples of a whole step.
  template <class Comm>
  [[nodiscard]] bool count(Comm& world, std::int64_t step, std::int64_t samples, double seconds, std::int64_t batch) {
    if (std::exchange(warm_, true)) {
      samples_ += samples;
      seconds_ += seconds;
    }
    if (step % every_ != 0) return false;
    auto const ranks = static_cast<std::size_t>(own_.size);
    std::vector<std::int64_t> all(2 * ranks);
    all[static_cast<std::size_t>(own_.rank)] = std::exchange(samples_, 0);
    all[ranks + static_cast<std::size_t>(own_.rank)] = static_cast<std::int64_t>(std::exchange(seconds_, 0) * 1e9);
    world.all_reduce(tensor_view<std::int64_t>(all), reduction::sum{});
    auto const counted = std::span<std::int64_t const>(all);
    auto next = data::weights_for_equal_times(counted.first(ranks), counted.last(ranks), batch);
    bool known = false, moved = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      known = known || (all[rank] > 0 && all[ranks + rank] > 0);
      auto const at = static_cast<int>(rank);
      moved = moved || data::weighted_split(batch, next, at) != data::weighted_split(batch, weights_, at);
    }
    if (!known || !moved) return false;
    weights_ = std::move(next);
    return true;
  }

 private:
  std::int64_t every_;
  group_rank own_;
  std::vector<std::int64_t>& weights_;
  std::int64_t samples_ = 0;
  double seconds_ = 0;
  bool warm_ = false;
};

}  // namespace trireme::detail
