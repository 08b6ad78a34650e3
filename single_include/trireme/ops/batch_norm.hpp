// Trireme 0.1.0: trireme/ops/batch_norm.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: efd798f8d6bf1a65355ea7e332832adaa83e56a0d79a84b509b70f898414c03a
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/ops/batch_norm.hpp
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace trireme::ops {

/// The batch normalisation kernels of one memory space, separate from ops::on, so that programs without it do not parse
/// them. They return the sums over rows to the caller, which may add those of other ranks.
///
/// Shapes   x, y, dx, dy (n, channels); everything else (channels), in the accumulate type.
/// Numerics sums over rows are formed in double, one after the other, and rounded once.
/// Threads  the calling one; thread-safe on different outputs.
/// Errors   assertion_error (light) if sizes do not fit.
template <class Space>
struct batch_norm_on;

namespace detail {

struct batch_norm_checks {
 protected:
  template <class X, class... C>
  static void check(std::string_view who, X const& x, C const&... each) {
    bool const fits = x.rank() == 2 && ((each.size() == x.extent(1)) && ...);
    expects(assertion_level::light, fits,
            [&] { return text("trireme::ops::", who, ": sizes do not fit rows of shape ", to_string(x.extents())); });
  }
};

}  // namespace detail

template <>
struct batch_norm_on<host> : detail::batch_norm_checks {
  template <class T>
  using view = tensor_view<T, host>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, host>>;
  template <class T>
  using sums = std::type_identity_t<tensor_view<accumulate_t<std::remove_const_t<T>>, host>>;
  template <class T>
  using numbers = std::type_identity_t<tensor_view<accumulate_t<std::remove_const_t<T>> const, host>>;

  /// sum[c] = the sum of x[., c]
  template <class T>
  static void column_sums(sums<T> sum, view<T> x) {
    check("column_sums", x, sum);
    add_up<1>(
        x, [to = raw(sum)](std::int64_t c, auto const& total) { to[c] = rounded<T>(total[0]); },
        [from = raw(x)](std::int64_t at, std::int64_t) { return std::array{real(from[at])}; });
  }
  /// sum[c] = the sum of (x[., c] - mean[c])^2
  template <class T>
  static void column_squares(sums<T> sum, view<T> x, numbers<T> mean) {
    check("column_squares", x, sum, mean);
    add_up<1>(
        x, [to = raw(sum)](std::int64_t c, auto const& total) { to[c] = rounded<T>(total[0]); },
        [from = raw(x), center = raw(mean)](std::int64_t at, std::int64_t c) {
          auto const off = real(from[at]) - static_cast<double>(center[c]);
          return std::array{off * off};
        });
  }
  /// of_dy[c] = the sum of dy[., c]; of_both[c] = that of dy[., c] * (x[., c] - mean[c]) * rstd[c].
  template <class T>
  static void column_gradients(sums<T> of_dy, sums<T> of_both, view<T> dy, input<std::remove_const_t<T>> x,
                               numbers<T> mean, numbers<T> rstd) {
    check("column_gradients", dy, of_dy, of_both, mean, rstd);
    check("column_gradients", x, mean);
    add_up<2>(
        dy,
        [to = raw(of_dy), both = raw(of_both), scale = raw(rstd)](std::int64_t c, auto const& total) {
          to[c] = rounded<T>(total[0]);
          both[c] = rounded<T>(total[1] * static_cast<double>(scale[c]));
        },
        [d = raw(dy), from = raw(x), center = raw(mean)](std::int64_t at, std::int64_t c) {
          auto const one = real(d[at]);
          return std::array{one, one * (real(from[at]) - static_cast<double>(center[c]))};
        });
  }
  /// rstd = 1 / sqrt(variance + epsilon), of accumulate types.
  template <class A>
  static void inverse_deviation(view<A> rstd, input<A> variance, double epsilon) {
    expects(assertion_level::light, rstd.size() == variance.size(),
            [] { return std::string("trireme::ops::inverse_deviation: sizes differ"); });
    for (std::int64_t c = 0; c < rstd.size(); ++c)
      raw(rstd)[c] = 1 / std::sqrt(raw(variance)[c] + static_cast<A>(epsilon));
  }
  /// y = (x - mean) * rstd * gain + bias; y may be x.
  template <class T>
  static void normalise(view<T> y, input<T> x, numbers<T> mean, numbers<T> rstd, input<T> gain, input<T> bias) {
    check("normalise", y, mean, rstd, gain, bias);
    check("normalise", x, mean);
    each(y, [&, to = raw(y), from = raw(x)](std::int64_t at, std::int64_t c) {
      auto const normal = (as<T>(from[at]) - raw(mean)[c]) * raw(rstd)[c];
      to[at] = static_cast<T>(normal * as<T>(raw(gain)[c]) + as<T>(raw(bias)[c]));
    });
  }
  /// dx (+)= gain * rstd * (dy - of_dy / n - (x - mean) * rstd * of_both / n), with the sums over all n rows.
  template <class T>
  static void normalise_backward(view<T> dx, input<T> dy, input<T> x, numbers<T> mean, numbers<T> rstd, input<T> gain,
                                 numbers<T> of_dy, numbers<T> of_both, std::int64_t n, bool accumulate) {
    check("normalise_backward", dx, mean, rstd, gain, of_dy, of_both);
    check("normalise_backward", dy, mean);
    check("normalise_backward", x, mean);
    auto const share = accumulate_t<T>(1) / static_cast<accumulate_t<T>>(n);
    each(dx, [&, to = raw(dx), d = raw(dy), from = raw(x)](std::int64_t at, std::int64_t c) {
      auto const normal = (as<T>(from[at]) - raw(mean)[c]) * raw(rstd)[c];
      auto const centered = as<T>(d[at]) - share * (raw(of_dy)[c] + normal * raw(of_both)[c]);
      auto const one = as<T>(raw(gain)[c]) * raw(rstd)[c] * centered;
      to[at] = static_cast<T>(accumulate ? as<T>(to[at]) + one : one);
    });
  }

 private:
  template <class T>
  static double real(T x) {
    return static_cast<double>(static_cast<accumulate_t<T>>(x));
  }
  template <class T>
  static accumulate_t<T> as(T x) {
    return static_cast<accumulate_t<T>>(x);
  }
  template <class T>
  static auto rounded(double x) {
    return static_cast<accumulate_t<std::remove_const_t<T>>>(x);
  }
  template <class T, class F>
  static void each(view<T> x, F const& f) {
    auto const channels = x.extent(1);
    for (std::int64_t row = 0; row < x.extent(0); ++row)
      for (std::int64_t c = 0; c < channels; ++c) f(row * channels + c, c);
  }
  // Calls done(channel, sums over rows of the terms that term(element, channel) returns), a block of channels at a
  // time.
  template <std::size_t Terms, class T, class Done, class Term>
  static void add_up(view<T> x, Done const& done, Term const& term) {
    constexpr std::int64_t most = 32;
    auto const channels = x.extent(1);
    for (std::int64_t first = 0; first < channels; first += most) {
      auto const n = std::min(most, channels - first);
      std::array<std::array<double, Terms>, most> totals{};
      for (std::int64_t row = 0; row < x.extent(0); ++row) {
        for (std::int64_t c = 0; c < n; ++c) {
          auto const terms = term(row * channels + first + c, first + c);
          for (std::size_t t = 0; t < Terms; ++t) totals[static_cast<std::size_t>(c)][t] += terms[t];
        }
      }
      for (std::int64_t c = 0; c < n; ++c) done(first + c, totals[static_cast<std::size_t>(c)]);
    }
  }
};

template <class Space>
requires without_elements<Space>
struct batch_norm_on<Space> : detail::batch_norm_checks {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;
  template <class T>
  using sums = std::type_identity_t<tensor_view<accumulate_t<std::remove_const_t<T>>, Space>>;
  template <class T>
  using numbers = std::type_identity_t<tensor_view<accumulate_t<std::remove_const_t<T>> const, Space>>;

  template <class T>
  static void column_sums(sums<T> sum, view<T> x) {
    note_kernel<Space>("column_sums", sum, x);
    check("column_sums", x, sum);
  }
  template <class T>
  static void column_squares(sums<T> sum, view<T> x, numbers<T> mean) {
    note_kernel<Space>("column_squares", sum, x, mean);
    check("column_squares", x, sum, mean);
  }
  template <class T>
  static void column_gradients(sums<T> of_dy, sums<T> of_both, view<T> dy, input<std::remove_const_t<T>> x,
                               numbers<T> mean, numbers<T> rstd) {
    note_kernel<Space>("column_gradients", of_dy, of_both, dy, x, mean, rstd);
    check("column_gradients", dy, of_dy, of_both, mean, rstd);
    check("column_gradients", x, mean);
  }
  template <class A>
  static void inverse_deviation(view<A> rstd, input<A> variance, double) {
    note_kernel<Space>("inverse_deviation", rstd, variance);
    expects(assertion_level::light, rstd.size() == variance.size(),
            [] { return std::string("trireme::ops::inverse_deviation: sizes differ"); });
  }
  template <class T>
  static void normalise(view<T> y, input<T> x, numbers<T> mean, numbers<T> rstd, input<T> gain, input<T> bias) {
    note_kernel<Space>("normalise", y, x, mean, rstd, gain, bias);
    check("normalise", y, mean, rstd, gain, bias);
    check("normalise", x, mean);
  }
  template <class T>
  static void normalise_backward(view<T> dx, input<T> dy, input<T> x, numbers<T> mean, numbers<T> rstd, input<T> gain,
                                 numbers<T> of_dy, numbers<T> of_both, std::int64_t, bool) {
    note_kernel<Space>("normalise_backward", dx, dy, x, mean, rstd, gain, of_dy, of_both);
    check("normalise_backward", dx, mean, rstd, gain, of_dy, of_both);
    check("normalise_backward", dy, mean);
    check("normalise_backward", x, mean);
  }
};

}  // namespace trireme::ops
