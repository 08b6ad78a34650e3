#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"

namespace trireme {

/// What `trainer.evaluate(data, metrics...)` counts over a dataset besides the loss. A metric of your own has these two
/// functions, and whatever functions you want to compute results from the counts.
///
/// Requires add(outputs, targets): counts some samples; outputs are those of predict(), (n, outputs), and targets the
///          dataset's, (n, ...). counts(): the numbers counted so far, equally many on every rank. They are integers,
///          so the trainer's sum over the ranks is exact.
template <class M>
concept metric_policy = std::copyable<M> &&
    requires(M& metric, tensor_view<float const> outputs, any_view<host> const& targets) {
  metric.add(outputs, targets);
  { metric.counts() } -> std::convertible_to<std::span<std::int64_t>>;
};

namespace metric {

/// exp(loss). For a cross-entropy: the number of equally probable answers that would give the same loss.
[[nodiscard]] inline double perplexity(double loss) { return std::exp(loss); }

/// The confusion matrix: for each class, how many of its samples the model assigned to each class.
///
/// Shapes   outputs (n, classes): the class of the largest output, the first of equals; outputs (n, 1): class 1 if the
///          output is above 0. Targets int32 (n) or (n, T); the last of the T counts, because predict() returns a
///          sequence's last outputs; targets below 0 are ignored. With outputs (n, 1) targets may be float: class 1 is
///          above 1/2.
/// Errors   config_error for a target that is not a class, or a wrong number of outputs; numeric_error for an output
///          that is NaN (an infinite one is the largest).
class confusion {
 public:
  explicit confusion(std::int64_t classes) : classes_(classes) {
    if (classes < 2)
      throw config_error(text("trireme::metric::confusion: ", how_many(classes, "class"), "; give at least two"));
    counts_.resize(static_cast<std::size_t>(classes * classes));
  }

  void add(tensor_view<float const> outputs, any_view<host> const& targets) {
    auto const n = outputs.extent(0), width = outputs.extent(1);
    if (width != classes_ && !(width == 1 && classes_ == 2)) {
      throw config_error(
          text("trireme::metric: the model has ", how_many(width, "output"), " for ", how_many(classes_, "class")));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      auto const wanted = class_of(targets, i, n);
      if (wanted < 0) continue;
      if (wanted >= classes_)
        throw config_error(text("trireme::metric: target ", wanted, " of ", how_many(classes_, "class")));
      auto const* const row = outputs.address() + i * width;
      for (std::int64_t c = 0; c < width; ++c) {
        if (!std::isnan(row[c])) continue;
        throw numeric_error(text("trireme::metric: output ", c, " of sample ", i, " of ", n,
                                 " is NaN, so the model gives no class; check its parameters and the inputs"));
      }
      auto const given = width == 1 ? std::int64_t{row[0] > 0} : std::max_element(row, row + width) - row;
      ++counts_[static_cast<std::size_t>(wanted * classes_ + given)];
    }
  }
  [[nodiscard]] std::span<std::int64_t> counts() noexcept { return counts_; }

  [[nodiscard]] std::int64_t classes() const noexcept { return classes_; }
  /// Samples of class `wanted` that were assigned class `given`.
  [[nodiscard]] std::int64_t count(std::int64_t wanted, std::int64_t given) const {
    return counts_[static_cast<std::size_t>(wanted * classes_ + given)];
  }
  /// The share of samples that were assigned their own class; 0 if there are no samples, like all shares here.
  [[nodiscard]] double accuracy() const {
    std::int64_t right = 0, all = 0;
    for (std::int64_t c = 0; c < classes_; ++c) {
      right += count(c, c);
      all += samples(c);
    }
    return fraction_of(right, all);
  }
  /// Of the samples that were assigned class c, the share that belongs to it.
  [[nodiscard]] double precision(std::int64_t c) const {
    std::int64_t given = 0;
    for (std::int64_t other = 0; other < classes_; ++other) given += count(other, c);
    return fraction_of(count(c, c), given);
  }
  /// Of the samples of class c, the share that was assigned it.
  [[nodiscard]] double recall(std::int64_t c) const { return fraction_of(count(c, c), samples(c)); }
  /// The harmonic mean of precision and recall.
  [[nodiscard]] double f1(std::int64_t c) const {
    auto const p = precision(c), r = recall(c);
    return exactly_equal(p + r, 0) ? 0 : 2 * p * r / (p + r);
  }
  /// The mean of f1 over all classes.
  [[nodiscard]] double macro_f1() const {
    double sum = 0;
    for (std::int64_t c = 0; c < classes_; ++c) sum += f1(c);
    return sum / static_cast<double>(classes_);
  }

 private:
  [[nodiscard]] std::int64_t samples(std::int64_t c) const {
    std::int64_t sum = 0;
    for (std::int64_t given = 0; given < classes_; ++given) sum += count(c, given);
    return sum;
  }
  static double fraction_of(std::int64_t some, std::int64_t all) {
    return all == 0 ? 0 : static_cast<double>(some) / static_cast<double>(all);
  }
  [[nodiscard]] std::int64_t class_of(any_view<host> const& targets, std::int64_t i, std::int64_t n) const {
    auto const each = n == 0 ? 0 : targets.size() / n;
    if (each == 0) throw config_error("trireme::metric: the dataset has no targets to compare outputs with");
    auto const last = i * each + each - 1;
    if (targets.type == dtype::f32 && classes_ == 2) return targets.as<float>().address()[last] > 0.5F ? 1 : 0;
    if (targets.type == dtype::f64 && classes_ == 2) return targets.as<double>().address()[last] > 0.5 ? 1 : 0;
    return targets.as<std::int32_t>("targets").address()[last];
  }

  std::int64_t classes_;
  std::vector<std::int64_t> counts_;
};

}  // namespace metric
}  // namespace trireme
