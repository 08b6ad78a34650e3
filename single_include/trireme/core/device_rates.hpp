// Trireme 0.1.0: trireme/core/device_rates.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 4b3c53cb82481e9130d4a2d726e72a4b085b10318a3e134bac05d3a89d6d5da1
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/core/device_rates.hpp
namespace trireme {

/// The most that a device does, by what it says of its processors, clocks and memory.
struct device_rates {
  double flops = 0;      ///< additions and multiplications of matrix products a second; 0: not known
  double bandwidth = 0;  ///< bytes a second that its memory reads or writes; 0: not known
};

namespace detail {

/// How many multiplications with an addition one multiprocessor of an NVIDIA GPU does in a clock in products of
/// matrices of this type: in tensor cores, with sums in float, where it has them for the type. 0: not known.
///
/// Source  NVIDIA's white papers on the architectures of compute capability 7.5 to 12.0, and, without tensor cores, the
///         table of arithmetic instructions in the CUDA C++ Programming Guide.
[[nodiscard]] constexpr double products_of_multiprocessor(int major, int minor, dtype of, bool tf32) noexcept {
  struct row {
    int major, minor;
    double of_16_bits, of_tf32, of_float, of_double;
  };
  constexpr row known[] = {
      {7, 5, 512, 0, 64, 2},        {8, 0, 1024, 512, 64, 64},    {8, 6, 512, 256, 128, 2},  {8, 9, 512, 256, 128, 2},
      {9, 0, 2048, 1024, 128, 128}, {10, 0, 4096, 2048, 128, 64}, {12, 0, 512, 256, 128, 2},
  };
  for (auto const& each : known) {
    if (each.major != major || each.minor != minor) continue;
    if (of == dtype::f16 || (of == dtype::bf16 && major >= 8)) return each.of_16_bits;
    if (of == dtype::f32) return tf32 ? each.of_tf32 : each.of_float;
    return of == dtype::f64 ? each.of_double : 0;
  }
  return 0;
}

}  // namespace detail

}  // namespace trireme
