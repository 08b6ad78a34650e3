#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "trireme/contract/precision_state.hpp"
#include "trireme/core/float4.hpp"
#include "trireme/core/float8.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::precision::detail {

/// Which numbers of a matrix share a scale.
struct tile {
  std::int64_t rows = 1, columns = 1;
};

/// How an operand of a product is rounded.
struct rounding {
  enum class numbers { e4m3, e2m1 };
  /// The smallest power of two with which no number is larger than the format's largest; the power of two with which
  /// the largest number has the exponent of the format's largest, so that it may be cut; or an E4M3 number, times a
  /// power of two for the whole matrix.
  enum class scales { holds_all, of_exponent, e4m3 };
  tile of{};
  numbers to = numbers::e4m3;
  scales by = scales::holds_all;
  bool turned = false;  ///< 16 rows at a time are first multiplied by a Hadamard matrix with signs
  bool random = false;  ///< up or down by chance, so that the mean is the number
};

/// The largest number of a format, and the bits behind its point and the exponent of its smallest normal number.
template <rounding::numbers Format>
struct format;
template <>
struct format<rounding::numbers::e4m3> {
  static constexpr float max = 448;
  static constexpr int fraction = 3, least = -6;
};
template <>
struct format<rounding::numbers::e2m1> {
  static constexpr float max = 6;
  static constexpr int fraction = 1, least = 0;
};

/// A power of two.
[[nodiscard]] constexpr float power_of_two(int exponent) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// The nearest number of the format, of ties the even one; its largest for larger ones.
template <rounding::numbers Format>
[[nodiscard]] inline float nearest(float y) noexcept {
  using f = format<Format>;
  constexpr int shift = 23 - f::fraction;
  constexpr float spaced = power_of_two(f::least - f::fraction + 23);  // next to it, floats have that spacing
  auto const raw = std::bit_cast<std::uint32_t>(y);
  auto const size = raw & 0x7fff'ffffU;
  auto const normal = (size + (1U << (shift - 1)) - 1 + (size >> shift & 1U)) & ~((1U << shift) - 1);
  auto const small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + spaced - spaced);
  auto const least = std::bit_cast<std::uint32_t>(power_of_two(f::least));
  auto const most = std::bit_cast<std::uint32_t>(f::max);
  return std::bit_cast<float>(std::min(size < least ? small : normal, most) | (raw & 0x8000'0000U));
}
/// One of the two numbers of the format around y: the larger one if `chance`, of [0, 1), is below y's place between
/// them.
template <rounding::numbers Format>
[[nodiscard]] inline float by_chance(float y, float chance) noexcept {
  using f = format<Format>;
  auto const size = std::min(std::abs(y), f::max);
  int const exponent = static_cast<int>(std::bit_cast<std::uint32_t>(size) >> 23) - 127;
  float const unit = power_of_two(std::max(exponent, f::least) - f::fraction);
  float const below = std::floor(size / unit);
  return std::copysign((below + (size / unit - below > chance ? 1.0F : 0.0F)) * unit, y);
}

/// Which random numbers round a matrix.
struct random_site {
  random_key key{};
  std::uint32_t number = 0;
};

/// Rounds matrices, each tile with a scale of its own, and multiplies by the scale again. Tiles at the ends may be
/// smaller. A tile with a NaN or an infinity is copied.
class tiles {
 public:
  template <class T>
  void round(tensor_view<T const> from, tensor_view<T> to, rounding const& how, random_site const& random = {}) {
    width_ = from.extents().rank() == 0 ? 1 : from.extent(from.extents().rank() - 1);
    height_ = width_ == 0 ? 0 : from.size() / width_;
    if (height_ == 0) return;
    if (how.turned) {
      turn(from.address());
      round_from(turned_.data(), to.address(), how, random);
    } else {
      round_from(from.address(), to.address(), how, random);
    }
  }

 private:
  template <class S, class T>
  void round_from(S const* in, T* out, rounding const& how, random_site const& random) {
    if (how.to == rounding::numbers::e2m1) return round_to<rounding::numbers::e2m1>(in, out, how, random);
    round_to<rounding::numbers::e4m3>(in, out, how, random);
  }

  template <rounding::numbers Format, class S, class T>
  void round_to(S const* in, T* out, rounding const& how, random_site const& random) {
    float whole = 1;
    if (how.by == rounding::scales::e4m3) {
      largest_.assign(1, 0);
      look(in, 0, height_, {height_, width_});
      if (largest_[0] >= infinite) {
        for (std::int64_t i = 0; i < height_ * width_; ++i) out[i] = static_cast<T>(static_cast<float>(in[i]));
        return;
      }
      whole = scale_of(std::bit_cast<float>(largest_[0]), format<Format>::max * 448, true);
    }
    auto const across = (width_ + how.of.columns - 1) / how.of.columns;
    for (std::int64_t top = 0; top < height_; top += how.of.rows) {
      auto const bottom = std::min(height_, top + how.of.rows);
      largest_.assign(static_cast<std::size_t>(across), 0);
      look(in, top, bottom, how.of);
      scales_.resize(largest_.size());
      for (std::size_t i = 0; i < largest_.size(); ++i) {
        auto const most = std::bit_cast<float>(largest_[i]);
        scales_[i] = 0;  // of tiles that are copied
        if (largest_[i] == 0 || largest_[i] >= infinite) continue;
        if (how.by == rounding::scales::e4m3) {
          auto const smallest = power_of_two(-9);  // of E4M3 above 0
          auto const wanted = most / whole / format<Format>::max;
          scales_[i] = std::max(nearest<rounding::numbers::e4m3>(wanted), smallest) * whole;
        } else {
          scales_[i] = scale_of(most, format<Format>::max, how.by == rounding::scales::holds_all);
        }
      }
      for (auto row = top; row < bottom; ++row) write<Format>(in, out, row, how, random);
    }
  }

  // The largest size of each tile's numbers, as bits: in the order of floats, and those of infinities and NaN behind.
  template <class S>
  void look(S const* in, std::int64_t top, std::int64_t bottom, tile const& of) {
    auto const bits = [](S x) { return std::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0x7fff'ffffU; };
    for (auto row = top; row < bottom; ++row) {
      auto const* const line = in + row * width_;
      if (of.columns == 1) {
        for (std::int64_t i = 0; i < width_; ++i) {
          auto& most = largest_[static_cast<std::size_t>(i)];
          most = std::max(most, bits(line[i]));
        }
        continue;
      }
      for (std::int64_t first = 0, at = 0; first < width_; first += of.columns, ++at) {
        auto const end = std::min(width_, first + of.columns);
        auto most = largest_[static_cast<std::size_t>(at)];
        for (auto i = first; i < end; ++i) most = std::max(most, bits(line[i]));
        largest_[static_cast<std::size_t>(at)] = most;
      }
    }
  }

  template <rounding::numbers Format, class S, class T>
  void write(S const* in, T* out, std::int64_t row, rounding const& how, random_site const& random) {
    auto const* const line = in + row * width_;
    auto* const to = out + row * width_;
    for (std::int64_t first = 0, at = 0; first < width_; ++at) {
      // One tile's part of the row, or, of tiles of one column, all of it.
      bool const each = how.of.columns == 1;
      auto const end = each ? width_ : std::min(width_, first + how.of.columns);
      auto const* const scales = scales_.data() + at;
      for (auto i = first; !how.random && i < end; ++i) {
        auto const x = static_cast<float>(line[i]);
        auto const scale = scales[each ? i : 0];
        to[i] = static_cast<T>(scale > 0 ? nearest<Format>(x / scale) * scale : x);
      }
      for (auto i = first; how.random && i < end; ++i) {
        auto const x = static_cast<float>(line[i]);
        auto const scale = scales[each ? i : 0];
        to[i] = static_cast<T>(scale > 0 ? by_chance<Format>(x / scale, chance(random, row * width_ + i)) * scale : x);
      }
      first = end;
    }
  }

  // A number of [0, 1) for each element.
  [[nodiscard]] float chance(random_site const& random, std::int64_t at) {
    auto const block = static_cast<std::uint64_t>(at) / 4;
    if (block != drawn_ || at % 4 == 0 || !has_drawn_) {
      words_ = random_block(random.key, random.number, block, 0);
      drawn_ = block;
      has_drawn_ = true;
    }
    return unit_float(words_[static_cast<std::size_t>(at) % 4]);
  }

  /// The smallest power of two with which `end` times it holds `largest`, or the one below it. Its inverse is a number.
  [[nodiscard]] static float scale_of(float largest, float end, bool holds_all) noexcept {
    int const exponent = std::clamp(std::ilogb(largest) - std::ilogb(end), -126, 126);
    float const scale = power_of_two(exponent);
    return holds_all && largest > end * scale ? 2 * scale : scale;
  }

  // Blocks of 16 rows times a Hadamard matrix with signs, an orthogonal matrix: the product of two such matrices along
  // their rows stays what it was. Rows at the end, fewer than 16, stay as they are.
  template <class T>
  void turn(T const* in) {
    constexpr std::int64_t n = 16;
    constexpr std::uint32_t negative = 0x9a3cU;  // drawn once, as the method has it
    turned_.resize(static_cast<std::size_t>(height_ * width_));
    auto* const out = turned_.data();
    for (std::int64_t i = 0; i < height_ * width_; ++i) out[i] = static_cast<float>(in[i]);
    for (std::int64_t top = 0; top + n <= height_; top += n) {
      for (std::int64_t row = 0; row < n; ++row) {
        float const sign = (negative >> row & 1U) != 0 ? -0.25F : 0.25F;
        for (std::int64_t i = 0; i < width_; ++i) out[(top + row) * width_ + i] *= sign;
      }
      for (std::int64_t half = 1; half < n; half *= 2) {
        for (std::int64_t row = 0; row < n; ++row) {
          if ((row & half) != 0) continue;
          auto* const a = out + (top + row) * width_;
          auto* const b = a + half * width_;
          for (std::int64_t i = 0; i < width_; ++i) {
            float const sum = a[i] + b[i], difference = a[i] - b[i];
            a[i] = sum, b[i] = difference;
          }
        }
      }
    }
  }

  static constexpr std::uint32_t infinite = 0x7f80'0000U;
  std::int64_t width_ = 0, height_ = 0;
  std::vector<std::uint32_t> largest_;
  std::vector<float> scales_, turned_;
  std::array<std::uint32_t, 4> words_{};
  std::uint64_t drawn_ = 0;
  bool has_drawn_ = false;
};

/// The run state of a precision that rounds the operands of products in tiles. It has no numbers to keep: what is drawn
/// follows from the step, the samples, the name of the weight and the product.
template <class Precision>
class rounded_operands : public plain_precision<Precision> {
 public:
  explicit rounded_operands(Precision const& what) : plain_precision<Precision>(what), what_(what) {}

  [[nodiscard]] bool writes(product_operand const& which) const { return what_.writes(which); }

  template <class Space>
  void operand(product_operand const& which, tensor_view<bfloat16 const, Space> from, tensor_view<bfloat16, Space> to) {
    static_assert(
        std::is_same_v<Space, host>,
        "trireme::precision: products of 8 and 4 bits are emulated, and on CPUs only; use precision::bf16 here");
    auto const number = static_cast<std::uint32_t>(which.of) * 3 + static_cast<std::uint32_t>(which.is);
    rounds_.round(from, to, what_.rounding_of(which), {{which.draw, hash_name(which.weight)}, number});
  }

 private:
  Precision what_;
  tiles rounds_;
};

}  // namespace trireme::precision::detail
