#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <span>
#include <type_traits>

#include "trireme/contract/parameter.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/compiled.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

/// A view that is only read and does not take part in deduction: tensors and mutable views convert to it.
template <class T>
using input = std::type_identity_t<tensor_view<T const, host>>;
/// A view that is written and does not take part in deduction.
template <class T>
using output = std::type_identity_t<tensor_view<T, host>>;

/// Throws assertion_error at level light unless the two sizes are equal.
void same_size(char const* who, std::int64_t a, std::int64_t b);

template <class T, class U>
void convert_elements(T* y, U const* x, std::int64_t n);
template <class T, class U>
void copy_elements(T* y, U const* x, std::int64_t n) {
  if constexpr (std::is_same_v<T, U>) {
    if (n > 0) std::memmove(static_cast<void*>(y), x, static_cast<std::size_t>(n) * sizeof(T));
  } else if constexpr (arithmetic_lanes<T> && arithmetic_lanes<U>) {
    convert_elements(y, x, n);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(x[i]);
  }
}
template <class T, class U>
void accumulate_elements(T* y, U const* x, std::int64_t n, double weight);
template <class T>
void scale_elements(T* y, std::int64_t n, double factor);
template <class T>
void multiply_elements(T* y, T const* a, T const* b, std::int64_t n);
template <class T>
void activate_elements(T* y, T const* x, std::int64_t n, activation act);
template <class T>
void activate_backward_elements(T* dx, T const* dy, T const* x, std::int64_t n, activation act);

template <class T>
void dropout_elements(T* y, std::int64_t n, std::int64_t position, dropout_site const& site, std::uint64_t sample);
template <class T>
void initialise_elements(T* y, std::int64_t n, initial how, std::uint64_t seed, std::uint64_t name, std::int64_t first);

}  // namespace detail

/// Kernels that treat every element alike. An element's result depends on that element only, not on its position in the
/// view; bfloat16 and float16 are computed in float and rounded once.
/// Shapes   all views of one call have the same number of elements.
/// Threads  thread-safe on different outputs.
/// Errors   assertion_error (light) if the sizes differ.
struct host_elementwise {
  template <class T>
  using view = tensor_view<T, host>;

  /// y[i] = value
  template <class T>
  static void fill(view<T> y, double value) {
    if constexpr (storage_float<T>) {
      std::fill_n(raw(y), y.size(), T(static_cast<float>(value)));
    } else if (exactly_equal(value, 0) && !std::signbit(value)) {
      if (!y.empty()) std::memset(static_cast<void*>(raw(y)), 0, y.bytes());
    } else {
      std::fill_n(raw(y), y.size(), static_cast<T>(value));
    }
  }

  /// y[i] = x[i], converted. The views may be the same, or of one type and overlap.
  template <class T, class U>
  static void copy(view<T> y, view<U> x) {
    detail::same_size("copy", y.size(), x.size());
    detail::copy_elements(raw(y), static_cast<std::remove_const_t<U> const*>(raw(x)), y.size());
  }

  /// Some columns of each row: y[row, to + c] = x[row, from + c] for c < columns, converted.
  /// Shapes   y (n, ...), x (n, ...): rows along the outermost axis.
  template <class T, class U>
  static void copy_columns(view<T> y, std::int64_t to, view<U> x, std::int64_t from, std::int64_t columns) {
    auto const rows = y.extent(0);
    detail::same_size("copy_columns", rows, x.extent(0));
    auto const y_row = rows == 0 ? 0 : y.size() / rows;
    auto const x_row = rows == 0 ? 0 : x.size() / rows;
    for (std::int64_t row = 0; row < rows; ++row) {
      detail::copy_elements(raw(y) + row * y_row + to,
                            static_cast<std::remove_const_t<U> const*>(raw(x)) + row * x_row + from, columns);
    }
  }

  /// The same for blocks of rows: y[to: b, r, c] = x[from: b, r, c], converted.
  /// Errors   assertion_error (light) if a block does not lie in its tensor.
  template <class T, class U>
  static void copy_blocks(view<T> y, block_places const& to, view<U> x, block_places const& from,
                          block_extents const& extents) {
    detail::blocks_within("copy_blocks", y.size(), to, extents);
    detail::blocks_within("copy_blocks", x.size(), from, extents);
    bool const together = to.row == extents.columns && from.row == extents.columns;
    auto const rows = together ? std::min<std::int64_t>(extents.rows, 1) : extents.rows;
    auto const columns = together ? extents.rows * extents.columns : extents.columns;
    std::remove_const_t<U> const* const source = raw(x) + from.first;
    for (std::int64_t block = 0; block < extents.blocks; ++block) {
      for (std::int64_t row = 0; row < rows; ++row) {
        detail::copy_elements(raw(y) + to.first + block * to.block + row * to.row,
                              source + block * from.block + row * from.row, columns);
      }
    }
  }

  /// Copies runs of elements: y[run.to + i] = x[run.from + i] for i < run.count.
  template <class T>
  static void copy_runs(view<T> y, detail::input<T> x, std::span<element_run const> runs) {
    for (auto const& run : runs) detail::copy_elements(raw(y) + run.to, raw(x) + run.from, run.count);
  }

  /// y[i] += x[i]
  template <class T>
  static void add(view<T> y, detail::input<T> x) {
    detail::same_size("add", y.size(), x.size());
    detail::accumulate_elements(raw(y), raw(x), y.size(), 1.0);
  }

  /// y[i] *= factor
  template <class T>
  static void scale(view<T> y, double factor) {
    detail::scale_elements(raw(y), y.size(), factor);
  }

  /// y[i] += weight * x[i]
  template <class T, class U>
  static void accumulate(view<T> y, view<U> x, double weight) {
    detail::same_size("accumulate", y.size(), x.size());
    detail::accumulate_elements(raw(y), static_cast<std::remove_const_t<U> const*>(raw(x)), y.size(), weight);
  }

  /// y[i] = a[i] * b[i]; y may be a or b.
  template <class T>
  static void elementwise_product(view<T> y, detail::input<T> a, detail::input<T> b) {
    detail::same_size("elementwise_product", y.size(), a.size());
    detail::same_size("elementwise_product", y.size(), b.size());
    detail::multiply_elements(raw(y), raw(a), raw(b), y.size());
  }

  /// y[i] = act(x[i]); y may be x.
  template <class T>
  static void activate(view<T> y, detail::input<T> x, activation act) {
    detail::same_size("activate", y.size(), x.size());
    detail::activate_elements(raw(y), raw(x), y.size(), act);
  }

  /// dx[i] = dy[i] * act'(x[i]); dx may be dy.
  template <class T>
  static void activate_backward(view<T> dx, detail::input<T> dy, detail::input<T> x, activation act) {
    detail::same_size("activate_backward", dx.size(), x.size());
    detail::same_size("activate_backward", dx.size(), dy.size());
    detail::activate_backward_elements(raw(dx), raw(dy), raw(x), dx.size(), act);
  }

  /// Applies dropout in place: y[i] = 0 or y[i] / (1 - p). The same call on dy is the backward pass.
  /// Shapes   the rows of y, or of the whole that y is a range of, are split evenly over the samples of the site.
  template <class T>
  static void dropout(view<T> y, dropout_site const& site) {
    if (!site.active() || y.empty()) return;
    auto const samples = static_cast<std::int64_t>(site.samples.size());
    auto const whole = site.whole > 0 ? site.whole : y.size();
    expects(assertion_level::light, whole % samples == 0 && site.first + y.size() <= whole, [&] {
      return text("trireme::ops::dropout: ", how_many(y.size(), "element"), " from ", site.first, " on, of ", whole,
                  agreeing(y.size(), ", does", ", do"), " not divide into ", how_many(samples, "sample"));
    });
    auto const each = whole / samples;
    for (std::int64_t at = 0; at < y.size();) {
      auto const sample = (site.first + at) / each;
      auto const position = (site.first + at) % each;
      auto const n = std::min(each - position, y.size() - at);
      auto const id = static_cast<std::uint64_t>(site.samples[static_cast<std::size_t>(sample)]);
      detail::dropout_elements(raw(y) + at, n, position, site, id);
      at += n;
    }
  }

  /// Dropout of a part of whole samples: of y (rows, fused, columns), as in the cut. Drops the same numbers as dropout
  /// of whole samples. Of the site only key, number, probability and samples count.
  template <class T>
  static void dropout_part(view<T> y, dropout_site const& site, dropout_cut const& cut) {
    if (!site.active() || y.empty()) return;
    auto const each = cut.fused * cut.columns;
    auto const rows = y.size() / each;
    detail::same_size("dropout_part", y.size(), rows * each);
    bool const whole = each == cut.width;
    for (std::int64_t row = 0; row < rows;) {
      auto const in_sample = (cut.row + row) % cut.context;
      auto const id = static_cast<std::uint64_t>(site.samples[static_cast<std::size_t>((cut.row + row) / cut.context)]);
      auto const position = cut.position(in_sample) * cut.width;
      if (whole) {  // rows of one sample at positions one after the other
        auto const n = std::min((in_sample < cut.split ? cut.split : cut.context) - in_sample, rows - row);
        detail::dropout_elements(raw(y) + row * each, n * each, position, site, id);
        row += n;
        continue;
      }
      for (std::int64_t m = 0; m < cut.fused; ++m) {
        detail::dropout_elements(raw(y) + row * each + m * cut.columns, cut.columns,
                                 position + m * (cut.width / cut.fused) + cut.column, site, id);
      }
      ++row;
    }
  }

  /// The initial values of a range of a parameter that begins with its element `first`. Element i of the parameter
  /// depends on (seed, name, i) only.
  /// Numerics computed in double; normal by Box and Muller on Philox words.
  template <class T>
  static void initialise(view<T> y, initial how, std::uint64_t seed, std::uint64_t name, std::int64_t first = 0) {
    if (how.kind == initial::distribution::zeros) return fill(y, 0.0);
    if (how.kind == initial::distribution::ones) return fill(y, 1.0);
    detail::initialise_elements(raw(y), y.size(), how, seed, name, first);
  }

  /// Copies elements from and to memory of this process, for any memory space.
  template <class T>
  static void upload(view<T> y, std::type_identity_t<std::span<T const>> x) {
    detail::same_size("upload", y.size(), static_cast<std::int64_t>(x.size()));
    detail::copy_elements(raw(y), x.data(), y.size());
  }
  template <class T>
  static void download(std::span<T> y, detail::input<T> x) {
    detail::same_size("download", static_cast<std::int64_t>(y.size()), x.size());
    detail::copy_elements(y.data(), raw(x), x.size());
  }
  /// One element, as a number in this process.
  template <class T>
  [[nodiscard]] static std::remove_const_t<T> read(view<T> x, std::int64_t index) {
    return raw(x)[index];
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/elementwise.ipp"
#endif
