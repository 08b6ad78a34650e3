// Trireme 0.1.0: trireme/train/build.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 98dd1bac0ea6e3fb6e2eeced9231388c90716bf36a953a8776e82e36b452efac
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/train/build.hpp
#include <algorithm>
#include <concepts>
#include <string>

namespace trireme {

/// Which build this is, as far as it decides about the bits of numbers: version, compiler, flags and CPU level, one a
/// line. Ranks that train one model should agree in all of them.
///
/// Numerics The levels avx512 and avx512_bf16 have the same float kernels: they are two only where numbers are
/// bfloat16.
///
/// @tparam Precision  what it will train in.
template <class Precision>
[[nodiscard]] std::string build_text() {
  std::string out = text("trireme ", TRIREME_VERSION, '\n');
#if defined(__clang__)
  out += text("clang ", __clang_version__, '\n');
#elif defined(__GNUC__)
  out += text("g++ ", __VERSION__, '\n');
#endif
#if defined(__FAST_MATH__)
  out += "-ffast-math\n";
#elif defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0
  out += "-ffinite-math-only\n";
#else
  out += "no -ffast-math\n";
#endif
  // What the rest of the program may use: sums of Eigen's are as wide, and products may be fused with sums.
#if defined(__AVX512F__)
  out += "compiled for AVX-512";
#elif defined(__AVX__)
  out += "compiled for AVX";
#else
  out += "compiled for any CPU of its kind";
#endif
#if defined(__FMA__) && defined(__OPTIMIZE__)
  out += ", fused products\n";
#else
  out += ", no fused products\n";
#endif
  constexpr bool halves = std::same_as<typename Precision::compute, bf16>;
  auto const level = halves ? ops::detected() : std::min(ops::detected(), ops::cpu_level::avx512);
  return out + text("CPU level ", ops::name_of(level), '\n');
}

}  // namespace trireme
