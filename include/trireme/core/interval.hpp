#pragma once

#include <cstdint>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// The whole numbers [first, first + count): elements of a message, rows of a matrix, positions, samples.
struct interval {
  std::int64_t first = 0;
  std::int64_t count = 0;
  /// The first number after the interval.
  [[nodiscard]] constexpr std::int64_t end() const noexcept { return first + count; }
  friend constexpr bool operator==(interval const&, interval const&) = default;
};

}  // namespace trireme
