#pragma once

#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/simd.hpp"

namespace trireme::ops::detail {

/// The factor on kept numbers, and the 24-bit threshold below which a number is dropped.
struct dropout_scale {
  std::uint32_t threshold;
  double kept;
  explicit dropout_scale(double probability)
      : threshold(static_cast<std::uint32_t>(std::lround(probability * 0x1p24))), kept(1 / (1 - probability)) {}
};

}  // namespace trireme::ops::detail

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/elementwise.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/elementwise.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/elementwise.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

TRIREME_BODY void same_size(char const* who, std::int64_t a, std::int64_t b) {
  expects(assertion_level::light, a == b,
          [&] { return text("trireme::ops::", who, ": sizes ", a, " and ", b, " differ"); });
}

template <class T, class U>
void convert_elements(T* y, U const* x, std::int64_t n) {
  TRIREME_DISPATCH((fits_float<T, U>), convert(y, x, n));
}
template <class T, class U>
void accumulate_elements(T* y, U const* x, std::int64_t n, double weight) {
  TRIREME_DISPATCH((fits_float<T, U>), accumulate(y, x, n, weight));
}
template <class T>
void scale_elements(T* y, std::int64_t n, double factor) {
  TRIREME_DISPATCH(fits_float<T>, scale(y, n, factor));
}
template <class T>
void multiply_elements(T* y, T const* a, T const* b, std::int64_t n) {
  TRIREME_DISPATCH(fits_float<T>, multiply(y, a, b, n));
}
template <class T>
void activate_elements(T* y, T const* x, std::int64_t n, activation act) {
  TRIREME_DISPATCH(fits_float<T>, activate(y, x, n, act));
}
template <class T>
void activate_backward_elements(T* dx, T const* dy, T const* x, std::int64_t n, activation act) {
  TRIREME_DISPATCH(fits_float<T>, activate_backward(dx, dy, x, n, act));
}
template <class T>
void dropout_elements(T* y, std::int64_t n, std::int64_t position, dropout_site const& site, std::uint64_t sample) {
  TRIREME_DISPATCH(fits_float<T>, dropout(y, n, position, site, sample));
}

/// Elements i and i + 1 of a normal distribution from two words [Box, Muller, 1958].
inline std::array<double, 2> normal_pair(std::uint32_t a, std::uint32_t b) {
  double const radius = std::sqrt(-2 * std::log((a + 1.0) * 0x1p-32));
  double const angle = 2 * std::numbers::pi * 0x1p-32 * b;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

template <class T>
void initialise_elements(T* y, std::int64_t n, initial how, std::uint64_t seed, std::uint64_t name,
                         std::int64_t first) {
  for (std::int64_t i = 0; i < n;) {
    auto const block = static_cast<std::uint64_t>((first + i) / 4);
    auto const words = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                               static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)},
                              {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    std::array<double, 4> numbers;
    if (how.kind == initial::distribution::normal) {
      auto const low = normal_pair(words[0], words[1]);
      auto const high = normal_pair(words[2], words[3]);
      numbers = {low[0], low[1], high[0], high[1]};
    } else {
      for (std::size_t j = 0; j < 4; ++j) numbers[j] = 2 * 0x1p-32 * words[j] - 1;
    }
    for (auto j = static_cast<std::size_t>((first + i) % 4); j < 4 && i < n; ++j, ++i) {
      y[i] = static_cast<T>(static_cast<accumulate_t<T>>(how.scale * numbers[j]));
    }
  }
}

}  // namespace trireme::ops::detail
