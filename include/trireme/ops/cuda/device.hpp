#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "trireme/core/dtype.hpp"

// What kernels may use of a device: every intrinsic and every line of PTX is here, and nowhere else. Kernels are
// written once, in CUDA's language, in the .cuh files of this folder. nvcc compiles them for a GPU. In this library's
// tests g++ and clang++ compile the same files for a stand-in, in which each thread of a kernel is a fibre of the CPU;
// the stand-in is included first and defines TRIREME_SIMT. For any other compiler this header is empty.

#if defined(__CUDACC__)

#if !defined(__CUDACC_RELAXED_CONSTEXPR__)
#error "trireme: compile the kernels with --expt-relaxed-constexpr: they share constexpr functions with the host"
#endif
#if defined(__USE_FAST_MATH__) || defined(__CUDA_FTZ)
#error "trireme: compile the kernels without -use_fast_math and -ftz=true, which change results"
#endif
#include <cuda_runtime.h>

#if CUDART_VERSION < 12010
#error "trireme: the kernels take 4 KB of arguments, which needs CUDA 12.1"
#endif

namespace trireme::ops::detail::device {

/// Lanes of a warp, and a set of them.
inline constexpr int warp_width = 32;
using lane_mask = std::uint32_t;
inline constexpr lane_mask all_lanes = 0xFFFFFFFFU;

/// The threads of a block wait for each other; what they have written is then seen by all of them.
__device__ __forceinline__ void sync_block() { __syncthreads(); }
/// The same among the lanes of a warp.
__device__ __forceinline__ void sync_warp(lane_mask mask = all_lanes) { __syncwarp(mask); }
/// The x of the lane whose number differs by the bits of `by`. Orders no memory.
template <class T>
__device__ __forceinline__ T shuffle_xor(T x, int by, lane_mask mask = all_lanes) {
  return __shfl_xor_sync(mask, x, by);
}
/// The lanes whose condition holds.
__device__ __forceinline__ lane_mask ballot(bool condition, lane_mask mask = all_lanes) {
  return __ballot_sync(mask, condition);
}
/// Adds to an integer that other threads add to. Integers only: their sums have no order.
__device__ __forceinline__ void atomic_add(unsigned long long& to, unsigned long long x) { atomicAdd(&to, x); }
__device__ __forceinline__ void atomic_or(unsigned& to, unsigned bits) { atomicOr(&to, bits); }
__device__ __forceinline__ void atomic_add(unsigned& to, unsigned x) { atomicAdd(&to, x); }
/// How many lanes are in a set.
__device__ __forceinline__ int count_lanes(lane_mask lanes) { return __popc(lanes); }
__device__ __forceinline__ void atomic_max(unsigned long long& to, unsigned long long x) { atomicMax(&to, x); }

/// An array of the block, the same for all calls with the same type and number in a kernel.
template <class T, int Number = 0>
__device__ __forceinline__ T& block_shared() {
  __shared__ T array;
  return array;
}

// Arithmetic that is rounded once to nearest, and that no compiler contracts: the results are the host's bits.
__device__ __forceinline__ float sum(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double sum(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ float difference(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ double difference(double a, double b) { return __dsub_rn(a, b); }
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float quotient(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double quotient(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }
__device__ __forceinline__ double root(double a) { return __dsqrt_rn(a); }
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ __forceinline__ float float_of(std::uint32_t bits) { return __uint_as_float(bits); }

/// 2^x, e^x and the natural logarithm, with errors of a few units in the last place.
__device__ __forceinline__ float exponential2(float x) { return ::exp2f(x); }
__device__ __forceinline__ double exponential2(double x) { return ::exp2(x); }
__device__ __forceinline__ float exponential(float x) { return ::expf(x); }
__device__ __forceinline__ double exponential(double x) { return ::exp(x); }
__device__ __forceinline__ float logarithm(float x) { return ::logf(x); }
__device__ __forceinline__ double logarithm(double x) { return ::log(x); }

/// The number as float (double stays double), and back, rounded to nearest even.
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ double wide(double x) { return x; }
__device__ __forceinline__ float wide(bfloat16 x) { return float_of(static_cast<std::uint32_t>(x.bits) << 16); }
__device__ __forceinline__ float wide(float16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
template <class T>
__device__ __forceinline__ T narrow(float x) {
  if constexpr (std::is_same_v<T, float16>) {
    T y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
#if __CUDA_ARCH__ >= 800
    T y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    return static_cast<T>(x);
#endif
  } else {
    return static_cast<T>(x);
  }
}
template <class T>
__device__ __forceinline__ T narrow(double x) {
  if constexpr (storage_float<T>)
    return narrow<T>(static_cast<float>(x));
  else
    return static_cast<T>(x);
}
/// 2^x with an error of 2 units in the last place, in one instruction; 0 for results below 2^-126.
__device__ __forceinline__ float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x to one unit in the last place, in one instruction, for x between 2^-60 and 2^60.
__device__ __forceinline__ float quick_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// The same word, of which the compiler knows nothing: what was computed from it before is computed again, instead of
/// being kept in registers.
__device__ __forceinline__ std::uint32_t anew(std::uint32_t word) {
  asm("" : "+r"(word));
  return word;
}

/// The x of one lane. Orders no memory.
template <class T>
__device__ __forceinline__ T shuffle(T x, int from, lane_mask mask = all_lanes) {
  return __shfl_sync(mask, x, from);
}
/// The number of 16 bits that has these bits.
template <class T>
__device__ __forceinline__ T of_bits(std::uint32_t bits) {
  T x;
  x.bits = static_cast<std::uint16_t>(bits);
  return x;
}
/// The first and the second of two numbers of 16 bits that a word holds, as float; and a word of two such numbers,
/// rounded to nearest even. A NaN has the payload that the device gives it.
template <class T>
__device__ __forceinline__ float wide_first(std::uint32_t two) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return float_of(two << 16);
  else
    return wide(of_bits<T>(two));
}
template <class T>
__device__ __forceinline__ float wide_second(std::uint32_t two) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return float_of(two & 0xFFFF0000U);
  else
    return wide(of_bits<T>(two >> 16));
}
template <class T>
__device__ __forceinline__ std::uint32_t narrow_two(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t two;
  if constexpr (std::is_same_v<T, bfloat16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
  return two;
#else
  return narrow<T>(first).bits | static_cast<std::uint32_t>(narrow<T>(second).bits) << 16;
#endif
}
/// Makes the compiler compute anew what it needs from these bits further down, rather than keep it in registers.
__device__ __forceinline__ void renew(std::uint32_t& bits) { asm volatile("" : "+r"(bits)); }

// Products of tiles by the lanes of a warp, for elements of 16 bits [PTX ISA, mma.m16n8k16]. With g = lane / 4 and
// t = lane % 4, and two neighbouring elements in a word, the first one in its low half:
//   a (16, 16)   word 0: (g, 2t), 1: (g + 8, 2t), 2: (g, 2t + 8), 3: (g + 8, 2t + 8)     the next column beside it
//   b (16, 8)    word 0: (2t, g), 1: (2t + 8, g)                                         the next row beside it
//   c (16, 8)    0: (g, 2t), 1: (g, 2t + 1), 2: (g + 8, 2t), 3: (g + 8, 2t + 1)
// They need a device of compute capability 8.0 (products_of_tiles), and do nothing on others.
template <class T>
__device__ __forceinline__ void multiply_tiles(float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                               std::uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, float16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
/// Four matrices (8, 8) of elements of 16 bits from shared memory, whose rows of 16 bytes begin at the addresses of
/// the lanes: those of matrix m at lanes 8m to 8m + 7. Word m gets the elements (g, 2t) and (g, 2t + 1) of matrix m,
/// or of its transpose.
__device__ __forceinline__ void load_matrices(std::uint32_t (&words)[4], void const* row) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&words)[4], void const* row) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
/// Two numbers as a word of two elements, the first one in its low half, rounded to nearest.
template <class T>
__device__ __forceinline__ std::uint32_t word_of(float first, float second) {
  std::uint32_t word = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, float16>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
#endif
  return word;
}
/// Starts to copy 16 bytes to shared memory, or to set them to 0. They are there, for this thread, after finish_copies.
__device__ __forceinline__ void start_copy(void* to, void const* from, bool copied) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(from), "r"(copied ? 16 : 0)
               : "memory");
#endif
}
__device__ __forceinline__ void finish_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
/// Whether this kernel, as it is compiled, has products of tiles.
template <class... Parameters>
[[nodiscard]] bool products_of_tiles(void (*kernel)(Parameters...)) {
  cudaFuncAttributes found{};
  return cudaFuncGetAttributes(&found, reinterpret_cast<void const*>(kernel)) == cudaSuccess && found.ptxVersion >= 80;
}

/// Queues a kernel on `stream`, a cudaStream_t. Returns a cudaError_t. The name is that of the kernel in reports.
template <class... Parameters, class... Arguments>
[[nodiscard]] int run(char const* /*name*/, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
                      void* stream, Arguments const&... arguments) {
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, static_cast<cudaStream_t>(stream)>>>(
      arguments...);
  return cudaGetLastError();
}

/// Writes 16 bytes at once, at an address that is aligned so. (nvcc writes the members of a struct one by one if it has
/// computed them one by one.)
__device__ __forceinline__ void store_words(void* to, std::uint32_t const (&words)[4]) {
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
/// The most bytes of shared memory that a block may have; and a kernel whose blocks have so many for sized_shared.
inline std::int64_t most_shared_bytes() noexcept {
  static std::int64_t const bytes = [] {
    int device = 0;
    int most = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
      return std::int64_t{48} << 10;
    return static_cast<std::int64_t>(most);
  }();
  return bytes;
}
__device__ __forceinline__ unsigned char* sized_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}
template <class... Parameters, class... Arguments>
[[nodiscard]] int run_sized(char const* /*name*/, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
                            std::int64_t bytes, void* stream, Arguments const&... arguments) {
  auto const code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (code != cudaSuccess) return code;
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), static_cast<std::size_t>(bytes),
           static_cast<cudaStream_t>(stream)>>>(arguments...);
  return cudaGetLastError();
}

/// Enough blocks to fill the device a few times over.
inline std::int64_t most_blocks() noexcept {
  static int const blocks = [] {
    int device = 0;
    int processors = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
      return 1024;
    return processors * 8;
  }();
  return blocks;
}

inline constexpr int launch_succeeded = cudaSuccess;
inline constexpr int launch_refused = cudaErrorInvalidValue;

}  // namespace trireme::ops::detail::device

#elif defined(TRIREME_SIMT)

#if !defined(__device__)
#define __device__
#endif
#if !defined(__global__)
#define __global__
#endif
#if !defined(__forceinline__)
#define __forceinline__ inline
#endif
#if !defined(__launch_bounds__)
#define __launch_bounds__(...)
#endif
#define threadIdx (::simt::here().thread())
#define blockIdx (::simt::here().block())
#define blockDim (::simt::here().block_extent())
#define gridDim (::simt::here().grid())

namespace trireme::ops::detail::device {

using simt::all_lanes;
using simt::lane_mask;
using simt::warp_width;

inline void sync_block(char const* file = __builtin_FILE(), int line = __builtin_LINE()) {
  simt::here().barrier({"sync_block", file, line});
}
inline void sync_warp(lane_mask mask = all_lanes, char const* file = __builtin_FILE(), int line = __builtin_LINE()) {
  simt::here().warp_barrier(mask, {"sync_warp", file, line});
}
template <class T>
inline T shuffle_xor(T x, int by, lane_mask mask = all_lanes, char const* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
  return simt::here().exchange(x, simt::here().lane() ^ by, mask, {"shuffle_xor", file, line});
}
inline lane_mask ballot(bool condition, lane_mask mask = all_lanes, char const* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
  return simt::here().ballot(condition, mask, {"ballot", file, line});
}
inline void atomic_add(unsigned long long& to, unsigned long long x) { __atomic_fetch_add(&to, x, __ATOMIC_RELAXED); }
inline void atomic_or(unsigned& to, unsigned bits) { __atomic_fetch_or(&to, bits, __ATOMIC_RELAXED); }
inline void atomic_add(unsigned& to, unsigned x) { __atomic_fetch_add(&to, x, __ATOMIC_RELAXED); }
inline int count_lanes(lane_mask lanes) { return std::popcount(lanes); }
inline void atomic_max(unsigned long long& to, unsigned long long x) {
  auto found = __atomic_load_n(&to, __ATOMIC_RELAXED);
  while (found < x && !__atomic_compare_exchange_n(&to, &found, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
template <class T, int Number = 0>
inline T& block_shared() {
  return simt::shared<T, Number>();
}

template <class T>
inline T sum(T a, T b) {
  return a + b;
}
template <class T>
inline T difference(T a, T b) {
  return a - b;
}
template <class T>
inline T product(T a, T b) {
  return a * b;
}
template <class T>
inline T quotient(T a, T b) {
  return a / b;
}
template <class T>
inline T root(T a) {
  return std::sqrt(a);
}
template <class T>
inline T fused(T a, T b, T c) {
  return std::fma(a, b, c);
}
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
template <class T>
inline T exponential2(T x) {
  return std::exp2(x);
}
template <class T>
inline T exponential(T x) {
  return std::exp(x);
}
template <class T>
inline T logarithm(T x) {
  return std::log(x);
}

inline float wide(float x) { return x; }
inline double wide(double x) { return x; }
inline float wide(bfloat16 x) { return static_cast<float>(x); }
inline float wide(float16 x) { return static_cast<float>(x); }
template <class T>
inline T narrow(float x) {
  return static_cast<T>(x);
}
template <class T>
inline T narrow(double x) {
  if constexpr (storage_float<T>)
    return T(static_cast<float>(x));
  else
    return static_cast<T>(x);
}
inline float quick_exp2(float x) { return std::exp2(x); }
// One unit off for two of three numbers, but exact for 2 - 2^-23, which no refinement of its neighbours finds: the
// device's must be, too, because the compiler's own division refines it as usual_quotient does.
inline float quick_reciprocal(float x) {
  auto const bits = std::bit_cast<std::uint32_t>(x);
  auto const off = (bits & 0x7f'ffffU) == 0x7f'ffffU ? 1U : bits % 3;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(1 / x) + off - 1);
}
inline std::uint32_t anew(std::uint32_t word) { return word; }

template <class T>
inline T shuffle(T x, int from, lane_mask mask = all_lanes, char const* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  return simt::here().exchange(x, from, mask, {"shuffle", file, line});
}
template <class T>
inline T of_bits(std::uint32_t bits) {
  T x;
  x.bits = static_cast<std::uint16_t>(bits);
  return x;
}
template <class T>
inline float wide_first(std::uint32_t two) {
  return wide(of_bits<T>(two));
}
template <class T>
inline float wide_second(std::uint32_t two) {
  return wide(of_bits<T>(two >> 16));
}
template <class T>
inline std::uint32_t narrow_two(float first, float second) {
  return narrow<T>(first).bits | static_cast<std::uint32_t>(narrow<T>(second).bits) << 16;
}
inline void renew(std::uint32_t&) {}

template <class T>
inline float element_of(std::uint32_t word, int half) {
  T x;
  x.bits = static_cast<std::uint16_t>(word >> 16 * half);
  return static_cast<float>(x);
}
template <class T>
inline void multiply_tiles(float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1,
                           char const* file = __builtin_FILE(), int line = __builtin_LINE()) {
  struct operands {
    std::uint32_t a[4], b[2];
  };
  operands const mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  operands all[warp_width];
  simt::here().gather(mine, all, {"multiply_tiles", file, line});
  int const g = simt::here().lane() / 4, t = simt::here().lane() % 4;
  for (int i = 0; i < 4; ++i) {
    int const high = i / 2;  // row g or g + 8
    int const column = 2 * t + i % 2;
    for (int k = 0; k < 16; ++k) {
      int const of_word = k % 8 / 2;  // t of the lane that has it
      auto const x = element_of<T>(all[4 * g + of_word].a[high + k / 8 * 2], k % 2);
      auto const y = element_of<T>(all[4 * column + of_word].b[k / 8], k % 2);
      c[i] = std::fma(x, y, c[i]);
    }
  }
}
inline void load_matrices(std::uint32_t (&words)[4], void const* row, char const* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  void const* rows[warp_width];
  simt::here().gather(row, rows, {"load_matrices", file, line});
  int const g = simt::here().lane() / 4, t = simt::here().lane() % 4;
  for (int m = 0; m < 4; ++m) {
    auto const* const from = static_cast<std::uint16_t const*>(rows[8 * m + g]) + 2 * t;
    words[m] = from[0] | static_cast<std::uint32_t>(from[1]) << 16;
  }
}
inline void load_transposed(std::uint32_t (&words)[4], void const* row, char const* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  void const* rows[warp_width];
  simt::here().gather(row, rows, {"load_transposed", file, line});
  int const g = simt::here().lane() / 4, t = simt::here().lane() % 4;
  for (int m = 0; m < 4; ++m) {
    words[m] = static_cast<std::uint16_t const*>(rows[8 * m + 2 * t])[g] |
               static_cast<std::uint32_t>(static_cast<std::uint16_t const*>(rows[8 * m + 2 * t + 1])[g]) << 16;
  }
}
template <class T>
inline std::uint32_t word_of(float first, float second) {
  return static_cast<T>(first).bits | static_cast<std::uint32_t>(static_cast<T>(second).bits) << 16;
}
struct alignas(16) copied_bytes {
  std::uint32_t words[4];
};
// What is copied arrives when its thread waits for it, and not before: until then there is nothing that makes sense.
inline void start_copy(void* to, void const* from, bool copied) {
  *static_cast<copied_bytes*>(to) = {{~0U, ~0U, ~0U, ~0U}};
  simt::here().begin_copy({to, copied ? from : nullptr});
}
inline void finish_copies() {
  simt::begun_copy begun[8];
  while (int const count = simt::here().take_copies(begun, 8))
    for (int i = 0; i < count; ++i) {
      auto* const to = static_cast<copied_bytes*>(begun[i].to);
      auto const* const from = static_cast<copied_bytes const*>(begun[i].from);
      // (word by word: clang does not check the address of a structure that is copied as a whole)
      for (int w = 0; w < 4; ++w) to->words[w] = from != nullptr ? from->words[w] : 0;
    }
}
template <class... Parameters>
[[nodiscard]] bool products_of_tiles(void (*)(Parameters...)) {
  return warp_width == 32;
}

/// Runs the kernel, or queues it where the stand-in has streams. What it does wrong is thrown as simt::error, by this
/// call or by the one that makes the stream go on.
template <class... Parameters, class... Arguments>
[[nodiscard]] int run(char const* name, void (*kernel)(Parameters...), std::int64_t blocks, int threads, void* stream,
                      Arguments const&... arguments) {
  auto launch = [=] {
    simt::here().launch(name, static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
                        [&] { kernel(arguments...); });
  };
  if (stream != nullptr && simt::queue_on != nullptr)
    simt::queue_on(stream, std::move(launch));
  else
    launch();
  return 0;
}
inline void store_words(void* to, std::uint32_t const (&words)[4]) {
  struct alignas(16) bytes {
    unsigned char all[16];
  };
  *static_cast<bytes*>(to) = std::bit_cast<bytes>(words);
}
inline std::int64_t most_shared_bytes() noexcept { return std::int64_t{24} << 10; }
inline unsigned char* sized_shared() { return simt::shared<unsigned char[std::size_t{24} << 10]>(); }
template <class... Parameters, class... Arguments>
[[nodiscard]] int run_sized(char const* name, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
                            std::int64_t /*bytes*/, void* stream, Arguments const&... arguments) {
  return run(name, kernel, blocks, threads, stream, arguments...);
}
inline std::int64_t most_blocks() noexcept { return 3; }  // fewer than the work, so that loops over it are run

inline constexpr int launch_succeeded = 0;
inline constexpr int launch_refused = 1;

}  // namespace trireme::ops::detail::device

#endif
