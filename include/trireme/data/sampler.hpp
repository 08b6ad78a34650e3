#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/rng.hpp"

namespace trireme::data {

/// The order in which samples are visited: a new permutation in each epoch, computed without storing indices.
///
/// Why: the order is a function of (seed, epoch, position), so an interrupted run continues with the very next sample
/// from two saved numbers, on any number of ranks, and no list of indices is shuffled or stored.
/// Method: a Feistel network on pairs (left, right) of a grid slightly larger than the number of samples, with Philox
/// as the round function; it is applied again to results outside the range until one is inside [Black, Rogaway, 2002].
///
/// Numerics every id of [0, samples) occurs exactly once per epoch (tested exhaustively).
/// Threads  const and stateless: any number of callers.
/// Errors   validate() throws config_error if there are no samples; id() expects 0 <= position < samples.
struct sampler {
  std::int64_t samples = 0;
  std::uint64_t seed = 0;

  void validate() const {
    if (samples < 1)
      throw config_error(text("trireme::data::sampler: ", how_many(samples, "sample"), " give no order"));
  }

  /// The number of the sample at `position` of epoch `epoch`. About 0.1 us.
  [[nodiscard]] std::int64_t id(std::uint64_t epoch, std::int64_t position) const noexcept {
    auto const count = static_cast<std::uint64_t>(samples);
    auto const columns = width(count);
    auto const rows = (count + columns - 1) / columns;
    auto at = static_cast<std::uint64_t>(position);
    do {
      auto left = at / columns;
      auto right = at % columns;
      for (std::uint32_t round = 0; round < rounds; round += 2) {
        left = (left + word(epoch, round, right)) % rows;
        right = (right + word(epoch, round + 1, left)) % columns;
      }
      at = left * columns + right;
    } while (at >= count);
    return static_cast<std::int64_t>(at);
  }

  friend bool operator==(sampler const&, sampler const&) = default;

 private:
  static constexpr std::uint32_t rounds = 6;
  static constexpr std::uint32_t site =
      0x73616d70U;  // "samp": separates these random numbers from other uses of the seed

  // The smallest width whose square is at least `count`: the grid then has fewer than `width` extra cells.
  static std::uint64_t width(std::uint64_t count) noexcept {
    auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(count)));
    while (root * root < count) ++root;
    while (root > 1 && (root - 1) * (root - 1) >= count) --root;
    return root;
  }
  [[nodiscard]] std::uint64_t word(std::uint64_t epoch, std::uint32_t round, std::uint64_t half) const noexcept {
    auto const block = random_block({seed, epoch}, site, half, round);
    return (std::uint64_t{block[1]} << 32 | block[0]) >> 1;  // one bit less, so that adding a half cannot overflow
  }
};

namespace detail {

/// The positions of an epoch of a dataset, in its own order or in the sampler's.
template <dataset Dataset>
[[nodiscard]] std::int64_t epoch_size(Dataset const& data) {
  if constexpr (has_sample_order<Dataset>) {
    return data.epoch_size();
  } else {
    return data.size();
  }
}
/// The number of the sample at a position.
template <dataset Dataset>
[[nodiscard]] std::int64_t id_at(Dataset const& data, std::uint64_t seed, std::uint64_t epoch, std::int64_t position) {
  if constexpr (has_sample_order<Dataset>) {
    return data.id_at(seed, epoch, position);
  } else {
    return sampler{.samples = data.size(), .seed = seed}.id(epoch, position);
  }
}

}  // namespace detail

/// "trireme::data::sampler{.samples = 10, .seed = 0}"
[[nodiscard]] inline std::string to_string(sampler const& order) {
  return text("trireme::data::sampler{.samples = ", order.samples, ", .seed = ", order.seed, "}");
}

}  // namespace trireme::data
