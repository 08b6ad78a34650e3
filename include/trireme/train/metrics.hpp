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

/// What `trainer.evaluate(data, metrics...)` counts over a dataset, beside the loss. A metric of your own has these two
/// functions and, for its reader, whatever follows from the counts.
///
/// Requires  add(outputs, targets): counts some samples, whose outputs are those of predict(), (n, outputs), and whose
///           targets are the dataset's, (n, ...); counts(): the numbers counted so far, as many on every rank. The
///           trainer adds them up over the ranks, exactly, because they are integers.
template <class M>
concept metric_policy = std::copyable<M> &&
    requires(M& metric, tensor_view<float const> outputs, any_view<host> const& targets) {
  metric.add(outputs, targets);
  { metric.counts() } -> std::convertible_to<std::span<std::int64_t>>;
};

namespace metric {

/// exp(loss): for a model whose loss is a cross-entropy, among how many equally likely answers it hesitates.
[[nodiscard]] inline double perplexity(double loss) { return std::exp(loss); }

/// For each class, how many samples of it were given each class.
///
/// Shapes   outputs (n, classes): the largest is the class that the model gives, the first one of equals; with (n, 1)
///          class 1 is given where the output is above 0. Targets int32 (n) or (n, T), of which the last one counts,
///          because predict() gives a sequence's last outputs; those below 0 are left out. With (n, 1) targets may be
///          float: class 1 is above 1/2.
/// Errors   config_error for a target that is no class, or another number of outputs; numeric_error for an output that
///          is NaN, of which nobody can say which class it gives (an infinite one is the largest).
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
                                 " is NaN, so the model gives no class; look at its parameters and at the inputs"));
      }
      auto const given = width == 1 ? std::int64_t{row[0] > 0} : std::max_element(row, row + width) - row;
      ++counts_[static_cast<std::size_t>(wanted * classes_ + given)];
    }
  }
  [[nodiscard]] std::span<std::int64_t> counts() noexcept { return counts_; }

  [[nodiscard]] std::int64_t classes() const noexcept { return classes_; }
  /// Samples of class `wanted` that were given class `given`.
  [[nodiscard]] std::int64_t count(std::int64_t wanted, std::int64_t given) const {
    return counts_[static_cast<std::size_t>(wanted * classes_ + given)];
  }
  /// Samples that were given their class, of all samples; 0 if there are none, as all shares here.
  [[nodiscard]] double accuracy() const {
    std::int64_t right = 0, all = 0;
    for (std::int64_t c = 0; c < classes_; ++c) {
      right += count(c, c);
      all += samples(c);
    }
    return share_of(right, all);
  }
  /// Of the samples that were given class c, those that are of it.
  [[nodiscard]] double precision(std::int64_t c) const {
    std::int64_t given = 0;
    for (std::int64_t other = 0; other < classes_; ++other) given += count(other, c);
    return share_of(count(c, c), given);
  }
  /// Of the samples of class c, those that were given it.
  [[nodiscard]] double recall(std::int64_t c) const { return share_of(count(c, c), samples(c)); }
  /// The harmonic mean of precision and recall.
  [[nodiscard]] double f1(std::int64_t c) const {
    auto const p = precision(c), r = recall(c);
    return exactly_equal(p + r, 0) ? 0 : 2 * p * r / (p + r);
  }
  /// The mean of all classes' f1.
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
  static double share_of(std::int64_t some, std::int64_t all) {
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
