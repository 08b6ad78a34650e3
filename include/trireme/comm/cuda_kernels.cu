// The kernels of the library in CUDA's language. A program that uses trireme::cuda compiles this file once, with nvcc
// (the target trireme::cuda does that), and otherwise includes headers only.
//
// The results have the bits of comm/detail/combine.hpp: ranks in order, sums of bfloat16 and float16 in float and
// rounded once, every operation rounded to nearest and none contracted. (If a sum is NaN, its payload depends on the
// processor.)
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "trireme/comm/detail/cuda_kernels.hpp"

#if CUDART_VERSION < 12010
#error "trireme: the kernels take 4 KB of arguments, which needs CUDA 12.1"
#endif
#if defined(__USE_FAST_MATH__) || defined(__CUDA_FTZ)
#error "trireme: compile comm/cuda_kernels.cu without -use_fast_math and -ftz=true, which change sums"
#endif

namespace trireme::comm::detail {
namespace {

struct bfloat16_bits {
  std::uint16_t bits;
};
struct float16_bits {
  std::uint16_t bits;
};

__device__ inline float wide(bfloat16_bits x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }
__device__ inline float wide(float16_bits x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
template <class T>
__device__ inline T wide(T x) {
  return x;
}

/// The bits of a floating-point number mapped to the order of max and min: extreme_order of core/extremes.hpp explains
/// why.
template <class Key, class Bits, int MantissaBits, bool Largest>
struct ordered {
  Key bits;

  static constexpr Bits nans = (Bits{1} << MantissaBits) - 1;
  static __device__ Key turned(Key x) {
    return static_cast<Key>(x ^ ((x >> (8 * sizeof(Key) - 1)) & static_cast<Key>(static_cast<Bits>(~Bits{0}) >> 1)));
  }
};
template <class Key, class Bits, int MantissaBits, bool Largest>
__device__ inline Key wide(ordered<Key, Bits, MantissaBits, Largest> x) {
  auto const key = static_cast<Bits>(x.turned(x.bits));
  return static_cast<Key>(static_cast<Bits>(Largest ? key - x.nans : key + x.nans));
}

template <class T>
__device__ inline void narrow(T from, T& to) {
  to = from;
}
__device__ inline void narrow(float from, bfloat16_bits& to) {
  std::uint32_t const raw = __float_as_uint(from);
  bool const nan = (raw & 0x7fffffffU) > 0x7f800000U;
  to.bits = static_cast<std::uint16_t>(nan ? (raw >> 16) | 0x40U : (raw + 0x7fffU + ((raw >> 16) & 1U)) >> 16);
}
__device__ inline void narrow(float from, float16_bits& to) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(from));
}
template <class Key, class Bits, int MantissaBits, bool Largest>
__device__ inline void narrow(Key from, ordered<Key, Bits, MantissaBits, Largest>& to) {
  auto const key = static_cast<Bits>(from);
  to.bits = to.turned(static_cast<Key>(static_cast<Bits>(Largest ? key + to.nans : key - to.nans)));
}

template <class T>
__device__ inline T added(T a, T b) {
  return a + b;
}
__device__ inline float added(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double added(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float divided(float a, int by) { return __fdiv_rn(a, static_cast<float>(by)); }
__device__ inline double divided(double a, int by) { return __ddiv_rn(a, static_cast<double>(by)); }

template <cuda_reduction Op, class T>
__device__ inline T combined(T a, T b) {
  if constexpr (Op == cuda_reduction::max)
    return a < b ? b : a;
  else if constexpr (Op == cuda_reduction::min)
    return b < a ? b : a;
  else
    return added(a, b);
}
template <cuda_reduction Op, class T>
__device__ inline T ended(T total, int divisor) {
  if constexpr (Op == cuda_reduction::mean)
    return divided(total, divisor);
  else
    return total;
}

struct buffers {
  void* outputs[most_cuda_terms];
  void const* terms[most_cuda_terms];
  int output_count;
  int term_count;
};

template <class T>
struct alignas(16) pack {
  static constexpr int width = 16 / sizeof(T);
  T values[width];
};

/// Elements [0, head) and the last few are handled one by one, the rest in packs of 16 bytes.
template <class T, cuda_reduction Op>
__global__ void __launch_bounds__(256) combine(buffers const all, std::int64_t head, std::int64_t count, int divisor) {
  using P = pack<T>;
  auto const thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  auto const threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t const packs = (count - head) / P::width;
  for (std::int64_t p = thread; p < packs; p += threads) {
    std::int64_t const at = head + p * P::width;
    P const first = *reinterpret_cast<P const*>(static_cast<T const*>(all.terms[0]) + at);
    decltype(wide(T{})) total[P::width];
#pragma unroll
    for (int i = 0; i < P::width; ++i) total[i] = wide(first.values[i]);
#pragma unroll 4
    for (int term = 1; term < all.term_count; ++term) {
      P const next = *reinterpret_cast<P const*>(static_cast<T const*>(all.terms[term]) + at);
#pragma unroll
      for (int i = 0; i < P::width; ++i) total[i] = combined<Op>(total[i], wide(next.values[i]));
    }
    P result;
#pragma unroll
    for (int i = 0; i < P::width; ++i) narrow(ended<Op>(total[i], divisor), result.values[i]);
    for (int output = 0; output < all.output_count; ++output)
      *reinterpret_cast<P*>(static_cast<T*>(all.outputs[output]) + at) = result;
  }
  std::int64_t const tail = head + packs * P::width;
  std::int64_t const singles = head + (count - tail);
  for (std::int64_t s = thread; s < singles; s += threads) {
    std::int64_t const at = s < head ? s : tail + (s - head);
    auto total = wide(static_cast<T const*>(all.terms[0])[at]);
    for (int term = 1; term < all.term_count; ++term)
      total = combined<Op>(total, wide(static_cast<T const*>(all.terms[term])[at]));
    T result;
    narrow(ended<Op>(total, divisor), result);
    for (int output = 0; output < all.output_count; ++output) static_cast<T*>(all.outputs[output])[at] = result;
  }
}

/// The number of elements before all buffers are aligned to 16 bytes; `count` if they are never aligned together.
template <class T>
std::int64_t elements_before_packs(buffers const& all, std::int64_t count) {
  auto const place = [](void const* address) { return reinterpret_cast<std::uintptr_t>(address) % 16; };
  auto const common = place(all.terms[0]);
  for (int i = 0; i < all.term_count; ++i)
    if (place(all.terms[i]) != common) return count;
  for (int i = 0; i < all.output_count; ++i)
    if (place(all.outputs[i]) != common) return count;
  auto const head = static_cast<std::int64_t>((16 - common) % 16 / sizeof(T));
  return head < count ? head : count;
}

/// Enough blocks to fill the device a few times over, but no more than there is work.
inline int most_blocks() noexcept {
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

template <class T, cuda_reduction Op>
cudaError_t launch(buffers const& all, std::int64_t count, int divisor, cudaStream_t stream) noexcept {
  constexpr int threads = 256;
  auto const head = elements_before_packs<T>(all, count);
  auto const packs = (count - head) / pack<T>::width;
  auto const work = packs > head ? packs : head;
  auto blocks = (work + threads - 1) / threads;
  if (blocks < 1) blocks = 1;
  if (blocks > most_blocks()) blocks = most_blocks();
  combine<T, Op><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(all, head, count, divisor);
  return cudaGetLastError();
}

/// Sums of integers wrap, so signed sums have the bits of unsigned ones.
template <cuda_reduction Op>
cudaError_t launch_sum(cuda_element type, buffers const& all, std::int64_t count, int divisor,
                       cudaStream_t stream) noexcept {
  switch (type) {
    case cuda_element::f64:
      return launch<double, Op>(all, count, divisor, stream);
    case cuda_element::f32:
      return launch<float, Op>(all, count, divisor, stream);
    case cuda_element::bf16:
      return launch<bfloat16_bits, Op>(all, count, divisor, stream);
    case cuda_element::f16:
      return launch<float16_bits, Op>(all, count, divisor, stream);
    default:
      break;
  }
  if constexpr (Op == cuda_reduction::sum) switch (type) {
      case cuda_element::i64:
      case cuda_element::u64:
        return launch<unsigned long long, Op>(all, count, divisor, stream);
      case cuda_element::i32:
      case cuda_element::u32:
        return launch<unsigned, Op>(all, count, divisor, stream);
      case cuda_element::i8:
      case cuda_element::u8:
        return launch<unsigned char, Op>(all, count, divisor, stream);
      default:
        break;
    }
  return cudaErrorInvalidValue;
}
template <cuda_reduction Op>
cudaError_t launch_choice(cuda_element type, buffers const& all, std::int64_t count, cudaStream_t stream) noexcept {
  constexpr bool largest = Op == cuda_reduction::max;
  switch (type) {
    case cuda_element::f64:
      return launch<ordered<long long, unsigned long long, 52, largest>, Op>(all, count, 1, stream);
    case cuda_element::f32:
      return launch<ordered<int, unsigned, 23, largest>, Op>(all, count, 1, stream);
    case cuda_element::bf16:
      return launch<ordered<short, unsigned short, 7, largest>, Op>(all, count, 1, stream);
    case cuda_element::f16:
      return launch<ordered<short, unsigned short, 10, largest>, Op>(all, count, 1, stream);
    case cuda_element::i64:
      return launch<long long, Op>(all, count, 1, stream);
    case cuda_element::u64:
      return launch<unsigned long long, Op>(all, count, 1, stream);
    case cuda_element::i32:
      return launch<int, Op>(all, count, 1, stream);
    case cuda_element::u32:
      return launch<unsigned, Op>(all, count, 1, stream);
    case cuda_element::i8:
      return launch<signed char, Op>(all, count, 1, stream);
    case cuda_element::u8:
      return launch<unsigned char, Op>(all, count, 1, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int cuda_combine(cuda_element type, cuda_reduction op, void* const* outputs, int output_count, void const* const* terms,
                 int term_count, std::int64_t count, int divisor, void* stream) noexcept {
  if (count == 0 || output_count == 0) return cudaSuccess;
  if (term_count < 1 || term_count > most_cuda_terms || output_count > most_cuda_terms) return cudaErrorInvalidValue;
  buffers all;  // unset entries are not read
  std::memcpy(all.outputs, outputs, static_cast<std::size_t>(output_count) * sizeof *outputs);
  std::memcpy(all.terms, terms, static_cast<std::size_t>(term_count) * sizeof *terms);
  all.output_count = output_count;
  all.term_count = term_count;
  auto* const on = static_cast<cudaStream_t>(stream);
  switch (op) {
    case cuda_reduction::sum:
      return launch_sum<cuda_reduction::sum>(type, all, count, divisor, on);
    case cuda_reduction::mean:
      return launch_sum<cuda_reduction::mean>(type, all, count, divisor, on);
    case cuda_reduction::max:
      return launch_choice<cuda_reduction::max>(type, all, count, on);
    case cuda_reduction::min:
      return launch_choice<cuda_reduction::min>(type, all, count, on);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trireme::comm::detail
