// Trireme 0.1.0: trireme/train/build.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 59d23462171252e60034b2bdb250a57edd588ea76e990247ab9d7e4f17ee3372
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/train/build.hpp
#include <string>

namespace trireme {

/// Everything about this build that decides the bits of its numbers: version, compiler, flags and CPU level, one a
/// line. It should be equal on all ranks that train one model.
///
/// @tparam Precision  of the training.
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
  // The instruction set that the compiler may use elsewhere: it sets the width of Eigen's sums and allows fused
  // multiply-add.
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
  return out + ops::level_text<typename Precision::compute>();
}

}  // namespace trireme
