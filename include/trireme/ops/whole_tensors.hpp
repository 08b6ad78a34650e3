#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// One step of LAMB, with the bias corrections already computed.
struct lamb_numbers {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0;
  double correction1 = 1;  ///< 1 / (1 - beta1^t)
  double correction2 = 1;  ///< 1 / (1 - beta2^t)
  double scale = 1;        ///< of the gradient
};

/// One step of Adafactor, for a tensor of matrices (rows, columns); rows = 1: a vector, whose second moment is whole.
struct adafactor_numbers {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  double learning_rate = 0;
  double keep = 0;  ///< of the second moment
  double epsilon = 1e-30;
  double threshold = 1;
  bool scaled = true;  ///< the rate is multiplied by the root mean square of the values, at least least_scale
  double least_scale = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  double scale = 1;  ///< of the gradient
};

/// The update kernels of whole tensors in one memory space, separate from ops::on, so that programs without such an
/// optimizer do not parse them.
///
/// Shapes   all views of one call have the number of elements of `value`, unless noted.
/// Numerics in M, the type of the master values; norms and means are summed in double, in the order of the elements.
/// Threads  thread-safe on different tensors.
/// Errors   assertion_error (light) if sizes do not fit.
template <class Space>
struct whole_tensors_on;

namespace detail {

struct whole_tensor_checks {
 protected:
  template <class... Views>
  static void check(char const* who, std::int64_t n, Views const&... views) {
    expects(assertion_level::light, ((views.size() == n) && ...),
            [&] { return text("trireme::ops::", who, ": a view has not the ", n, " elements of the tensor"); });
  }
};

}  // namespace detail

template <>
struct whole_tensors_on<host> : detail::whole_tensor_checks {
  template <class T>
  using view = tensor_view<T, host>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, host>>;
  template <class T>
  using output = std::type_identity_t<tensor_view<T, host>>;

  /// first and second become the next moments; value -= rate * (|value| / |u|) * u with u = m / (sqrt(v) + epsilon) +
  /// decay * value.
  template <class M, class G>
  static void lamb(view<M> value, output<M> first, output<M> second, view<G> gradient, lamb_numbers const& how) {
    check("lamb", value.size(), first, second, gradient);
    auto const correction1 = static_cast<M>(how.correction1), correction2 = static_cast<M>(how.correction2);
    auto const keep1 = static_cast<M>(how.beta1), keep2 = static_cast<M>(how.beta2);
    auto const new1 = static_cast<M>(1 - how.beta1), new2 = static_cast<M>(1 - how.beta2);
    auto const pull = static_cast<M>(how.weight_decay), scale = static_cast<M>(how.scale);
    M *const w = raw(value), *const m = raw(first), *const v = raw(second);
    auto const* const from = raw(gradient);
    auto const direction = [&](std::int64_t i) {
      return m[i] * correction1 / (std::sqrt(v[i] * correction2) + static_cast<M>(how.epsilon)) + pull * w[i];
    };
    double squares = 0;
    for (std::int64_t i = 0; i < value.size(); ++i) {
      M const g = scale * static_cast<M>(from[i]);
      m[i] = keep1 * m[i] + new1 * g;
      v[i] = keep2 * v[i] + new2 * g * g;
      auto const u = static_cast<double>(direction(i));
      squares += u * u;
    }
    auto const length = std::sqrt(sum_of_squares(value));
    auto const ratio = length > 0 && squares > 0 ? length / std::sqrt(squares) : 1.0;
    auto const by = static_cast<M>(how.learning_rate * ratio);
    for (std::int64_t i = 0; i < value.size(); ++i) w[i] -= by * direction(i);
  }

  /// value changes by the gradient over the root of its second moment, which is kept as means of rows and columns.
  ///
  /// Shapes   direction (n): scratch; column_sums (columns): scratch; row_means (matrices, rows), column_means
  ///          (matrices, columns), or both empty and second (n); first (n), or empty without momentum.
  template <class M, class G>
  static void adafactor(view<M> value, output<M> direction, view<double> column_sums, output<M> row_means,
                        output<M> column_means, output<M> second, output<M> first, view<G> gradient,
                        adafactor_numbers const& how) {
    check("adafactor", value.size(), direction, gradient);
    auto const rows = how.rows, last = how.columns;
    M *const w = raw(value), *const u = raw(direction);
    auto const* const from = raw(gradient);
    auto const average = [&](M& moment, double now) {
      moment = static_cast<M>(how.keep * static_cast<double>(moment) + (1 - how.keep) * now);
    };
    auto const square = [&](std::int64_t i) {
      auto const g = how.scale * static_cast<double>(from[i]);
      return g * g + how.epsilon;
    };
    auto const scale = static_cast<M>(how.scale);
    for (std::int64_t i = 0; i < second.size(); ++i) {
      average(raw(second)[i], square(i));
      u[i] = scale * static_cast<M>(from[i]) / std::sqrt(raw(second)[i]);
    }
    for (std::int64_t m = 0; m * rows < row_means.size(); ++m) {  // each matrix
      auto const at = m * rows * last;
      M *const row = raw(row_means) + m * rows, *const column = raw(column_means) + m * last;
      double* const sums = raw(column_sums);
      double mean = 0;
      std::fill_n(sums, last, 0.0);
      for (std::int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (std::int64_t c = 0; c < last; ++c) {
          auto const now = square(at + r * last + c);
          sum += now;
          sums[c] += now;
        }
        average(row[r], sum / static_cast<double>(last));
        mean += static_cast<double>(row[r]) / static_cast<double>(rows);
      }
      for (std::int64_t c = 0; c < last; ++c) average(column[c], sums[c] / static_cast<double>(rows));
      for (std::int64_t r = 0; r < rows; ++r) {
        auto const of_row = static_cast<M>(std::sqrt(mean / static_cast<double>(row[r])));
        for (std::int64_t c = 0; c < last; ++c) {
          auto const i = at + r * last + c;
          u[i] = scale * static_cast<M>(from[i]) * of_row / std::sqrt(column[c]);
        }
      }
    }
    auto const size = static_cast<double>(value.size());
    auto const length = std::sqrt(sum_of_squares(direction) / size) / how.threshold;
    auto by = how.learning_rate;
    if (how.scaled) by *= std::max(how.least_scale, std::sqrt(sum_of_squares(value) / size));
    auto const pull = static_cast<M>(1 - by * how.weight_decay);
    auto const along = static_cast<M>(by / std::max(1.0, length));
    for (std::int64_t i = 0; i < value.size(); ++i) {
      M change = along * u[i];
      if (!first.empty()) change = raw(first)[i] += static_cast<M>(1 - how.momentum) * (change - raw(first)[i]);
      w[i] = pull * w[i] - change;
    }
  }

  /// velocity += (1 - momentum) * (scale * gradient - velocity); direction is that, or with `nesterov` the next one.
  template <class M, class G>
  static void muon_momentum(view<M> velocity, output<M> direction, view<G> gradient, double momentum, double by,
                            bool nesterov) {
    check("muon_momentum", velocity.size(), direction, gradient);
    auto const keep = static_cast<M>(momentum), scale = static_cast<M>(by);
    M *const v = raw(velocity), *const out = raw(direction);
    for (std::int64_t i = 0; i < velocity.size(); ++i) {
      M const g = scale * static_cast<M>(raw(gradient)[i]);
      v[i] += (1 - keep) * (g - v[i]);
      out[i] = nesterov ? g + keep * (v[i] - g) : v[i];
    }
  }
  /// x /= |x|, which counts as 1e-7 at least.
  template <class M>
  static void muon_normalise(view<M> x) {
    auto const by = static_cast<M>(1 / std::max(std::sqrt(sum_of_squares(x)), 1e-7));
    for (std::int64_t i = 0; i < x.size(); ++i) raw(x)[i] *= by;
  }
  /// y = of_x * x + of_y * y
  template <class M>
  static void muon_mix(view<M> y, input<M> x, double of_x, double of_y) {
    check("muon_mix", y.size(), x);
    auto const a = static_cast<M>(of_x), b = static_cast<M>(of_y);
    M* const to = raw(y);
    if (exactly_equal(of_y, 1)) {
      for (std::int64_t i = 0; i < y.size(); ++i) to[i] += a * raw(x)[i];
    } else {
      for (std::int64_t i = 0; i < y.size(); ++i) to[i] = a * raw(x)[i] + b * to[i];
    }
  }
  /// value = keep * value - by * direction
  template <class M>
  static void muon_step(view<M> value, input<M> direction, double keep, double by) {
    check("muon_step", value.size(), direction);
    auto const k = static_cast<M>(keep), rate = static_cast<M>(by);
    M* const to = raw(value);
    for (std::int64_t i = 0; i < value.size(); ++i) to[i] = k * to[i] - rate * raw(direction)[i];
  }

 private:
  template <class T>
  [[nodiscard]] static double sum_of_squares(view<T> x) {
    double sum = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) sum += static_cast<double>(raw(x)[i]) * static_cast<double>(raw(x)[i]);
    return sum;
  }
};

template <class Space>
requires without_elements<Space>
struct whole_tensors_on<Space> : detail::whole_tensor_checks {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;
  template <class T>
  using output = std::type_identity_t<tensor_view<T, Space>>;

  template <class M, class G>
  static void lamb(view<M> value, output<M> first, output<M> second, view<G> gradient, lamb_numbers const&) {
    note_kernel<Space>("lamb", value, first, second, gradient);
    check("lamb", value.size(), first, second, gradient);
  }
  template <class M, class G>
  static void adafactor(view<M> value, output<M> direction, view<double> x, output<M> y, output<M> z, output<M> u,
                        output<M> v, view<G> gradient, adafactor_numbers const&) {
    note_kernel<Space>("adafactor", value, direction, x, y, z, u, v, gradient);
    check("adafactor", value.size(), direction, gradient);
  }
  template <class M, class G>
  static void muon_momentum(view<M> velocity, output<M> direction, view<G> gradient, double, double, bool) {
    note_kernel<Space>("muon_momentum", velocity, direction, gradient);
    check("muon_momentum", velocity.size(), direction, gradient);
  }
  template <class M>
  static void muon_normalise(view<M> x) noexcept {
    note_kernel<Space>("muon_normalise", x);
  }
  template <class M>
  static void muon_mix(view<M> y, input<M> x, double, double) {
    note_kernel<Space>("muon_mix", y, x);
    check("muon_mix", y.size(), x);
  }
  template <class M>
  static void muon_step(view<M> value, input<M> direction, double, double) {
    note_kernel<Space>("muon_step", value, direction);
    check("muon_step", value.size(), direction);
  }
};

}  // namespace trireme::ops
