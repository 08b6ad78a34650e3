#pragma once

#include <unistd.h>

#include <cstdint>

#include "trireme/core/error.hpp"

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
