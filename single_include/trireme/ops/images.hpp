// Trireme 0.1.0: trireme/ops/images.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 694ff80b27f1933e413cb12693a2a7111c9c468bb1dd357ad1f4a2687e1084e8
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/ops/images.hpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace trireme::ops {

/// A window that moves over an image: `kernel` x `kernel` pixels, moved by `stride` pixels, with `padding` missing
/// pixels around the image.
struct window {
  std::int64_t height = 0, width = 0, channels = 0;  ///< of an image
  std::int64_t kernel = 1, stride = 1, padding = 0;

  /// The number of window positions along so many pixels.
  [[nodiscard]] constexpr std::int64_t places(std::int64_t pixels) const noexcept {
    auto const room = pixels + 2 * padding - kernel;
    return room < 0 ? 0 : room / stride + 1;
  }
  [[nodiscard]] constexpr std::int64_t rows() const noexcept { return places(height); }
  [[nodiscard]] constexpr std::int64_t columns() const noexcept { return places(width); }
  [[nodiscard]] constexpr std::int64_t count() const noexcept { return rows() * columns(); }
  [[nodiscard]] constexpr std::int64_t image() const noexcept { return height * width * channels; }
  [[nodiscard]] constexpr std::int64_t numbers() const noexcept { return kernel * kernel * channels; }
  /// Whether the contents of its positions, one after the other, are the images themselves.
  [[nodiscard]] constexpr bool one_pixel() const noexcept { return kernel == 1 && stride == 1 && padding == 0; }
};

/// The image kernels of one memory space, separate from ops::on, so that programs without images do not parse them.
///
/// Images are (height, width, channels), channels innermost: the contents of the window's positions are then a matrix
/// of rows for ops::on<Space>::linear, whose result is an image again.
/// Threads  the calling one; thread-safe on different outputs.
/// Errors   assertion_error (light) if sizes do not fit.
template <class Space>
struct images_on;

namespace detail {

/// Size checks of image kernels in every memory space.
struct image_checks {
 protected:
  template <class Y, class X, class Table, class Token>
  static void positions(std::string_view who, Y const& y, X const& x, Table const& table, Token const& token) {
    auto const width = table.extent(1);
    expects(assertion_level::light, y.size() == x.size() && y.size() % width == 0 && token.size() % width == 0, [&] {
      return text("trireme::ops::", who, ": ", y.size(), " and ", x.size(), " numbers, and a token of ", token.size(),
                  ", for rows of ", width);
    });
  }
  template <class Images, class Places>
  static std::int64_t images(std::string_view who, Images const& x, Places const& y, std::int64_t each,
                             window const& at) {
    auto const n = at.image() == 0 ? 0 : x.size() / at.image();
    expects(assertion_level::light, x.size() == n * at.image() && y.size() == n * each, [&] {
      return text("trireme::ops::", who, ": ", how_many(x.size(), "number"), " of images of ", at.height, " x ",
                  at.width, " x ", at.channels, " and ", y.size(), " of ", each, " do not fit");
    });
    return n;
  }
};

}  // namespace detail

template <>
struct images_on<host> : detail::image_checks {
  template <class T>
  using view = tensor_view<T, host>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, host>>;

  /// Extracts the contents of the window at each position; missing pixels are 0.
  /// Shapes   y (images * (gap + places), kernel * kernel * channels), x (images, height * width * channels): the first
  ///          `gap` rows of each image are 0.
  template <class T>
  static void patches(view<T> y, input<T> x, window const& at, std::int64_t gap = 0) {
    auto const n = images("patches", x, y, (gap + at.count()) * at.numbers(), at);
    auto const bytes = static_cast<std::size_t>(at.channels) * sizeof(T);
    T* to = raw(y);
    for (std::int64_t i = 0; i < n; ++i) {
      to = std::fill_n(to, gap * at.numbers(), T{});
      for_each_pixel(at, raw(x) + i * at.image(), [&](T const* pixel) {
        if (pixel == nullptr) {
          std::fill_n(to, at.channels, T{});
        } else {
          std::memcpy(static_cast<void*>(to), pixel, bytes);
        }
        to += at.channels;
      });
    }
  }
  /// The transpose of patches(): dx += the sum over the positions that contained a pixel.
  template <class T>
  static void patches_backward(view<T> dx, input<T> dy, window const& at, std::int64_t gap = 0) {
    auto const n = images("patches_backward", dx, dy, (gap + at.count()) * at.numbers(), at);
    T const* from = raw(dy);
    for (std::int64_t i = 0; i < n; ++i) {
      from += gap * at.numbers();
      for_each_pixel(at, raw(dx) + i * at.image(), [&](T* pixel) {
        for (std::int64_t c = 0; c < at.channels && pixel != nullptr; ++c) pixel[c] = sum(pixel[c], from[c]);
        from += at.channels;
      });
    }
  }

  /// Learned positions of the rows of images: y[i] = x[i] + table[i % R]; with a token, rows whose i % R is 0 are token
  /// + table[0], whatever x is. Row 0 of y is row `first` of all images' rows. Shapes   x, y (rows, C); table (R, C);
  /// token (C), or empty.
  template <class T>
  static void add_positions(view<T> y, input<T> x, input<T> table, input<T> token, std::int64_t first) {
    positions("add_positions", y, x, table, token);
    auto const width = table.extent(1), rows = table.extent(0);
    for (std::int64_t row = 0; row * width < y.size(); ++row) {
      auto const position = (first + row) % rows;
      T const* const from = position == 0 && !token.empty() ? raw(token) : raw(x) + row * width;
      for (std::int64_t c = 0; c < width; ++c) raw(y)[row * width + c] = sum(from[c], raw(table)[position * width + c]);
    }
  }
  /// The gradients of add_positions: dx is written, or added to if `accumulate`, and 0 for the token's rows; dtable and
  /// dtoken are added to, in the order of rows.
  template <class T, class G>
  static void add_positions_backward(view<T> dx, input<T> dy, view<G> dtable, std::type_identity_t<view<G>> dtoken,
                                     std::int64_t first, bool accumulate) {
    positions("add_positions_backward", dx, dy, dtable, dtoken);
    auto const width = dtable.extent(1), rows = dtable.extent(0);
    for (std::int64_t row = 0; row * width < dx.size(); ++row) {
      auto const position = (first + row) % rows;
      bool const of_token = position == 0 && !dtoken.empty();
      for (std::int64_t c = 0; c < width; ++c) {
        T const d = raw(dy)[row * width + c];
        auto& into = raw(dx)[row * width + c];
        auto const add = [&](G& to) {
          to = static_cast<G>(static_cast<accumulate_t<T>>(to) + static_cast<accumulate_t<T>>(d));
        };
        add(raw(dtable)[position * width + c]);
        if (of_token) {
          add(raw(dtoken)[c]);
          if (!accumulate) into = T{};
        } else {
          into = accumulate ? sum(into, d) : d;
        }
      }
    }
  }

  /// The maximum of each channel at each position of the window.
  /// Shapes   y (images, places * channels), x (images, height * width * channels).
  template <class T>
  static void max_pool(view<T> y, input<T> x, window const& at) {
    auto const n = images("max_pool", x, y, at.count() * at.channels, at);
    for_each_largest(raw(x), n, at, [to = raw(y)](std::int64_t place, T const* largest) { to[place] = *largest; });
  }
  /// dx += dy at the maximum; of equal numbers at the first.
  template <class T>
  static void max_pool_backward(view<T> dx, input<T> dy, input<T> x, window const& at) {
    auto const n = images("max_pool_backward", dx, dy, at.count() * at.channels, at);
    for_each_largest(raw(x), n, at,
                     [to = raw(dx), first = raw(x), from = raw(dy)](std::int64_t place, T const* largest) {
                       auto& one = to[largest - first];
                       one = sum(one, from[place]);
                     });
  }

  /// The mean of each channel at each position of the window, which must have no padding.
  /// Shapes   as for max_pool.
  template <class T>
  static void average_pool(view<T> y, input<T> x, window const& at) {
    auto const n = images("average_pool", x, y, at.count() * at.channels, at);
    auto const each = accumulate_t<T>(1) / static_cast<accumulate_t<T>>(at.kernel * at.kernel);
    T* to = raw(y);
    for (std::int64_t i = 0; i < n * at.count(); ++i, to += at.channels) {
      T const* const corner = raw(x) + i / at.count() * at.image() + first_pixel(at, i % at.count());
      for (std::int64_t c = 0; c < at.channels; ++c) {
        accumulate_t<T> total = 0;
        for_each_inner(at, [&](std::int64_t pixel) { total += static_cast<accumulate_t<T>>(corner[pixel + c]); });
        to[c] = static_cast<T>(total * each);
      }
    }
  }
  /// dx += dy / pixels, at all pixels of a position.
  template <class T>
  static void average_pool_backward(view<T> dx, input<T> dy, window const& at) {
    auto const n = images("average_pool_backward", dx, dy, at.count() * at.channels, at);
    auto const each = accumulate_t<T>(1) / static_cast<accumulate_t<T>>(at.kernel * at.kernel);
    T const* from = raw(dy);
    for (std::int64_t i = 0; i < n * at.count(); ++i, from += at.channels) {
      T* const corner = raw(dx) + i / at.count() * at.image() + first_pixel(at, i % at.count());
      for_each_inner(at, [&](std::int64_t pixel) {
        for (std::int64_t c = 0; c < at.channels; ++c) {
          auto const d = static_cast<accumulate_t<T>>(from[c]) * each;
          corner[pixel + c] = static_cast<T>(static_cast<accumulate_t<T>>(corner[pixel + c]) + d);
        }
      });
    }
  }

 private:
  template <class T>
  static T sum(T a, T b) {
    return static_cast<T>(static_cast<accumulate_t<T>>(a) + static_cast<accumulate_t<T>>(b));
  }
  // The pixels of the window, position by position: a pointer to the channels of each, null for a missing pixel.
  template <class T, class F>
  static void for_each_pixel(window const& at, T* image, F const& f) {
    for (std::int64_t place = 0; place < at.count(); ++place) {
      auto const top = place / at.columns() * at.stride - at.padding;
      auto const left = place % at.columns() * at.stride - at.padding;
      for (auto row = top; row < top + at.kernel; ++row) {
        for (auto column = left; column < left + at.kernel; ++column) {
          bool const there = row >= 0 && row < at.height && column >= 0 && column < at.width;
          f(there ? image + (row * at.width + column) * at.channels : nullptr);
        }
      }
    }
  }
  // Calls f(index of position and channel, index of the maximum).
  template <class T, class F>
  static void for_each_largest(T const* x, std::int64_t images, window const& at, F const& f) {
    for (std::int64_t i = 0; i < images * at.count(); ++i) {
      auto const place = i % at.count();
      auto const top = place / at.columns() * at.stride - at.padding;
      auto const left = place % at.columns() * at.stride - at.padding;
      T const* const image = x + i / at.count() * at.image();
      for (std::int64_t c = 0; c < at.channels; ++c) {
        T const* largest = nullptr;
        accumulate_t<T> best = 0;
        for (auto row = std::max<std::int64_t>(top, 0); row < std::min(top + at.kernel, at.height); ++row) {
          for (auto column = std::max<std::int64_t>(left, 0); column < std::min(left + at.kernel, at.width); ++column) {
            T const* const one = image + (row * at.width + column) * at.channels + c;
            auto const value = static_cast<accumulate_t<T>>(*one);
            if (largest != nullptr && !(value > best) && !std::isnan(value)) continue;
            largest = one;
            best = value;
          }
        }
        f(i * at.channels + c, largest);
      }
    }
  }
  static std::int64_t first_pixel(window const& at, std::int64_t place) {
    return (place / at.columns() * at.width + place % at.columns()) * at.stride * at.channels;
  }
  // The pixels of one position, relative to its first one.
  template <class F>
  static void for_each_inner(window const& at, F const& f) {
    for (std::int64_t row = 0; row < at.kernel; ++row)
      for (std::int64_t column = 0; column < at.kernel; ++column) f((row * at.width + column) * at.channels);
  }
};

template <class Space>
requires without_elements<Space>
struct images_on<Space> : detail::image_checks {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;

  template <class T>
  static void patches(view<T> y, input<T> x, window const& at, std::int64_t gap = 0) {
    note_kernel<Space>("patches", y, x);
    images("patches", x, y, (gap + at.count()) * at.numbers(), at);
  }
  template <class T>
  static void patches_backward(view<T> dx, input<T> dy, window const& at, std::int64_t gap = 0) {
    note_kernel<Space>("patches_backward", dx, dy);
    images("patches_backward", dx, dy, (gap + at.count()) * at.numbers(), at);
  }
  template <class T>
  static void add_positions(view<T> y, input<T> x, input<T> table, input<T> token, std::int64_t) {
    note_kernel<Space>("add_positions", y, x, table, token);
    positions("add_positions", y, x, table, token);
  }
  template <class T, class G>
  static void add_positions_backward(view<T> dx, input<T> dy, view<G> dtable, std::type_identity_t<view<G>> dtoken,
                                     std::int64_t, bool) {
    note_kernel<Space>("add_positions_backward", dx, dy, dtable, dtoken);
    positions("add_positions_backward", dx, dy, dtable, dtoken);
  }
  template <class T>
  static void max_pool(view<T> y, input<T> x, window const& at) {
    note_kernel<Space>("max_pool", y, x);
    images("max_pool", x, y, at.count() * at.channels, at);
  }
  template <class T>
  static void max_pool_backward(view<T> dx, input<T> dy, input<T> x, window const& at) {
    note_kernel<Space>("max_pool_backward", dx, dy, x);
    images("max_pool_backward", dx, dy, at.count() * at.channels, at);
  }
  template <class T>
  static void average_pool(view<T> y, input<T> x, window const& at) {
    note_kernel<Space>("average_pool", y, x);
    images("average_pool", x, y, at.count() * at.channels, at);
  }
  template <class T>
  static void average_pool_backward(view<T> dx, input<T> dy, window const& at) {
    note_kernel<Space>("average_pool_backward", dx, dy);
    images("average_pool_backward", dx, dy, at.count() * at.channels, at);
  }
};

}  // namespace trireme::ops
