#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/simd.hpp"
#include "trireme/ops/types.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/losses.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/losses.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/losses.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

template <class T>
double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient) {
  TRIREME_DISPATCH(fits_float<T>, cross_entropy_row(logits, classes, target, weight, gradient));
}
template <class T>
double squared_error_row(T* dy, T const* y, float const* target, std::int64_t columns, double weight) {
  TRIREME_DISPATCH(fits_float<T>, squared_error_row(dy, y, target, columns, weight));
}

}  // namespace detail

/// Losses, summed over rows in double in the order of rows.
/// Errors   assertion_error (light) if the sizes do not fit; config_error (normal) for a target outside the classes.
struct host_losses {
  template <class T>
  using view = tensor_view<T, host>;

  /// The sum of -log softmax(logits)[target] over rows; a row whose target is negative is left out.
  ///
  /// Works on a chunk of rows in place, so that the logits of a whole batch need not exist at once.
  /// Shapes   logits (n, V), overwritten by weight * d(sum)/d(logits) if `gradient`; targets (n).
  /// Numerics in float with the row's maximum taken out; stable for any finite logits.
  template <class T>
  static loss_sum cross_entropy(view<T> logits, view<std::int32_t const> targets, double weight, bool gradient) {
    if (targets.empty()) return {};
    auto const classes = logits.size() / targets.size();
    detail::same_size("cross_entropy", logits.size(), targets.size() * classes);
    loss_sum loss;
    for (std::int64_t row = 0; row < targets.size(); ++row) {
      auto const target = targets[row];
      if (target >= classes && asserts(assertion_level::normal)) {
        throw config_error(
            text("trireme::ops::cross_entropy: target ", target, " is outside of ", classes, " classes"));
      }
      T* const values = raw(logits) + row * classes;
      if (target < 0) {
        if (gradient) host_elementwise::fill(logits.flat(row * classes, classes), 0.0);
        continue;
      }
      loss.sum += detail::cross_entropy_row(values, classes, target, weight, gradient);
      ++loss.count;
    }
    return loss;
  }

  /// The sum over rows of the mean over columns of (y - target)^2; dy = weight * d(sum)/dy, unless dy is empty.
  /// Shapes   y, dy, targets (n, C) or (n). dy may be y.
  template <class T>
  static loss_sum squared_error(view<T> dy, detail::input<T> y, view<float const> targets, double weight) {
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
