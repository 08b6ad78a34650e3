#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "trireme/ops/activation.hpp"
#include "trireme/ops/cuda/packs.cuh"
#include "trireme/ops/update_constants.hpp"

// The host's formulas on a device: the same source, over lanes of one number whose operations are rounded once each.
// Results of float have the bits of the host's levels with FMA (AVX2, AVX-512). In double, exp, tanh and erf are the
// device's.

namespace trireme::ops::detail::device {

template <class Real>
struct lane {
  using real = Real;
  Real v;

  static __device__ __forceinline__ lane all(Real x) { return {x}; }
  friend __device__ __forceinline__ lane operator+(lane a, lane b) { return {sum(a.v, b.v)}; }
  friend __device__ __forceinline__ lane operator-(lane a, lane b) { return {difference(a.v, b.v)}; }
  friend __device__ __forceinline__ lane operator*(lane a, lane b) { return {product(a.v, b.v)}; }
  friend __device__ __forceinline__ lane operator/(lane a, lane b) { return {quotient(a.v, b.v)}; }
  friend __device__ __forceinline__ lane fma(lane a, lane b, lane c) { return {fused(a.v, b.v, c.v)}; }
  // The second operand is returned if one is NaN.
  friend __device__ __forceinline__ lane max(lane a, lane b) { return {a.v > b.v ? a.v : b.v}; }
  friend __device__ __forceinline__ lane min(lane a, lane b) { return {a.v < b.v ? a.v : b.v}; }
  friend __device__ __forceinline__ lane sqrt(lane a) { return {root(a.v)}; }
  friend __device__ __forceinline__ lane magnitude(lane a) { return {std::fabs(a.v)}; }
  friend __device__ __forceinline__ lane round(lane a) { return {std::rint(a.v)}; }
  friend __device__ __forceinline__ lane power_of_two(lane a) {
    if (!(a.v >= -127)) return a;  // NaN
    return {float_of(static_cast<std::uint32_t>(static_cast<std::int32_t>(a.v) + 127) << 23)};
  }
  friend __device__ __forceinline__ lane where_less(lane a, lane b, lane yes, lane no) {
    return {a.v < b.v ? yes.v : no.v};
  }
};

/// a / b, rounded once, where the magnitudes of both lie between 2^-60 and 2^60: what the compiler makes of a division
/// after it has looked whether they do.
__device__ __forceinline__ float usual_quotient(float a, float b) {
  auto const rough = quick_reciprocal(b);
  auto const reciprocal = fused(rough, fused(-b, rough, 1.0F), rough);
  auto const near = product(a, reciprocal);
  return fused(reciprocal, fused(-b, near, a), near);
}
/// 1 if it does, else 0: without a branch.
__device__ __forceinline__ unsigned is_usual(float x) {
  return static_cast<unsigned>(std::fabs(x) >= 0x1p-60F) & static_cast<unsigned>(std::fabs(x) <= 0x1p60F);
}

/// Several numbers of float at once: formulas choose their branches once for all of them, and divisions, which have a
/// slow path for quotients near the ends of the range, take it for all or for none.
template <int Width>
struct float_lanes {
  using real = float;
  float v[Width];

  template <class F>
  static __device__ __forceinline__ float_lanes each(F&& f) {
    float_lanes made;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) made.v[k] = f(k);
    return made;
  }
  static __device__ __forceinline__ float_lanes all(float x) {
    return each([&](int) { return x; });
  }
  friend __device__ __forceinline__ float_lanes operator+(float_lanes const& a, float_lanes const& b) {
    return each([&](int k) { return sum(a.v[k], b.v[k]); });
  }
  friend __device__ __forceinline__ float_lanes operator-(float_lanes const& a, float_lanes const& b) {
    return each([&](int k) { return difference(a.v[k], b.v[k]); });
  }
  friend __device__ __forceinline__ float_lanes operator*(float_lanes const& a, float_lanes const& b) {
    return each([&](int k) { return product(a.v[k], b.v[k]); });
  }
  friend __device__ __forceinline__ float_lanes operator/(float_lanes const& a, float_lanes const& b) {
    unsigned usual = 1;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) usual &= is_usual(a.v[k]) & is_usual(b.v[k]);
    if (usual != 0) return each([&](int k) { return usual_quotient(a.v[k], b.v[k]); });
    return each([&](int k) { return quotient(a.v[k], b.v[k]); });
  }
  friend __device__ __forceinline__ float_lanes fma(float_lanes const& a, float_lanes const& b, float_lanes const& c) {
    return each([&](int k) { return fused(a.v[k], b.v[k], c.v[k]); });
  }
  friend __device__ __forceinline__ float_lanes max(float_lanes const& a, float_lanes const& b) {
    return each([&](int k) { return max(lane<float>{a.v[k]}, lane<float>{b.v[k]}).v; });
  }
  friend __device__ __forceinline__ float_lanes min(float_lanes const& a, float_lanes const& b) {
    return each([&](int k) { return min(lane<float>{a.v[k]}, lane<float>{b.v[k]}).v; });
  }
  friend __device__ __forceinline__ float_lanes magnitude(float_lanes const& a) {
    return each([&](int k) { return magnitude(lane<float>{a.v[k]}).v; });
  }
  friend __device__ __forceinline__ float_lanes round(float_lanes const& a) {
    return each([&](int k) { return round(lane<float>{a.v[k]}).v; });
  }
  friend __device__ __forceinline__ float_lanes power_of_two(float_lanes const& a) {
    return each([&](int k) { return power_of_two(lane<float>{a.v[k]}).v; });
  }
  friend __device__ __forceinline__ float_lanes where_less(float_lanes const& a, float_lanes const& b,
                                                            float_lanes const& yes, float_lanes const& no) {
    return each([&](int k) { return a.v[k] < b.v[k] ? yes.v[k] : no.v[k]; });
  }
};

/// The type in which a kernel of these element types computes.
template <class... T>
using real_for = std::conditional_t<(std::is_same_v<T, double> || ...), double, float>;

template <class Real, class T>
__device__ __forceinline__ lane<Real> opened_lane(T x) {
  return {static_cast<Real>(wide(x))};
}
/// Calls f(lanes...) with the elements of packs, all of them as float_lanes, or, of double, one lane after the other;
/// returns the results as a pack.
template <class T, int Width, class F, class... Packs>
__device__ __forceinline__ pack<T, Width> with_lanes(F&& f, Packs const&... in) {
  using real = real_for<T>;
  pack<T, Width> out;
  if constexpr (std::is_same_v<real, double>) {
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(f(opened_lane<real>(in.values[k])...).v);
  } else {
    using lanes = float_lanes<Width>;
    auto const y = f(lanes::each([&](int k) { return wide(in.values[k]); })...);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(y.v[k]);
  }
  return out;
}
/// The widest pack of elements of these types that 16 bytes hold.
template <class... T>
inline constexpr int pack_width = static_cast<int>(16 / std::max({sizeof(T)...}));

template <int Width, class T>
__device__ __forceinline__ pack<T, Width> load(T const* from) {
  return *reinterpret_cast<pack<T, Width> const*>(from);
}
template <int Width, class T>
__device__ __forceinline__ void store(T* to, pack<T, Width> const& x) {
  struct words {
    std::uint32_t of[4];
  };
  if constexpr (sizeof x % sizeof(words) == 0) {
    struct all_words {
      words of[sizeof x / sizeof(words)];
    };
    auto const all = std::bit_cast<all_words>(x);
    TRIREME_DEVICE_UNROLL
    for (std::size_t i = 0; i < sizeof x / sizeof(words); ++i)
      store_words(reinterpret_cast<unsigned char*>(to) + i * sizeof(words), all.of[i].of);
  } else {
    *reinterpret_cast<pack<T, Width>*>(to) = x;
  }
}

}  // namespace trireme::ops::detail::device

#pragma push_macro("TRIREME_INLINE")
#undef TRIREME_INLINE
#define TRIREME_INLINE __device__ __forceinline__
#define TRIREME_LEVEL device
#include "trireme/ops/host/detail/simd_math.inl"
#include "trireme/ops/host/detail/update_math.inl"
#undef TRIREME_LEVEL
#pragma pop_macro("TRIREME_INLINE")
