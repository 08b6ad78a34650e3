#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/ops/host/simd.hpp"

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

// Sums fit into 32 bits: weights are at least 0, and those of one number add up to about 2^22.
[[nodiscard]] inline unsigned char as_byte(std::int32_t sum) noexcept {
  return static_cast<unsigned char>(std::min((sum + (1 << 21)) >> 22, 255));
}

/// Numbers [first, end) of a row that is made of `count` others.
inline void mix_rows(unsigned char const* const* rows, std::int32_t const* weights, int count, std::size_t first,
                     std::size_t end, unsigned char* to) noexcept {
  for (auto i = first; i < end; ++i) {
    std::int32_t sum = 0;
    for (int k = 0; k < count; ++k) sum += rows[k][i] * weights[k];
    to[i] = as_byte(sum);
  }
}
/// A row of pixels, from one of another length.
inline void mix_pixels(unsigned char const* row, resize_axis const& by, unsigned char* to) noexcept {
  auto const* weights = by.weights.data();
  for (auto const& [first, count] : by.ranges) {
    auto const* from = row + 3 * static_cast<std::ptrdiff_t>(first);
    std::int32_t sums[3] = {};
    for (int k = 0; k < count; ++k, from += 3) {
      for (int colour = 0; colour < 3; ++colour) sums[colour] += from[colour] * weights[k];
    }
    for (auto const sum : sums) *to++ = as_byte(sum);
    weights += by.most;
  }
}

#if TRIREME_X86
TRIREME_TARGET_AVX2_BEGIN
namespace avx2 {

using ops::detail::m128i_at;

// The same bytes.
inline void mix_rows(unsigned char const* const* rows, std::int32_t const* weights, int count, std::size_t end,
                     unsigned char* to) noexcept {
  std::size_t i = 0;
  for (; i + 16 <= end; i += 16) {
    auto low = _mm256_set1_epi32(1 << 21), high = low;
    for (int k = 0; k < count; ++k) {
      auto const* from = rows[k] + i;
      auto const weight = _mm256_set1_epi32(weights[k]);
      auto const a = _mm256_cvtepu8_epi32(_mm_loadl_epi64(m128i_at(from)));
      auto const b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(m128i_at(from + 8)));
      low = _mm256_add_epi32(low, _mm256_mullo_epi32(a, weight));
      high = _mm256_add_epi32(high, _mm256_mullo_epi32(b, weight));
    }
    // Packing works on halves of 128 bits each; the permutation mends the order.
    auto const words = _mm256_packus_epi32(_mm256_srai_epi32(low, 22), _mm256_srai_epi32(high, 22));
    auto const mended = _mm256_permute4x64_epi64(words, 0xD8);
    auto const bytes = _mm_packus_epi16(_mm256_castsi256_si128(mended), _mm256_extracti128_si256(mended, 1));
    _mm_storeu_si128(m128i_at(to + i), bytes);
  }
  detail::mix_rows(rows, weights, count, i, end, to);
}
// Reads one byte behind the pixels of `row`, and writes one behind those of `to`.
inline void mix_pixels(unsigned char const* row, resize_axis const& by, unsigned char* to) noexcept {
  auto const* weights = by.weights.data();
  auto const packing = _mm_setr_epi8(0, 4, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  for (auto const& each : by.ranges) {
    auto const* from = row + 3 * static_cast<std::ptrdiff_t>(each.first);
    auto sums = _mm_set1_epi32(1 << 21);
    for (int k = 0; k < each.count; ++k, from += 3) {
      auto const colours = _mm_cvtepu8_epi32(_mm_loadu_si32(from));
      sums = _mm_add_epi32(sums, _mm_mullo_epi32(colours, _mm_set1_epi32(weights[k])));
    }
    auto const bytes = _mm_shuffle_epi8(_mm_min_epi32(_mm_srai_epi32(sums, 22), _mm_set1_epi32(255)), packing);
    _mm_storeu_si32(to, bytes);
    to += 3;
    weights += by.most;
  }
}

}  // namespace avx2
TRIREME_TARGET_END
#endif

}  // namespace detail

/// A rectangle of a picture, stretched or shrunk to another size.
///
/// Numerics bilinear, and antialiased: where it shrinks, each pixel is a weighted mean of all that it stands for.
///          Columns first, rounded to bytes, then rows; within 1 of Pillow's crop(box).resize(size, BILINEAR). The same
///          bytes at every CPU level.
/// Bytes    of the result, and of as many rows of its width as one of its rows is made of.     Threads  any.
/// @pre the rectangle lies in the picture and is not empty; to_height and to_width are at least 1.
[[nodiscard]] inline picture resized(picture const& of, int top, int left, int height, int width, int to_height,
                                     int to_width) {
  detail::resize_axis const across(left, width, to_width), down(0, height, to_height);
  picture out{to_height, to_width, {}};
  auto const row = static_cast<std::size_t>(to_width) * 3;
  out.colours.resize(static_cast<std::size_t>(to_height) * row);
  std::vector<unsigned char> narrow(down.most * row + 1);  // row y of the rectangle: in place y % down.most
  auto const place = [&](int y) { return narrow.data() + static_cast<std::size_t>(y) % down.most * row; };
  std::vector<unsigned char const*> rows(down.most);
#if TRIREME_X86
  bool const quick = ops::detected() != ops::cpu_level::baseline;
#endif
  for (int y = 0, made = 0; y < to_height; ++y) {
    auto const [first, count] = down.ranges[static_cast<std::size_t>(y)];
    for (; made < first + count; ++made) {
#if TRIREME_X86
      // The byte behind the last pixel of all is no longer the picture's; nor is that behind the last place's row free.
      if (quick && top + made + 1 < of.height) {
        auto* const to = place(made);
        auto const next = to[row];
        detail::avx2::mix_pixels(of.at(top + made, 0), across, to);
        to[row] = next;
        continue;
      }
#endif
      detail::mix_pixels(of.at(top + made, 0), across, place(made));
    }
    for (int k = 0; k < count; ++k) rows[static_cast<std::size_t>(k)] = place(first + k);
    auto const* weights = down.weights.data() + down.most * static_cast<std::size_t>(y);
#if TRIREME_X86
    if (quick) {
      detail::avx2::mix_rows(rows.data(), weights, count, row, out.at(y, 0));
      continue;
    }
#endif
    detail::mix_rows(rows.data(), weights, count, 0, row, out.at(y, 0));
  }
  return out;
}

/// The whole picture.
[[nodiscard]] inline picture resized(picture const& of, int height, int width) {
  return resized(of, 0, 0, of.height, of.width, height, width);
}

}  // namespace trireme::formats
