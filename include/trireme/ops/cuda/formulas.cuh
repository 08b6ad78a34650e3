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

/// The type in which a kernel of these element types computes.
template <class... T>
using real_for = std::conditional_t<(std::is_same_v<T, double> || ...), double, float>;

template <class Real, class T>
__device__ __forceinline__ lane<Real> opened_lane(T x) {
  return {static_cast<Real>(wide(x))};
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
