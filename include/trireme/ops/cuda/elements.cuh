#pragma once

#include "trireme/core/rng.hpp"
#include "trireme/ops/cuda/formulas.cuh"

// Kernels that treat every element alike: structs for for_elements (packs.cuh). bfloat16 and float16 are computed in
// float and rounded once.

namespace trireme::ops::detail::device {

/// y[i] = bits
template <class Bits>
struct filling {
  static constexpr int width = pack_width<Bits>;
  Bits* y;
  Bits bits;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    pack<Bits, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = bits;
    store(y + i, out);
  }
};

/// y[i] = x[i], converted
template <class T, class U>
struct copying {
  static constexpr int width = pack_width<T, U>;
  T* y;
  U const* x;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const in = load<Width>(x + i);
    pack<T, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      if constexpr (std::is_same_v<T, U>)
        out.values[k] = in.values[k];
      else
        out.values[k] = narrow<T>(opened_lane<real_for<T, U>>(in.values[k]).v);
    }
    store(y + i, out);
  }
};

/// Element i of the columns that are copied: y[row * y_row + column] = x[row * x_row + column], converted
template <class T, class U>
struct copying_columns {
  static constexpr int width = 1;
  T* y;
  U const* x;
  std::int64_t y_row, x_row, columns;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const row = i / columns;
    auto const column = i - row * columns;
    copying<T, U>{y + row * y_row + column, x + row * x_row + column}.template at<1>(0);
  }
};

/// y[i] += weight * x[i]
template <class T, class U>
struct accumulating {
  using real = real_for<T, U>;
  static constexpr int width = pack_width<T, U>;
  T* y;
  U const* x;
  real weight;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const in = load<Width>(x + i);
    auto out = load<Width>(y + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      out.values[k] = narrow<T>(
          fused(weight, opened_lane<real>(in.values[k]).v, opened_lane<real>(out.values[k]).v));
    }
    store(y + i, out);
  }
};

/// y[i] *= factor
template <class T>
struct scaling {
  using real = real_for<T>;
  static constexpr int width = pack_width<T>;
  T* y;
  real factor;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto out = load<Width>(y + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(product(factor, opened_lane<real>(out.values[k]).v));
    store(y + i, out);
  }
};

/// y[i] = a[i] * b[i]; y may be a or b
template <class T>
struct multiplying {
  static constexpr int width = pack_width<T>;
  T* y;
  T const* a;
  T const* b;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const of_a = load<Width>(a + i);
    auto const of_b = load<Width>(b + i);
    pack<T, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(product(wide(of_a.values[k]), wide(of_b.values[k])));
    store(y + i, out);
  }
};

/// y[i] = act(x[i]); y may be x
template <class T>
struct activating {
  using real = real_for<T>;
  static constexpr int width = pack_width<T>;
  T* y;
  T const* x;
  activation act;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto out = load<Width>(x + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k)
      out.values[k] = narrow<T>(activated(opened_lane<real>(out.values[k]), act).v);
    store(y + i, out);
  }
};

/// dx[i] = dy[i] * act'(x[i]); dx may be dy
template <class T>
struct activating_backward {
  using real = real_for<T>;
  static constexpr int width = pack_width<T>;
  T* dx;
  T const* dy;
  T const* x;
  activation act;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const in = load<Width>(x + i);
    auto out = load<Width>(dy + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      auto const slope = activation_slope(opened_lane<real>(in.values[k]), act);
      out.values[k] = narrow<T>((opened_lane<real>(out.values[k]) * slope).v);
    }
    store(dx + i, out);
  }
};

/// Dropout of numbers of one sample that begin at `position` in it; task i is the numbers that share the i-th block of
/// four random words.
template <class T>
struct dropping {
  using real = real_for<T>;
  static constexpr int width = 1;
  T* y;
  std::int64_t count, position;
  random_key key;
  std::uint32_t site;
  std::uint64_t sample;
  float threshold;
  real kept;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const block = position / 4 + i;
    auto const words = random_block(key, site, sample, static_cast<std::uint32_t>(block));
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < 4; ++k) {
      auto const at = block * 4 + k - position;
      if (at < 0 || at >= count) continue;
      auto const number = static_cast<float>(words[static_cast<std::size_t>(k)] >> 8);  // 24 bits are exact
      y[at] = number < threshold ? narrow<T>(real{0}) : narrow<T>(product(kept, opened_lane<real>(y[at]).v));
    }
  }
};

}  // namespace trireme::ops::detail::device
