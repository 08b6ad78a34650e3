#pragma once

#include <bit>

#include "trireme/core/rng.hpp"
#include "trireme/ops/codes.hpp"
#include "trireme/ops/cuda/formulas.cuh"

// Codes of few bits, and elements that are drawn at random (ops/codes.hpp; the host's kernels are in
// ops/host/detail/codes.inl).
//
// A group of 512 / Bits numbers becomes 16 words: number 16 v + l of the group is bits [Bits v, Bits (v + 1)) of word
// l. A thread writes or reads one word, so 16 neighbouring threads read and write whole lines of 64 bytes.

namespace trireme::ops::detail::device {

inline constexpr int words_of_group = 16;
/// The threads that encode one block. With one bit, thread t sums magnitudes t, t + 64, ..., in the order of the host.
inline constexpr int encoding_threads = 64;

/// Words in memory that need not be aligned for them.
__device__ __forceinline__ std::uint32_t load_word(std::uint8_t const* from, bool aligned) {
  if (aligned) return *reinterpret_cast<std::uint32_t const*>(from);
  std::uint32_t word = 0;
  for (int byte = 0; byte < 4; ++byte) word |= static_cast<std::uint32_t>(from[byte]) << 8 * byte;
  return word;
}
__device__ __forceinline__ void store_word(std::uint8_t* to, std::uint32_t word, bool aligned) {
  if (aligned) {
    *reinterpret_cast<std::uint32_t*>(to) = word;
    return;
  }
  for (int byte = 0; byte < 4; ++byte) to[byte] = static_cast<std::uint8_t>(word >> 8 * byte);
}

/// The bits of the magnitude as a float; those of NaN are larger than all others.
template <class G>
__device__ __forceinline__ std::uint32_t float_magnitude(G x) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0x7fff'ffffU;
}

/// The largest number of all threads of a block of encoding_threads.
__device__ __forceinline__ std::uint32_t largest_of_block(std::uint32_t own) {
  constexpr int warps = encoding_threads / warp_width;
  for (int by = warp_width / 2; by > 0; by /= 2) {
    auto const other = shuffle_xor(own, by);
    own = other > own ? other : own;
  }
  auto& of_warps = block_shared<std::uint32_t[warps]>();
  sync_block();  // all threads have read what was there before
  if (threadIdx.x % warp_width == 0) of_warps[threadIdx.x / warp_width] = own;
  sync_block();
  for (int warp = 0; warp < warps; ++warp) own = of_warps[warp] > own ? of_warps[warp] : own;
  return own;
}

/// The scale of codes in [-levels, levels], rounded up to 16 significant bits; NaN if a number is not finite.
__device__ __forceinline__ float scale_of_codes(std::uint32_t largest, int levels) {
  if (largest >= 0x7f80'0000U) return float_of(0x7fc0'0000U);
  float const most = float_of(largest);
  if (most < 0x1p-100F) return 0;
  // levels * scale stays finite.
  float const by = static_cast<float>(levels);
  float const highest = float_of(std::bit_cast<std::uint32_t>(quotient(float_of(0x7f7f'ffffU), by)) & ~0xffU);
  float const scale = float_of((std::bit_cast<std::uint32_t>(quotient(most, by)) + 0xffU) & ~0xffU);
  return scale < highest ? scale : highest;
}

/// The mean magnitude of a block of numbers, in the host's order: 64 sums of every 64th number, then these in turn.
template <class G>
__device__ float scale_of_signs(G const* x, std::int64_t n) {
  auto& sums = block_shared<float[encoding_threads]>();
  auto& result = block_shared<float>();
  auto const whole = n / encoding_threads * encoding_threads;
  float own = 0;
  for (std::int64_t i = threadIdx.x; i < whole; i += encoding_threads) own = sum(own, float_of(float_magnitude(x[i])));
  sync_block();  // all threads have read the result before
  sums[threadIdx.x] = own;
  sync_block();
  if (threadIdx.x == 0) {
    float all = 0;
    for (int t = 0; t < encoding_threads; ++t) all = sum(all, sums[t]);
    for (auto i = whole; i < n; ++i) all = sum(all, float_of(float_magnitude(x[i])));
    float const highest = float_of(0x7f7f'ffffU);
    float scale = quotient(all, static_cast<float>(n));
    if (!(scale <= highest)) {  // an overflow, or numbers that are not finite
      double precise = 0;
      for (std::int64_t i = 0; i < n; ++i) precise = sum(precise, static_cast<double>(float_of(float_magnitude(x[i]))));
      double const mean = quotient(precise, static_cast<double>(n));
      scale = mean <= static_cast<double>(highest) ? static_cast<float>(mean) : float_of(0x7fc0'0000U);
    }
    result = scale < 0x1p-100F ? 0 : scale;
  }
  sync_block();
  return result;
}

/// Two 16-bit random numbers: an integer hash [Wellons, "hash-prospector", 2018], keyed by two words.
__device__ __forceinline__ std::uint32_t two_randoms(std::uint32_t number, std::uint32_t first, std::uint32_t second) {
  number ^= first;
  number ^= number >> 16;
  number *= 0x7feb352dU;
  number ^= number >> 15;
  number += second;
  number *= 0x846ca68bU;
  return number ^ number >> 16;
}

/// A thread block takes one block of numbers after another: its scale, then its words.
template <int Bits, class G>
__global__ void __launch_bounds__(encoding_threads)
    encode_codes(float* scales, std::uint8_t* codes, bool aligned, G const* x, std::int64_t n, std::int64_t block,
                 bool random, random_stream const stream) {
  constexpr int group = 512 / Bits;
  constexpr std::int64_t stretch = 4096;  // numbers that share a key
  constexpr std::int32_t limit = ((1 << (Bits - 1)) - 1) * 65536;
  constexpr std::uint32_t mask = (1U << Bits) - 1;
  auto const l = static_cast<int>(threadIdx.x) % words_of_group;
  std::int64_t known = -1;  // the stretch whose key follows
  std::uint32_t first_key = 0, second_key = 0;
  for (std::int64_t b = blockIdx.x; b * block < n; b += gridDim.x) {
    auto const before = b * block;
    auto const count = n - before < block ? n - before : block;
    auto const* const from = x + before;
    float scale;
    if constexpr (Bits == 1) {
      scale = scale_of_signs(from, count);
    } else {
      std::uint32_t largest = 0;
      for (std::int64_t i = threadIdx.x; i < count; i += encoding_threads) {
        auto const bits = float_magnitude(from[i]);
        largest = bits > largest ? bits : largest;
      }
      scale = scale_of_codes(largest_of_block(largest), (1 << (Bits - 1)) - 1);
    }
    if (threadIdx.x == 0) scales[b] = scale;
    bool const usable = scale > 0;  // false for NaN
    float const factor = usable ? quotient(65536.0F, scale) : 0;
    auto* const to = codes + (before + group - 1) / group * 64;
    for (std::int64_t g = threadIdx.x / words_of_group; g * group < count; g += encoding_threads / words_of_group) {
      auto const at = g * group;
      std::uint32_t word = 0;
      if constexpr (Bits == 1) {
        TRIREME_DEVICE_UNROLL
        for (int v = 0; v < 32; ++v) {
          auto const i = at + 16 * v + l;
          if (i < count) word |= std::bit_cast<std::uint32_t>(static_cast<float>(from[i])) >> 31 << v;
        }
      } else if (usable) {
        auto const place = before + at;
        if (random && place / stretch != known) {
          known = place / stretch;
          auto const words = random_block(stream.key, stream.site, stream.sample, static_cast<std::uint32_t>(known));
          first_key = words[0];
          second_key = words[1];
        }
        auto const number = static_cast<std::uint32_t>(place % stretch / 2) + static_cast<std::uint32_t>(l);
        TRIREME_DEVICE_UNROLL
        for (int v = 0; v < 32 / Bits; ++v) {
          auto const i = at + 16 * v + l;
          float const value = i < count ? static_cast<float>(from[i]) : 0;
          // A code with 16 bits after the point; what is added decides how it is rounded.
          std::uint32_t two = 0x8000'8000U;  // a half, twice
          if (random) two = two_randoms(number + static_cast<std::uint32_t>(8 * (v / 2 * 2)), first_key, second_key);
          auto fixed = static_cast<std::int32_t>(product(value, factor));
          fixed = fixed > limit ? limit : fixed < -limit ? -limit : fixed;
          fixed += static_cast<std::int32_t>(v % 2 == 0 ? two & 0xffffU : two >> 16);
          word |= (static_cast<std::uint32_t>(fixed >> 16) & mask) << Bits * v;
        }
      }
      store_word(to + g * 64 + l * 4, word, aligned);
    }
  }
}

/// Task i is word i of the codes: y = or += the numbers in it.
template <int Bits, class G>
struct decoding {
  static constexpr int width = 1;
  G* y;
  float const* scales;
  std::uint8_t const* codes;
  std::int64_t n, block;
  bool aligned, add;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const first = i / words_of_group * (512 / Bits) + i % words_of_group;
    auto const word = load_word(codes + i * 4, aligned);
    float const scale = scales[(first - i % words_of_group) / block];
    TRIREME_DEVICE_UNROLL
    for (int v = 0; v < 32 / Bits; ++v) {
      auto const place = first + 16 * v;
      if (place >= n) break;
      float number;
      if constexpr (Bits == 1) {
        number = float_of((word << (31 - v) & 0x8000'0000U) | std::bit_cast<std::uint32_t>(scale));
      } else {
        auto const code = static_cast<std::int32_t>(word << (32 - Bits * (v + 1))) >> (32 - Bits);
        number = product(static_cast<float>(code), scale);
      }
      auto const value = static_cast<G>(number);
      y[place] = add ? sum(y[place], value) : value;
    }
  }
};

/// The element that is drawn from stratum i of k, of n elements, and the size of the stratum.
struct drawn_element {
  std::int64_t at, size;
};
__device__ __forceinline__ drawn_element draw_element(std::int64_t n, std::int64_t k, std::int64_t i,
                                                      std::uint32_t word) {
  auto const first = i * n / k;
  auto const size = (i + 1) * n / k - first;
  auto const offset = static_cast<std::uint64_t>(word) * static_cast<std::uint64_t>(size);
  return {first + static_cast<std::int64_t>(offset >> 32), size};
}

/// Task i is the elements 4 i to 4 i + 3, which share a block of four random words: values = elements of x.
template <class T, class G>
struct gathering_drawn {
  static constexpr int width = 1;
  T* values;
  G const* x;
  std::int64_t k, n;
  random_stream stream;
  bool weighted;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const words = random_block(stream.key, stream.site, stream.sample, static_cast<std::uint32_t>(i));
    TRIREME_DEVICE_UNROLL
    for (int j = 0; j < 4; ++j) {
      auto const which = i * 4 + j;
      if (which >= k) break;
      auto const element = draw_element(n, k, which, words[static_cast<std::size_t>(j)]);
      auto const value = x[element.at];
      values[which] = narrow<T>(weighted ? product(value, static_cast<G>(element.size)) : value);
    }
  }
};
/// The same for y[...] = values.
template <class G, class T>
struct scattering_drawn {
  static constexpr int width = 1;
  G* y;
  T const* values;
  std::int64_t k, n;
  random_stream stream;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const words = random_block(stream.key, stream.site, stream.sample, static_cast<std::uint32_t>(i));
    TRIREME_DEVICE_UNROLL
    for (int j = 0; j < 4; ++j) {
      auto const which = i * 4 + j;
      if (which >= k) break;
      y[draw_element(n, k, which, words[static_cast<std::size_t>(j)]).at] = static_cast<G>(wide(values[which]));
    }
  }
};

}  // namespace trireme::ops::detail::device
