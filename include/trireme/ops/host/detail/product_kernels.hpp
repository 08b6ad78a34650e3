#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trireme/core/address.hpp"
#include "trireme/ops/host/detail/product_types.hpp"
#include "trireme/ops/host/detail/tiles.hpp"
#include "trireme/ops/host/detail/tiles_packing.hpp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/product_store.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/product_store.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/product_store.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
#include "trireme/ops/host/detail/tiles_store.inl"

// The inner kernels: all sums of a tile stay in registers for the whole k loop. An element's sum is formed in the order
// of k for any tile, so a row's bits do not depend on which rows are computed with it.
#if TRIREME_X86
namespace trireme::ops::detail {
/// A float or a pair of bfloat16; the latter may be at any even address.
TRIREME_INLINE std::int32_t word_at(char const* address) {
  std::int32_t word;
  std::memcpy(&word, address, sizeof word);
  return word;
}
}  // namespace trireme::ops::detail

TRIREME_TARGET_AVX2_BEGIN
namespace trireme::ops::detail::avx2 {

template <int Rows>
inline void product_tile(tile_job const& job) {
  __m256 sum[std::size_t{Rows}][2];
  TRIREME_UNROLL
  for (int r = 0; r < Rows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
  char const* a = job.a;
  auto const* b = elements_at<float>(job.b);
  std::ptrdiff_t const a_row = job.a_row;
  std::ptrdiff_t const a_step = job.a_step;
  char const* ahead0 = job.ahead[0];
  char const* ahead1 = job.ahead[1];
  int ahead_rows = Rows;
  for (std::int64_t left = job.steps; left > 0;) {
    std::int64_t const steps = left < 8 ? left : 8;
    for (std::int64_t step = 0; step < steps; ++step, a += a_step, b += 16) {
      __m256 const b0 = _mm256_load_ps(b);
      __m256 const b1 = _mm256_load_ps(b + 8);
      TRIREME_UNROLL
      for (int r = 0; r < Rows; ++r) {
        __m256 const x = _mm256_broadcast_ss(elements_at<float>(a + r * a_row));
        sum[r][0] = _mm256_fmadd_ps(x, b0, sum[r][0]);
        sum[r][1] = _mm256_fmadd_ps(x, b1, sum[r][1]);
      }
    }
    left -= steps;
    if (ahead_rows-- > 0) {
      _mm_prefetch(ahead0, _MM_HINT_T0);
      _mm_prefetch(ahead1, _MM_HINT_T0);
      ahead0 += job.ahead_row[0];
      ahead1 += job.ahead_row[1];
    }
  }
  float* c = job.c;
  TRIREME_UNROLL
  for (int r = 0; r < Rows; ++r, c += job.c_row) {
    if (job.accumulate) {
      sum[r][0] = _mm256_add_ps(sum[r][0], _mm256_loadu_ps(c));
      sum[r][1] = _mm256_add_ps(sum[r][1], _mm256_loadu_ps(c + 8));
    }
    _mm256_storeu_ps(c, sum[r][0]);
    _mm256_storeu_ps(c + 8, sum[r][1]);
  }
}

}  // namespace trireme::ops::detail::avx2
TRIREME_TARGET_END

// The two AVX-512 kernels differ in one instruction. The processor alone prefetches the operand in L2 too late:
// prefetching 16 steps ahead makes a product 3 to 15 % faster on an Intel Xeon. The distance of two rows or of two
// steps is a constant, so that most addresses need no arithmetic.
#define TRIREME_PRODUCT_STEP_512(Rows, multiply_add, a, a_row, b) \
  {                                                               \
    __m512i const b0 = _mm512_load_si512(b);                      \
    __m512i const b1 = _mm512_load_si512((b) + 64);               \
    char const* row = a;                                          \
    TRIREME_UNROLL                                                \
    for (int r = 0; r < Rows; ++r, row += a_row) {                \
      __m512i const x = _mm512_set1_epi32(word_at(row));          \
      sum[r][0] = multiply_add(sum[r][0], x, b0);                 \
      sum[r][1] = multiply_add(sum[r][1], x, b1);                 \
    }                                                             \
  }
#define TRIREME_PRODUCT_TILE_512(Rows, multiply_add)                                        \
  __m512 sum[std::size_t{Rows}][2];                                                         \
  TRIREME_UNROLL                                                                            \
  for (int r = 0; r < Rows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();               \
  char const* a = job.a;                                                                    \
  char const* b = job.b;                                                                    \
  std::ptrdiff_t const a_row = job.a_row;                                                   \
  std::ptrdiff_t const a_step = job.a_step;                                                 \
  char const* ahead0 = job.ahead[0];                                                        \
  char const* ahead1 = job.ahead[1];                                                        \
  int ahead_rows = Rows;                                                                    \
  for (std::int64_t left = job.steps; left > 0; left -= 8) {                                \
    std::int64_t const steps = left < 8 ? left : 8;                                         \
    if (a_row == 4) { /* packed: a is in L2, b is short enough for L1 */                    \
      for (std::int64_t step = 0; step < steps; ++step, a += a_step, b += 128) {            \
        _mm_prefetch(a + 16 * a_step, _MM_HINT_T0);                                         \
        TRIREME_PRODUCT_STEP_512(Rows, multiply_add, a, 4, b)                               \
      }                                                                                     \
    } else if (steps == 8) {                                                                \
      for (int half = 0; half < 2; ++half, a += 16, b += 512) {                             \
        TRIREME_UNROLL                                                                      \
        for (int step = 0; step < 4; ++step) {                                              \
          _mm_prefetch(b + step * 128 + 2048, _MM_HINT_T0);                                 \
          _mm_prefetch(b + step * 128 + 2112, _MM_HINT_T0);                                 \
          TRIREME_PRODUCT_STEP_512(Rows, multiply_add, a + step * 4, a_row, b + step * 128) \
        }                                                                                   \
      }                                                                                     \
    } else {                                                                                \
      for (std::int64_t step = 0; step < steps; ++step, a += 4, b += 128) {                 \
        TRIREME_PRODUCT_STEP_512(Rows, multiply_add, a, a_row, b)                           \
      }                                                                                     \
    }                                                                                       \
    if (ahead_rows-- > 0) {                                                                 \
      _mm_prefetch(ahead0, _MM_HINT_T0);                                                    \
      _mm_prefetch(ahead0 + 64, _MM_HINT_T0);                                               \
      _mm_prefetch(ahead1, _MM_HINT_T0);                                                    \
      _mm_prefetch(ahead1 + 64, _MM_HINT_T0);                                               \
      ahead0 += job.ahead_row[0];                                                           \
      ahead1 += job.ahead_row[1];                                                           \
    }                                                                                       \
  }                                                                                         \
  float* c = job.c;                                                                         \
  TRIREME_UNROLL                                                                            \
  for (int r = 0; r < Rows; ++r, c += job.c_row) {                                          \
    if (job.accumulate) {                                                                   \
      sum[r][0] = _mm512_add_ps(sum[r][0], _mm512_loadu_ps(c));                             \
      sum[r][1] = _mm512_add_ps(sum[r][1], _mm512_loadu_ps(c + 16));                        \
    }                                                                                       \
    _mm512_storeu_ps(c, sum[r][0]);                                                         \
    _mm512_storeu_ps(c + 16, sum[r][1]);                                                    \
  }

TRIREME_TARGET_AVX512_BEGIN
namespace trireme::ops::detail::avx512 {
/// The intrinsic, but with g++ always in the form that overwrites the sum: g++ 12 otherwise also uses the two forms
/// that overwrite a factor, and then runs out of registers for the sums (on an Intel Xeon products take 5 % longer).
/// clang does not have this problem, and clang 20 may reject such an asm for its operand size.
TRIREME_INLINE __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
#if defined(__clang__)
  return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
#else
  asm("{vfmadd231ps\t%2, %1, %0|vfmadd231ps\t%0, %1, %2}" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#endif
}
template <int Rows>
inline void product_tile(tile_job const& job) {
  TRIREME_PRODUCT_TILE_512(Rows, multiply_add)
}
}  // namespace trireme::ops::detail::avx512
TRIREME_TARGET_END

TRIREME_TARGET_AVX512_BF16_BEGIN
namespace trireme::ops::detail::avx512_bf16 {
TRIREME_INLINE __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
template <int Rows>
inline void product_tile(tile_job const& job) {
  TRIREME_PRODUCT_TILE_512(Rows, multiply_add)
}
}  // namespace trireme::ops::detail::avx512_bf16
TRIREME_TARGET_END
#undef TRIREME_PRODUCT_TILE_512
#undef TRIREME_PRODUCT_STEP_512
#endif

namespace trireme::ops::detail {

/// The result of `kernel` for bfloat16 if T is bfloat16, so that a program that uses only floats does not compile it.
template <class T, class Kernel>
[[nodiscard]] constexpr auto if_bfloat16(Kernel kernel) -> void (*)(store_job<bfloat16> const&) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return kernel.template operator()<bfloat16>();
  } else {
    return nullptr;
  }
}

/// This library's kernels for elements of type T on this CPU, or nullptr if there are none (double; CPUs without AVX2).
template <class T>
[[nodiscard]] product_kernels const* own_kernels() noexcept {
#if TRIREME_X86
  if constexpr (!std::is_same_v<T, double>) {
    static constexpr product_kernels avx2_kernels{cpu_level::avx2,
                                                  6,
                                                  16,
                                                  2,
                                                  8,
                                                  false,
                                                  1,
                                                  avx2::product_tile<6>,
                                                  avx2::product_tile<2>,
                                                  avx2::store_sums<float>,
                                                  if_bfloat16<T>([]<class U>() { return &avx2::store_sums<U>; })};
    static constexpr product_kernels avx512_kernels{cpu_level::avx512,
                                                    14,
                                                    32,
                                                    4,
                                                    16,
                                                    false,
                                                    1,
                                                    avx512::product_tile<14>,
                                                    avx512::product_tile<4>,
                                                    avx512::store_sums<float>,
                                                    if_bfloat16<T>([]<class U>() { return &avx512::store_sums<U>; })};
    auto const level = detected();
    if constexpr (std::is_same_v<T, bfloat16>) {
      static constexpr product_kernels bf16_kernels{cpu_level::avx512_bf16,
                                                    14,
                                                    32,
                                                    4,
                                                    16,
                                                    true,
                                                    1,
                                                    avx512_bf16::product_tile<14>,
                                                    avx512_bf16::product_tile<4>,
                                                    avx512::store_sums<float>,
                                                    if_bfloat16<T>([]<class U>() { return &avx512::store_sums<U>; })};
      static constexpr product_kernels tile_kernels = tile_product_kernels<tile_registers>(
          avx512_bf16::add_tiled, avx512_bf16::store_tiled<T>, avx512::turn, avx512_bf16::panel_of);
      if (level >= cpu_level::amx) return &tile_kernels;
      if (level >= cpu_level::avx512_bf16) return &bf16_kernels;
    }
    if (level >= cpu_level::avx512) return &avx512_kernels;
    if (level >= cpu_level::avx2) return &avx2_kernels;
  }
#endif
  return nullptr;
}

}  // namespace trireme::ops::detail
