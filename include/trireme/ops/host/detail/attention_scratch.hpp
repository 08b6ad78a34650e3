#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/core/dialect.hpp"

namespace trireme::ops::detail {

/// Query rows that are processed together, one per lane, so that softmax needs no sum across lanes.
inline constexpr std::int64_t attention_rows = 32;
/// Key rows per step of the products, so that their shared operands stay in the L1 cache.
inline constexpr std::int64_t attention_keys = 64;

/// The rows of a head, rounded up to whole blocks of query rows.
[[nodiscard]] constexpr std::int64_t padded_rows(std::int64_t context) noexcept {
  return (context + attention_rows - 1) / attention_rows * attention_rows;
}
/// The columns of a head, rounded up to whole vectors.
[[nodiscard]] constexpr std::int64_t padded_width(std::int64_t width) noexcept { return (width + 15) / 16 * 16; }

/// The same, rounded up to whole tiles.
[[nodiscard]] constexpr std::int64_t attention_tile_width(std::int64_t width) noexcept {
  return (width + 31) / 32 * 32;
}

/// Elements of scratch memory that one head of `width` columns needs, at any CPU level.
[[nodiscard]] constexpr std::int64_t attention_scratch(std::int64_t context, std::int64_t width,
                                                       bool backward) noexcept {
  auto const rows = padded_rows(context);
  auto const matrix = rows * padded_width(width);
  auto const block = attention_rows * padded_width(width);
  auto const chunk = attention_keys * attention_rows;
  auto const vectors = backward ? 4 * matrix + 5 * block + 5 * chunk + 2 * attention_rows
                                : 2 * matrix + 3 * block + rows * attention_rows + chunk + 2 * attention_rows;
  // Matrices in tiles are bfloat16, two per element.
  auto const tiles = attention_tile_width(width);
  auto const in_tiles = backward ? (7 * rows * tiles + 224 * tiles + 9 * chunk) / 2 + 3 * attention_rows
                                 : rows * tiles + 64 * tiles + 48 * rows + chunk + 2 * attention_rows;
  return std::max(vectors, in_tiles);
}

}  // namespace trireme::ops::detail
