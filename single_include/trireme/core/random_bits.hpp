// Trireme 0.1.0: trireme/core/random_bits.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: e54812bfe2101277c740c1643d0f8e799bdaed71e540c54feefb00faf0b01375
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/core/random_bits.hpp
#include <unistd.h>

#include <cstdint>

namespace trireme::detail {

/// 64 bits from the system's generator, to tell processes and files apart; never for what a training computes.
/// (std::random_device does the same, but <random> is 6000 lines that each program would read.)
///
/// Threads  any.
/// Errors   error if the system has no generator.
[[nodiscard]] inline std::uint64_t random_bits() {
  std::uint64_t bits{};
  if (::getentropy(&bits, sizeof bits) != 0) throw error("the system has no random numbers (getentropy failed)");
  return bits;
}

}  // namespace trireme::detail
