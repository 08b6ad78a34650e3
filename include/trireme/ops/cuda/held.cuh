#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trireme/ops/cuda/formulas.cuh"

namespace trireme::ops::detail::device {

/// Width neighbouring elements of T in registers, as they are in memory: two elements of 16 bits share a register,
/// which a compiler does not do on its own with a pack of them. Element k is read as float, or double.
template <class T, int Width>
struct held {
  using real = real_for<T>;
  using word = std::conditional_t<sizeof(T) == 2, std::uint32_t, T>;
  static constexpr int in_word = static_cast<int>(sizeof(word) / sizeof(T));
  static constexpr int count = Width / in_word;
  static_assert(count * in_word == Width);

  word words[count];

  /// The elements from `from` on, which is aligned to all of them.
  __device__ __forceinline__ void read(T const* from) {
    auto const in = load<Width>(from);
    std::memcpy(words, &in, sizeof words);
  }
  __device__ __forceinline__ real operator[](int k) const {
    if constexpr (in_word == 1)
      return wide(words[k]);
    else
      return k % 2 == 0 ? wide_first<T>(words[k / 2]) : wide_second<T>(words[k / 2]);
  }
  /// Keeps the words in registers across this call, but not the numbers that were made of them. Elements of 16 bits
  /// alone: made anew where they are needed, they take half the registers.
  __device__ __forceinline__ void keep() {
    if constexpr (in_word == 2) {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < count; ++k) renew(words[k]);
    }
  }
  /// Writes numbers, each rounded once.
  __device__ __forceinline__ static void write(T* to, real const (&x)[Width]) {
    held made;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < count; ++k) {
      if constexpr (in_word == 1)
        made.words[k] = x[k];
      else
        made.words[k] = narrow_two<T>(x[2 * k], x[2 * k + 1]);
    }
    pack<T, Width> out;
    std::memcpy(&out, made.words, sizeof out);
    store(to, out);
  }
};
/// How many of Count neighbouring elements of T are read at once: those that 16 bytes hold.
template <class T, int Count>
inline constexpr int at_once = Count < pack_width<T> ? Count : pack_width<T>;

/// Count neighbouring elements as they were read; `from` is aligned for as many as are read at once.
template <class T, int Count>
struct as_read {
  static constexpr int step = at_once<T, Count>;
  held<T, step> parts[Count / step];

  __device__ __forceinline__ void read(T const* from) {
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Count / step; ++k) parts[k].read(from + k * step);
  }
  __device__ __forceinline__ real_for<T> operator[](int k) const { return parts[k / step][k % step]; }
};
template <class T>
struct as_read<T, 1> {
  T one;
  __device__ __forceinline__ void read(T const* from) { one = *from; }
  __device__ __forceinline__ real_for<T> operator[](int) const { return wide(one); }
};

/// Count neighbouring elements as numbers; `from` is aligned for as many as are read at once.
template <int Count, class T, class Real>
__device__ __forceinline__ void read_numbers(Real (&to)[Count], T const* from) {
  if constexpr (Count == 1) {
    to[0] = wide(*from);
  } else {
    constexpr int step = at_once<T, Count>;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Count; k += step) {
      held<T, step> in;
      in.read(from + k);
      TRIREME_DEVICE_UNROLL
      for (int e = 0; e < step; ++e) to[k + e] = in[e];
    }
  }
}
/// Writes Count numbers, each rounded once.
template <int Count, class T, class Real>
__device__ __forceinline__ void write_numbers(T* to, Real const (&x)[Count]) {
  if constexpr (Count == 1) {
    *to = narrow<T>(x[0]);
  } else {
    constexpr int step = at_once<T, Count>;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Count; k += step) {
      typename held<T, step>::real part[step];
      TRIREME_DEVICE_UNROLL
      for (int e = 0; e < step; ++e) part[e] = x[k + e];
      held<T, step>::write(to + k, part);
    }
  }
}

}  // namespace trireme::ops::detail::device
