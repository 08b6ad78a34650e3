#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

template <class T>
double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient,
                         cross_entropy_terms const& terms);
template <class T>
double target_logit(T const* logits, std::int64_t classes, std::int64_t target, std::int64_t whole, double smoothing);
template <class T>
double row_peak(T const* logits, std::int64_t classes);
template <class T>
double row_mass(T const* logits, std::int64_t classes, double peak);
template <class T>
void cross_entropy_slope(T* logits, std::int64_t classes, std::int64_t target, double weight, double peak, double mass,
                         cross_entropy_terms const& terms, std::int64_t whole);
template <class T, class Target>
double squared_error_row(T* dy, T const* y, Target const* target, std::int64_t columns, double weight);

}  // namespace detail

/// Losses, summed over rows in double in the order of rows.
/// Errors   assertion_error (light) if the sizes do not fit; config_error (normal) for a target outside the classes.
struct host_losses {
  template <class T>
  using view = tensor_view<T, host>;

  /// The sum of -log softmax(logits)[target] over rows, plus `terms`. Rows whose target is negative or terms.ignored do
  /// not count.
  ///
  /// Processes a block of rows in place, so that the logits of a whole batch need not exist at once.
  /// Shapes   logits (n, V), overwritten by weight * d(sum)/d(logits) if `gradient`; targets (n).
  /// Numerics in float, relative to the row's maximum; stable for any finite logits.
  template <class T>
  static loss_sum cross_entropy(view<T> logits, view<std::int32_t const> targets, double weight, bool gradient,
                                cross_entropy_terms const& terms = {}) {
    if (targets.empty()) return {};
    auto const classes = logits.size() / targets.size();
    detail::same_size("cross_entropy", logits.size(), targets.size() * classes);
    loss_sum loss;
    for (std::int64_t row = 0; row < targets.size(); ++row) {
      auto const target = targets[row];
      if (target >= classes && asserts(assertion_level::normal)) {
        throw config_error(
            text("trireme::ops::cross_entropy: target ", target, " is outside of ", how_many(classes, "class")));
      }
      T* const values = raw(logits) + row * classes;
      if (terms.leaves_out(target)) {
        if (gradient) host_elementwise::fill(logits.flat(row * classes, classes), 0.0);
        ++loss.left_out;
        continue;
      }
      loss.sum += detail::cross_entropy_row(values, classes, target, weight, gradient, terms);
      ++loss.count;
    }
    return loss;
  }

  /// The same if the classes are distributed over ranks, in three calls with a collective after each of the first two:
  /// peaks (n) become the maximum over the ranks, masses and chosen (n) their sums. All three calls get the same terms.
  /// Shapes   logits (n, classes here), peaks, masses, chosen (n); masses[i] = sum of exp(logit - peaks[i]) over the
  ///          classes here; chosen[i] = the target's logit if this rank has it, else 0; with smoothing plus the
  ///          smoothed part of the logits here.
  template <class T>
  static void row_peaks(view<T> logits, detail::output<accumulate_t<std::remove_const_t<T>>> peaks) {
    auto const classes = peaks.empty() ? 0 : logits.size() / peaks.size();
    detail::same_size("row_peaks", logits.size(), peaks.size() * classes);
    for (std::int64_t row = 0; row < peaks.size(); ++row) {
      peaks[row] = static_cast<accumulate_t<std::remove_const_t<T>>>(
          detail::row_peak(static_cast<std::remove_const_t<T> const*>(raw(logits)) + row * classes, classes));
    }
  }
  template <class T>
  static void row_masses(view<T> logits, view<std::int32_t const> targets, table_range part,
                         detail::input<accumulate_t<std::remove_const_t<T>>> peaks,
                         detail::output<accumulate_t<std::remove_const_t<T>>> masses,
                         detail::output<accumulate_t<std::remove_const_t<T>>> chosen,
                         cross_entropy_terms const& terms = {}) {
    using A = accumulate_t<std::remove_const_t<T>>;
    if (targets.empty()) return;
    auto const classes = logits.size() / targets.size();
    detail::same_size("row_masses", masses.size(), targets.size());
    for (std::int64_t row = 0; row < targets.size(); ++row) {
      std::remove_const_t<T> const* const values = raw(logits) + row * classes;
      masses[row] = static_cast<A>(detail::row_mass(values, classes, static_cast<double>(peaks[row])));
      chosen[row] =
          static_cast<A>(detail::target_logit(values, classes, targets[row] - part.first, part.whole, terms.smoothing));
    }
  }
  template <class T>
  static loss_sum cross_entropy_part(view<T> logits, view<std::int32_t const> targets, table_range part,
                                     detail::input<accumulate_t<T>> peaks, detail::input<accumulate_t<T>> masses,
                                     detail::input<accumulate_t<T>> chosen, double weight, bool gradient,
                                     cross_entropy_terms const& terms = {}) {
    if (targets.empty()) return {};
    auto const classes = logits.size() / targets.size();
    detail::same_size("cross_entropy_part", masses.size(), targets.size());
    loss_sum loss;
    for (std::int64_t row = 0; row < targets.size(); ++row) {
      auto const target = targets[row];
      if (target >= part.whole && asserts(assertion_level::normal)) {
        throw config_error(
            text("trireme::ops::cross_entropy: target ", target, " is outside of ", how_many(part.whole, "class")));
      }
      if (terms.leaves_out(target)) {
        if (gradient) host_elementwise::fill(logits.flat(row * classes, classes), 0.0);
        ++loss.left_out;
        continue;
      }
      auto const mass = static_cast<double>(masses[row]);
      auto const peak = static_cast<double>(peaks[row]);
      auto const log_mass = std::log(mass) + peak;
      loss.sum += log_mass - static_cast<double>(chosen[row]) + terms.z * log_mass * log_mass;
      ++loss.count;
      if (!gradient) continue;
      detail::cross_entropy_slope(raw(logits) + row * classes, classes, target - part.first, weight, peak, mass, terms,
                                  part.whole);
    }
    return loss;
  }

  /// The sum over rows of the mean over columns of -t log(sigmoid(y)) - (1 - t) log(1 - sigmoid(y)); dy = weight *
  /// d(sum)/dy, unless dy is empty.
  /// Shapes   y, dy, targets (n, C), float or double targets in [0, 1]. dy may be y.
  /// Numerics in double, by log1p(exp(-|y|)), summed in the order of the elements.
  /// Errors   config_error for a target outside of [0, 1], NaN among them.
  template <class T, class Target>
  static loss_sum binary_cross_entropy(view<T> dy, detail::input<T> y, view<Target> targets, double weight) {
    detail::same_size("binary_cross_entropy", y.size(), targets.size());
    if (!dy.empty()) detail::same_size("binary_cross_entropy", dy.size(), y.size());
    loss_sum loss{0, y.extent(0)};
    auto const columns = static_cast<double>(y.extent(1));
    double const each = weight / columns;
    for (std::int64_t i = 0; i < y.size(); ++i) {
      auto const at = static_cast<double>(raw(y)[i]), target = static_cast<double>(raw(targets)[i]);
      loss.sum += logistic_loss(at, target) / columns;
      if (!dy.empty()) raw(dy)[i] = static_cast<T>(static_cast<accumulate_t<T>>(each * logistic_slope(at, target)));
    }
    return loss;
  }

  /// The sum over rows of the mean over columns of (y - target)^2; dy = weight * d(sum)/dy, unless dy is empty.
  /// Shapes   y, dy, targets (n, C) or (n). dy may be y.
  template <class T>
  static loss_sum squared_error(view<T> dy, detail::input<T> y, view<float const> targets, double weight) {
    return squared_error_of(dy, y, targets, weight);
  }
  static loss_sum squared_error(view<double> dy, view<double const> y, view<double const> targets, double weight) {
    return squared_error_of<double>(dy, y, targets, weight);
  }

 private:
  template <class T, class Target>
  static loss_sum squared_error_of(view<T> dy, detail::input<T> y, view<Target const> targets, double weight) {
    if (y.empty()) return {};
    detail::same_size("squared_error", y.size(), targets.size());
    if (!dy.empty()) detail::same_size("squared_error", dy.size(), y.size());
    loss_sum loss{0, y.rank() == 0 ? 1 : y.extent(0)};
    auto const columns = y.size() / loss.count;
    for (std::int64_t row = 0; row < loss.count; ++row) {
      auto const at = row * columns;
      loss.sum += detail::squared_error_row(dy.empty() ? static_cast<T*>(nullptr) : raw(dy) + at, raw(y) + at,
                                            raw(targets) + at, columns, weight);
    }
    return loss;
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/losses.ipp"
#endif
