#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/host/target.hpp"
#include "trireme/ops/types.hpp"

#if TRIREME_X86
#include <immintrin.h>
#endif

// Vectors of float lanes, one type per CPU level, so that a kernel is written once: a `.inl` file is a set of function
// templates over the lanes of the namespace TRIREME_LEVEL, and is included once for each level inside that level's
// region. Kernels contain no lambda (g++ compiles those for the baseline). double runs on the baseline.
//
// A multiplication followed by an addition is written as fma(): otherwise the compiler's contraction could differ
// between the body of a loop and its tail, and an element's result would depend on where a slice begins. Where all
// levels have to compute the same bits, it is a sum with rounded_product(), whose empty assembly hides the product from
// contraction.
#define TRIREME_INLINE inline __attribute__((always_inline))

#if TRIREME_X86
#define TRIREME_LEVEL_AVX2_BEGIN TRIREME_TARGET_AVX2_BEGIN
#define TRIREME_LEVEL_AVX512_BEGIN TRIREME_TARGET_AVX512_BEGIN
#define TRIREME_LEVEL_AVX512_BF16_BEGIN TRIREME_TARGET_AVX512_BF16_BEGIN
#define TRIREME_LEVEL_END TRIREME_TARGET_END
#else
#define TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL_AVX512_BF16_BEGIN
#define TRIREME_LEVEL_END
#endif

#if TRIREME_X86
namespace trireme::ops::detail {
// Pointer types for loads and stores of any alignment.
TRIREME_INLINE __m128i* m128i_at(void* address) { return static_cast<__m128i*>(address); }
TRIREME_INLINE __m128i const* m128i_at(void const* address) { return static_cast<__m128i const*>(address); }
TRIREME_INLINE __m256i* m256i_at(void* address) { return static_cast<__m256i*>(address); }
TRIREME_INLINE __m256i const* m256i_at(void const* address) { return static_cast<__m256i const*>(address); }
}  // namespace trireme::ops::detail
#endif

/// Unrolls the next loop, whose bounds are constants, so that arrays of lanes stay in registers at -O2 too.
#if defined(__clang__)
#define TRIREME_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TRIREME_UNROLL _Pragma("GCC unroll 32")
#endif

/// Runs the body for i = 0, width, 2 width, ... < n. `count` is the number of valid lanes: a constant except for the
/// last.
#define TRIREME_FOR_LANES(F, n, i, count, ...)                            \
  {                                                                       \
    std::int64_t i = 0;                                                   \
    for (constexpr int count = F::width; i + count <= n; i += count) {    \
      __VA_ARGS__                                                         \
    }                                                                     \
    if (int const count = static_cast<int>(n - i); count > 0) __VA_ARGS__ \
  }

/// Returns `call` from the namespace of the active CPU level; `Fast` is false if only the baseline supports the types.
#define TRIREME_DISPATCH(Fast, ...)                                                                       \
  do {                                                                                                    \
    if constexpr (Fast) {                                                                                 \
      auto const level = ::trireme::ops::detected();                                                      \
      if (level >= ::trireme::ops::cpu_level::avx512) return ::trireme::ops::detail::avx512::__VA_ARGS__; \
      if (level >= ::trireme::ops::cpu_level::avx2) return ::trireme::ops::detail::avx2::__VA_ARGS__;     \
    }                                                                                                     \
    return ::trireme::ops::detail::baseline::__VA_ARGS__;                                                 \
  } while (false)

namespace trireme::ops::detail {

/// The compiler's generic vectors, of 64 bytes and of 8 or 4 elements, which it splits for each level: for integers.
template <class T>
struct vectors_of {
  typedef T wide __attribute__((vector_size(64)));
  typedef T eight __attribute__((vector_size(8 * sizeof(T))));
  typedef T four __attribute__((vector_size(4 * sizeof(T))));
};
template <class T>
using wide = typename vectors_of<T>::wide;
template <class T>
using eight = typename vectors_of<T>::eight;
template <class T>
using four = typename vectors_of<T>::four;

/// One lane of Real.
template <class Real>
struct lane {
  using real = Real;
  static constexpr int width = 1;
  Real v;

  static lane all(Real x) { return {x}; }
  template <class T>
  static lane load(T const* p) {
    return {static_cast<Real>(*p)};
  }
  template <class T>
  static lane load(T const* p, int) {
    return load(p);
  }
  template <class T>
  void store(T* p) const {
    if constexpr (storage_float<T>) {
      *p = T(static_cast<float>(v));
    } else {
      *p = static_cast<T>(v);
    }
  }
  template <class T>
  void store(T* p, int) const {
    store(p);
  }
  friend lane operator+(lane a, lane b) { return {a.v + b.v}; }
  friend lane operator-(lane a, lane b) { return {a.v - b.v}; }
  friend lane operator*(lane a, lane b) { return {a.v * b.v}; }
  friend lane operator/(lane a, lane b) { return {a.v / b.v}; }
  friend lane fma(lane a, lane b, lane c) {
#if defined(__FMA__)
    return {std::fma(a.v, b.v, c.v)};
#else
    return {a.v * b.v + c.v};
#endif
  }
  friend lane rounded_product(lane a, lane b) {
    lane product = a * b;
#if TRIREME_X86
    asm("" : "+x"(product.v));
#elif defined(__aarch64__)
    asm("" : "+w"(product.v));
#else
    asm("" : "+m"(product.v));
#endif
    return product;
  }
  friend lane max(lane a, lane b) { return {a.v > b.v ? a.v : b.v}; }
  friend lane min(lane a, lane b) { return {a.v < b.v ? a.v : b.v}; }
  friend lane sqrt(lane a) { return {std::sqrt(a.v)}; }
  friend lane magnitude(lane a) { return {std::fabs(a.v)}; }
  friend lane round(lane a) { return {std::nearbyint(a.v)}; }
  friend lane power_of_two(lane a) {
    if (!(a.v >= -127)) return a;  // NaN
    return {std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<std::int32_t>(a.v) + 127) << 23)};
  }
  friend lane where_less(lane a, lane b, lane yes, lane no) { return {a.v < b.v ? yes.v : no.v}; }
  friend lane first(int count, lane yes, lane no) { return count > 0 ? yes : no; }
  friend Real sum(lane a) { return a.v; }
  friend Real largest(lane a) { return a.v; }
};

namespace baseline {
template <class... T>
using lanes_for = lane<std::conditional_t<(std::is_same_v<T, double> || ...), double, float>>;
}  // namespace baseline
}  // namespace trireme::ops::detail

#if TRIREME_X86
TRIREME_TARGET_AVX2_BEGIN
namespace trireme::ops::detail::avx2 {

struct lanes {
  using real = float;
  static constexpr int width = 8;
  __m256 v;

  static TRIREME_INLINE __m256i mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  template <storage_float T>
  static TRIREME_INLINE __m256 widen(__m128i bits) {
    if constexpr (std::is_same_v<T, float16>) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // The same rounding as bfloat16's constructor, denormals included (which the conversion instruction would flush).
  template <storage_float T>
  static TRIREME_INLINE __m128i narrow(__m256 x) {
    if constexpr (std::is_same_v<T, float16>) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    __m256i const bits = _mm256_castps_si256(x);
    __m256i const odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i const near = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i const nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i const is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i const high = _mm256_srli_epi32(_mm256_blendv_epi8(near, nan, is_nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
  static TRIREME_INLINE lanes all(float x) { return {_mm256_set1_ps(x)}; }
  static TRIREME_INLINE lanes load(float const* p) { return {_mm256_loadu_ps(p)}; }
  template <storage_float T>
  static TRIREME_INLINE lanes load(T const* p) {
    return {widen<T>(_mm_loadu_si128(m128i_at(p)))};
  }
  static TRIREME_INLINE lanes load(float const* p, int count) {
    return count == width ? load(p) : lanes{_mm256_maskload_ps(p, mask(count))};
  }
  template <storage_float T>
  static TRIREME_INLINE lanes load(T const* p, int count) {
    if (count == width) return load(p);
    T buffer[width] = {};
    std::memcpy(buffer, p, static_cast<std::size_t>(count) * sizeof(T));
    return load(buffer);
  }
  TRIREME_INLINE void store(float* p) const { _mm256_storeu_ps(p, v); }
  template <storage_float T>
  TRIREME_INLINE void store(T* p) const {
    _mm_storeu_si128(m128i_at(p), narrow<T>(v));
  }
  TRIREME_INLINE void store(float* p, int count) const {
    count == width ? store(p) : _mm256_maskstore_ps(p, mask(count), v);
  }
  template <storage_float T>
  TRIREME_INLINE void store(T* p, int count) const {
    if (count == width) return store(p);
    T buffer[width];
    store(buffer);
    std::memcpy(static_cast<void*>(p), buffer, static_cast<std::size_t>(count) * sizeof(T));
  }
};

TRIREME_INLINE lanes operator+(lanes a, lanes b) { return {_mm256_add_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator-(lanes a, lanes b) { return {_mm256_sub_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator*(lanes a, lanes b) { return {_mm256_mul_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator/(lanes a, lanes b) { return {_mm256_div_ps(a.v, b.v)}; }
TRIREME_INLINE lanes fma(lanes a, lanes b, lanes c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TRIREME_INLINE lanes rounded_product(lanes a, lanes b) {
  lanes product = a * b;
  asm("" : "+x"(product.v));
  return product;
}
// The second operand is returned if one is NaN, as with a > b ? a : b.
TRIREME_INLINE lanes max(lanes a, lanes b) { return {_mm256_max_ps(a.v, b.v)}; }
TRIREME_INLINE lanes min(lanes a, lanes b) { return {_mm256_min_ps(a.v, b.v)}; }
TRIREME_INLINE lanes sqrt(lanes a) { return {_mm256_sqrt_ps(a.v)}; }
TRIREME_INLINE lanes magnitude(lanes a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a.v)}; }
TRIREME_INLINE lanes round(lanes a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
TRIREME_INLINE lanes power_of_two(lanes a) {
  __m256i const biased = _mm256_add_epi32(_mm256_cvtps_epi32(a.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}
TRIREME_INLINE lanes where_less(lanes a, lanes b, lanes yes, lanes no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
TRIREME_INLINE lanes first(int count, lanes yes, lanes no) {
  if (count >= lanes::width) return yes;
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_castsi256_ps(lanes::mask(count)))};
}
TRIREME_INLINE float sum(lanes a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
TRIREME_INLINE float largest(lanes a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

template <class... T>
using lanes_for = lanes;

}  // namespace trireme::ops::detail::avx2
TRIREME_TARGET_END

TRIREME_TARGET_AVX512_BEGIN
namespace trireme::ops::detail::avx512 {

struct lanes {
  using real = float;
  static constexpr int width = 16;
  __m512 v;

  static TRIREME_INLINE __mmask16 mask(int count) {
    return static_cast<__mmask16>(count <= 0 ? 0U : count >= width ? 0xffffU : (1U << count) - 1U);
  }
  template <storage_float T>
  static TRIREME_INLINE __m512 widen(__m256i bits) {
    if constexpr (std::is_same_v<T, float16>) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  // The same rounding as bfloat16's constructor, denormals included (which the conversion instruction would flush).
  template <storage_float T>
  static TRIREME_INLINE __m256i narrow(__m512 x) {
    if constexpr (std::is_same_v<T, float16>) return _mm512_maskz_cvtps_ph(mask(width), x, _MM_FROUND_TO_NEAREST_INT);
    __m512i const bits = _mm512_castps_si512(x);
    __m512i const odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i const near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 const is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i const kept = _mm512_mask_or_epi32(near, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
  }
  static TRIREME_INLINE lanes all(float x) { return {_mm512_set1_ps(x)}; }
  static TRIREME_INLINE lanes load(float const* p) { return {_mm512_loadu_ps(p)}; }
  template <storage_float T>
  static TRIREME_INLINE lanes load(T const* p) {
    return {widen<T>(_mm256_loadu_si256(m256i_at(p)))};
  }
  static TRIREME_INLINE lanes load(float const* p, int count) {
    return count == width ? load(p) : lanes{_mm512_maskz_loadu_ps(mask(count), p)};
  }
  template <storage_float T>
  static TRIREME_INLINE lanes load(T const* p, int count) {
    return count == width ? load(p) : lanes{widen<T>(_mm256_maskz_loadu_epi16(mask(count), p))};
  }
  TRIREME_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  template <storage_float T>
  TRIREME_INLINE void store(T* p) const {
    _mm256_storeu_si256(m256i_at(p), narrow<T>(v));
  }
  TRIREME_INLINE void store(float* p, int count) const {
    count == width ? store(p) : _mm512_mask_storeu_ps(p, mask(count), v);
  }
  template <storage_float T>
  TRIREME_INLINE void store(T* p, int count) const {
    count == width ? store(p) : _mm256_mask_storeu_epi16(p, mask(count), narrow<T>(v));
  }
};

TRIREME_INLINE lanes operator+(lanes a, lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator-(lanes a, lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator*(lanes a, lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator/(lanes a, lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
TRIREME_INLINE lanes fma(lanes a, lanes b, lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TRIREME_INLINE lanes rounded_product(lanes a, lanes b) {
  lanes product = a * b;
  asm("" : "+v"(product.v));
  return product;
}
// The second operand is returned if one is NaN, as with a > b ? a : b.
TRIREME_INLINE lanes max(lanes a, lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
TRIREME_INLINE lanes min(lanes a, lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
TRIREME_INLINE lanes sqrt(lanes a) { return {_mm512_sqrt_ps(a.v)}; }
TRIREME_INLINE lanes magnitude(lanes a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0F), a.v)}; }
// For |a| < 2^31, which holds for all numbers rounded here. (Without optimisation _mm512_roundscale_ps is a macro that
// causes a sign warning.)
TRIREME_INLINE lanes round(lanes a) { return {_mm512_cvtepi32_ps(_mm512_cvtps_epi32(a.v))}; }
TRIREME_INLINE lanes power_of_two(lanes a) {
  __m512i const biased = _mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
TRIREME_INLINE lanes where_less(lanes a, lanes b, lanes yes, lanes no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
TRIREME_INLINE lanes first(int count, lanes yes, lanes no) {
  if (count >= lanes::width) return yes;
  return {_mm512_mask_blend_ps(lanes::mask(count), no.v, yes.v)};
}
// Added in halves, in the same order as the AVX2 lanes.
TRIREME_INLINE float sum(lanes a) {
  __m256 const half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
TRIREME_INLINE float largest(lanes a) {
  __m256 const half = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

template <class... T>
using lanes_for = lanes;

}  // namespace trireme::ops::detail::avx512
TRIREME_TARGET_END

#else  // Another architecture: the levels are declared, but never used.
namespace trireme::ops::detail::avx2 {
using baseline::lanes_for;
}
namespace trireme::ops::detail::avx512 {
using baseline::lanes_for;
}
#endif

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/simd_math.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/simd_math.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/simd_math.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
