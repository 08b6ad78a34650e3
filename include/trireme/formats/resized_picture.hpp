#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::formats {

inline constexpr std::uint64_t most_pixels = std::uint64_t{1} << 28;  ///< of a picture that is read

/// A picture in memory: (height, width, 3) bytes, red, green and blue.
struct picture {
  int height = 0;
  int width = 0;
  std::vector<unsigned char> colours{};

  [[nodiscard]] unsigned char* at(int y, int x) noexcept { return colours.data() + offset(y, x); }
  [[nodiscard]] unsigned char const* at(int y, int x) const noexcept { return colours.data() + offset(y, x); }

 private:
  [[nodiscard]] std::size_t offset(int y, int x) const noexcept {
    return (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)) * 3;
  }
};

namespace detail {

/// The part of one axis that each new number is made of, and the weights, in units of 2^-22.
struct resize_axis {
  struct range {
    int first;
    int count;
  };
  std::vector<range> ranges;
  std::vector<std::int32_t> weights;  // `most` for each new number
  std::size_t most;

  /// @param from, length  the part of the axis that becomes `made` numbers.
  resize_axis(int from, int length, int made) {
    auto const scale = static_cast<double>(length) / made;
    auto const reach = std::max(1.0, scale);  // when it shrinks, all old numbers count: this removes aliases
    most = static_cast<std::size_t>(std::ceil(reach)) * 2 + 1;
    weights.resize(most * static_cast<std::size_t>(made));
    std::vector<double> exact(most);
    for (int i = 0; i < made; ++i) {
      auto const centre = (i + 0.5) * scale;
      auto const first = std::max(0, static_cast<int>(centre - reach + 0.5));
      auto const count = std::min(length, static_cast<int>(centre + reach + 0.5)) - first;
      double sum = 0;
      for (int k = 0; k < count; ++k) {
        auto& weight = exact[static_cast<std::size_t>(k)];
        weight = std::max(0.0, 1 - std::abs((first + k - centre + 0.5) / reach));
        sum += weight;
      }
      auto* to = weights.data() + most * static_cast<std::size_t>(i);
      for (int k = 0; k < count; ++k) {
        to[k] = static_cast<std::int32_t>(std::lround(exact[static_cast<std::size_t>(k)] / sum * (1 << 22)));
      }
      ranges.push_back({from + first, count});
    }
  }
};

[[nodiscard]] inline unsigned char as_byte(std::int64_t sum) noexcept {
  return static_cast<unsigned char>(std::clamp<std::int64_t>((sum + (1 << 21)) >> 22, 0, 255));
}

}  // namespace detail

/// A rectangle of a picture, stretched or shrunk to another size.
///
/// Numerics bilinear, and antialiased: where it shrinks, each pixel is a weighted mean of all that it stands for.
///          Columns first, rounded to bytes, then rows; within 1 of Pillow's crop(box).resize(size, BILINEAR).
/// Bytes    of the result, and of `height` rows of its width.     Threads  any.
/// @pre the rectangle lies in the picture and is not empty; to_height and to_width are at least 1.
[[nodiscard]] inline picture resized(picture const& of, int top, int left, int height, int width, int to_height,
                                     int to_width) {
  detail::resize_axis const across(left, width, to_width), down(0, height, to_height);
  picture narrow{height, to_width, {}};
  narrow.colours.resize(static_cast<std::size_t>(height) * static_cast<std::size_t>(to_width) * 3);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < to_width; ++x) {
      auto const [first, count] = across.ranges[static_cast<std::size_t>(x)];
      auto const* weights = across.weights.data() + across.most * static_cast<std::size_t>(x);
      auto const* from = of.at(top + y, first);
      std::int64_t sums[3] = {};
      for (int k = 0; k < count; ++k, from += 3) {
        for (int colour = 0; colour < 3; ++colour) sums[colour] += std::int64_t{from[colour]} * weights[k];
      }
      std::transform(sums, sums + 3, narrow.at(y, x), detail::as_byte);
    }
  }
  picture out{to_height, to_width, {}};
  auto const row = static_cast<std::size_t>(to_width) * 3;
  out.colours.resize(static_cast<std::size_t>(to_height) * row);
  std::vector<std::int64_t> sums(row);
  for (int y = 0; y < to_height; ++y) {
    auto const [first, count] = down.ranges[static_cast<std::size_t>(y)];
    auto const* weights = down.weights.data() + down.most * static_cast<std::size_t>(y);
    std::fill(sums.begin(), sums.end(), 0);
    for (int k = 0; k < count; ++k) {
      auto const* from = narrow.at(first + k, 0);
      for (std::size_t i = 0; i < row; ++i) sums[i] += std::int64_t{from[i]} * weights[k];
    }
    std::transform(sums.begin(), sums.end(), out.at(y, 0), detail::as_byte);
  }
  return out;
}

/// The whole picture.
[[nodiscard]] inline picture resized(picture const& of, int height, int width) {
  return resized(of, 0, 0, of.height, of.width, height, width);
}

}  // namespace trireme::formats
