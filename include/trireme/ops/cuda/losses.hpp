#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "trireme/contract/numerics.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/cuda/launch.hpp"
#include "trireme/ops/cuda/losses_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/cuda/queued_losses.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Losses in CUDA memory. Views are checked as on<host> checks them.
///
/// No function waits for the stream: queued_losses are numbers when they are read.
///
/// Shapes   as on<host> has them. Rows of logits may be longer than their number of classes (cross_entropy).
/// Numerics in float, double for double; a row's exponentials of 16 bits have relative errors of 2^-21. Losses are
///          summed in double in an order that depends on their number alone. squared_error has the host's gradient, to
///          the bit.
/// Bytes    8 bytes of scratch memory of the device a row.
/// Errors   assertion_error (light) if the sizes do not fit. When the losses are read: config_error (normal) for a
///          target outside the classes; the gradients of the other rows are written.
struct cuda_losses {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<view<T const>>;
  template <class T>
  using output = std::type_identity_t<view<T>>;

  /// The rows of logits that are computed at once (ops::rows_of_logits): 0.8 GB of 16-bit numbers for 50257 words.
  [[nodiscard]] static constexpr std::int64_t rows_of_logits(std::int64_t /*words*/) noexcept { return 8192; }
  /// The length of a row of logits that begins at an address with an alignment of 128 bytes in 16-bit types, as tensor
  /// cores like it (ops::row_of_logits).
  [[nodiscard]] static constexpr std::int64_t row_of_logits(std::int64_t words) noexcept {
    return (words + 63) / 64 * 64;
  }

  /// The sum of -log softmax(logits)[target] over rows, plus `terms`, as on<host> computes it.
  /// @param classes  of a row; 0: as many as its numbers. What a longer row has beyond them is not read, and becomes 0
  ///                 with the gradient.
  template <detail::cuda_float T>
  static queued_losses cross_entropy(view<T> logits, view<std::int32_t const> targets, double weight, bool gradient,
                                     cross_entropy_terms const& terms = {}, std::int64_t classes = 0) {
    if (targets.empty()) return {};
    auto const row = logits.size() / targets.size();
    detail::same_size("cross_entropy", logits.size(), targets.size() * row);
    if (classes == 0) classes = row;
    expects(assertion_level::light, classes > 0 && classes <= row, [&] {
      return text("trireme::ops::cross_entropy: ", how_many(classes, "class"), " in rows of ", how_many(row, "number"));
    });
    auto call = called(logits, targets, classes, weight, gradient, terms);
    call.row_length = row;
    return finished(call, classes, [&] { return cuda_kernels::cross_entropy(cuda::stream(), call); });
  }

  /// The same if the classes are distributed over ranks: see on<host>::row_peaks.
  template <class T>
  requires detail::cuda_float<std::remove_const_t<T>>
  static void row_peaks(view<T> logits, output<accumulate_t<std::remove_const_t<T>>> peaks) {
    auto const classes = peaks.empty() ? 0 : logits.size() / peaks.size();
    detail::same_size("row_peaks", logits.size(), peaks.size() * classes);
    detail::expect_cuda("row_peaks", cuda_kernels::row_peaks(cuda::stream(), dtype_of<std::remove_const_t<T>>,
                                                             raw(logits), peaks.size(), classes, raw(peaks)));
  }
  template <class T>
  requires detail::cuda_float<std::remove_const_t<T>>
  static void row_masses(view<T> logits, view<std::int32_t const> targets, table_range part,
                         input<accumulate_t<std::remove_const_t<T>>> peaks,
                         output<accumulate_t<std::remove_const_t<T>>> masses,
                         output<accumulate_t<std::remove_const_t<T>>> chosen, cross_entropy_terms const& terms = {}) {
    if (targets.empty()) return;
    for (auto const size : {masses.size(), peaks.size(), chosen.size()})
      detail::same_size("row_masses", size, targets.size());
    detail::expect_cuda("row_masses",
                        cuda_kernels::row_masses(cuda::stream(), dtype_of<std::remove_const_t<T>>, raw(logits),
                                                 targets.size(), logits.size() / targets.size(), raw(targets), part,
                                                 terms.smoothing, raw(peaks), raw(masses), raw(chosen)));
  }
  template <detail::cuda_float T>
  static queued_losses cross_entropy_part(view<T> logits, view<std::int32_t const> targets, table_range part,
                                          input<accumulate_t<T>> peaks, input<accumulate_t<T>> masses,
                                          input<accumulate_t<T>> chosen, double weight, bool gradient,
                                          cross_entropy_terms const& terms = {}) {
    if (targets.empty()) return {};
    for (auto const size : {masses.size(), peaks.size(), chosen.size()})
      detail::same_size("cross_entropy_part", size, targets.size());
    auto call = called(logits, targets, logits.size() / targets.size(), weight, gradient, terms);
    call.part = part;
    return finished(call, part.whole, [&] {
      return cuda_kernels::cross_entropy_part(cuda::stream(), call, raw(peaks), raw(masses), raw(chosen));
    });
  }

  /// The sum over rows of the mean over columns of -t log(sigmoid(y)) - (1 - t) log(1 - sigmoid(y)); dy = weight *
  /// d(sum)/dy, unless dy is empty.
  /// Shapes   y, dy, targets (n, C), float or double targets in [0, 1]. dy may be y.
  /// Numerics in double.
  /// Errors   config_error for a target outside of [0, 1], NaN among them.
  template <detail::cuda_float T, class Target>
  requires std::is_floating_point_v<std::remove_const_t<Target>>
  static queued_losses binary_cross_entropy(view<T> dy, input<T> y, view<Target> targets, double weight) {
    detail::same_size("binary_cross_entropy", y.size(), targets.size());
    if (!dy.empty()) detail::same_size("binary_cross_entropy", dy.size(), y.size());
    auto const columns = y.extent(1);
    if (y.empty()) return loss_sum{0, y.extent(0)};
    return compared("binary_cross_entropy", y.size(), y.extent(0), static_cast<double>(columns),
                    [&](double* parts, cuda_kernels::loss_numbers* out) {
                      return cuda_kernels::binary_cross_entropy(
                          cuda::stream(), dtype_of<T>, dy.empty() ? nullptr : raw(dy), raw(y),
                          dtype_of<std::remove_const_t<Target>>, raw(targets), y.size(),
                          weight / static_cast<double>(columns), parts, out);
                    });
  }

  /// The sum over rows of the mean over columns of (y - target)^2; dy = weight * d(sum)/dy, unless dy is empty.
  /// Shapes   y, dy, targets (n, C) or (n). dy may be y.
  template <detail::cuda_float T>
  static queued_losses squared_error(view<T> dy, input<T> y, view<float const> targets, double weight) {
    return squared_error_of(dy, y, targets, weight);
  }
  static queued_losses squared_error(view<double> dy, view<double const> y, view<double const> targets, double weight) {
    return squared_error_of<double>(dy, y, targets, weight);
  }

 private:
  template <class T>
  static cuda_kernels::cross_entropy_call called(view<T> logits, view<std::int32_t const> targets, std::int64_t classes,
                                                 double weight, bool gradient, cross_entropy_terms const& terms) {
    cuda_kernels::cross_entropy_call call;
    call.of = dtype_of<T>;
    call.logits = raw(logits);
    call.rows = targets.size();
    call.row_length = call.classes = classes;
    call.targets = raw(targets);
    call.weight = weight;
    call.gradient = gradient;
    call.terms = terms;
    return call;
  }
  // Runs `launch` with memory for the losses of `n` parts, and for the numbers that it leaves for the host.
  template <class Launch>
  static queued_losses summed(char const* who, std::int64_t n, std::int64_t rows, double columns, std::int64_t classes,
                              Launch&& launch) {
    auto* const losses = static_cast<double*>(detail::cuda_scratch(who, static_cast<std::size_t>(n) * sizeof(double)));
    return {who, rows, columns, classes, [&](cuda_kernels::loss_numbers* out) { return launch(losses, out); }};
  }
  template <class Launch>
  static queued_losses compared(char const* who, std::int64_t n, std::int64_t rows, double columns, Launch&& launch) {
    return summed(who, cuda_kernels::parts_of_comparison(n), rows, columns, 0, launch);
  }
  template <class Launch>
  static queued_losses finished(cuda_kernels::cross_entropy_call& call, std::int64_t classes, Launch&& launch) {
    return summed("cross_entropy", call.rows, call.rows, 1, classes,
                  [&](double* losses, cuda_kernels::loss_numbers* out) {
                    call.losses = losses;
                    call.out = out;
                    return launch();
                  });
  }
  template <class T, class Target>
  static queued_losses squared_error_of(view<T> dy, input<T> y, view<Target const> targets, double weight) {
    if (y.empty()) return {};
    detail::same_size("squared_error", y.size(), targets.size());
    if (!dy.empty()) detail::same_size("squared_error", dy.size(), y.size());
    auto const rows = y.rank() == 0 ? 1 : y.extent(0);
    auto const columns = static_cast<double>(y.size() / rows);
    return compared("squared_error", y.size(), rows, columns, [&](double* parts, cuda_kernels::loss_numbers* out) {
      return cuda_kernels::squared_error(cuda::stream(), dtype_of<T>, dy.empty() ? nullptr : raw(dy), raw(y),
                                         dtype_of<Target>, raw(targets), y.size(), 2 * weight / columns, parts, out);
    });
  }
};

}  // namespace trireme::ops
