#pragma once

#include <array>
#include <cstdint>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// Philox 4x32-10: a random function of (counter, key) without state.
///
/// Why: a number drawn for (seed, step, sample, site) is the same on every rank and in every order of drawing; a
/// checkpoint only needs the seed. Method: [Salmon et al., SC 2011], "Parallel random numbers: as easy as 1, 2, 3"; the
/// known answers of its authors are in the tests.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                            std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const a = std::uint64_t{0xD2511F53U} * counter[0];
    std::uint64_t const b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

/// The key of all random numbers of one run: a seed, and the current step.
struct random_key {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  friend bool operator==(random_key const&, random_key const&) = default;
};

/// Four words for block `block` of sample `sample` at site `site` (a number that distinguishes uses).
[[nodiscard]] constexpr std::array<std::uint32_t, 4> random_block(random_key key, std::uint32_t site,
                                                                  std::uint64_t sample, std::uint32_t block) noexcept {
  auto const mixed = key.seed ^ (key.step * 0x9E3779B97F4A7C15ULL);
  return philox({block, site, static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)},
                {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)});
}

/// A word as a number in [0, 1), with 24 bits.
[[nodiscard]] constexpr float unit_float(std::uint32_t word) noexcept {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

}  // namespace trireme
