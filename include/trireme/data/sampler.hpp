#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/rng.hpp"

namespace trireme::data {

/// How an order keeps together what lies together in the data, for data that is larger than the memory.
///
/// A block is the samples of about .bytes, as read() writes them: inputs and targets. The order permutes the blocks,
/// and then the samples within each .window of blocks, so that at any time a run reads from so many blocks only: with
/// the values here 2 GiB, which the system keeps in memory until each of their samples has been used.
struct blocks {
  std::int64_t bytes = std::int64_t{64} << 20;
  std::int64_t window = 32;
  friend bool operator==(blocks const&, blocks const&) = default;
};

/// "trireme::data::blocks{.bytes = 67108864, .window = 32}"
[[nodiscard]] inline std::string to_string(blocks const& of) {
  return text("trireme::data::blocks{.bytes = ", of.bytes, ", .window = ", of.window, "}");
}

/// The order in which samples are visited: a new permutation in each epoch, computed without storing indices.
///
/// Why: the order is a function of (seed, epoch, position), so an interrupted run continues with the very next sample
/// from two saved numbers, on any number of ranks, and no list of indices is shuffled or stored.
/// Method: a Feistel network on pairs (left, right) of a grid slightly larger than the number of samples, with Philox
/// as the round function; it is applied again to results outside the range until one is inside [Black, Rogaway, 2002].
/// With a .block it permutes blocks of so many neighbours, and then the samples within each .window of blocks.
///
/// Numerics every id of [0, samples) occurs exactly once per epoch (tested exhaustively).
/// Threads  const and stateless: any number of callers.
/// Errors   validate() throws config_error if there are no samples; id() expects 0 <= position < samples.
struct sampler {
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  std::int64_t block = 0;   ///< samples that stay together; 0: the order is one permutation of all samples
  std::int64_t window = 0;  ///< blocks whose samples are mixed; of no meaning without a block

  void validate() const {
    if (samples < 1)
      throw config_error(text("trireme::data::sampler: ", how_many(samples, "sample"), " give no order"));
    if (block < 0 || (block > 0 && window < 1)) {
      throw config_error(text("trireme::data::sampler: .block = ", block, " and .window = ", window,
                              ", but a block has at least one sample and a window at least one block"));
    }
  }

  /// The number of the sample at `position` of epoch `epoch`. About 0.1 us; 0.3 us with a block.
  [[nodiscard]] std::int64_t id(std::uint64_t epoch, std::int64_t position) const noexcept {
    auto const count = static_cast<std::uint64_t>(samples), at = static_cast<std::uint64_t>(position);
    return static_cast<std::int64_t>(block == 0 ? permuted(count, {epoch, whole, 0}, at) : in_blocks(count, epoch, at));
  }

  friend bool operator==(sampler const&, sampler const&) = default;

 private:
  static constexpr std::uint32_t rounds = 6;
  // They separate these random numbers from other uses of the seed: "samp", "samb", "samw".
  static constexpr std::uint32_t whole = 0x73616d70U, of_blocks = 0x73616d62U, of_window = 0x73616d77U;
  struct key {
    std::uint64_t epoch;
    std::uint32_t site;
    std::uint64_t window;
  };

  // Position -> number: positions are in windows, and each window is permuted as a whole. Block `blocks - 1` of the
  // data lacks `missing` samples; `lacking` is its place in the order of blocks.
  [[nodiscard]] std::uint64_t in_blocks(std::uint64_t count, std::uint64_t epoch, std::uint64_t at) const noexcept {
    auto const length = std::min(static_cast<std::uint64_t>(block), count);
    auto const blocks = (count + length - 1) / length, wide = std::min(static_cast<std::uint64_t>(window), blocks);
    auto const missing = blocks * length - count;
    auto const lacking = missing == 0 ? blocks : place_of(blocks, {epoch, of_blocks, 0}, blocks - 1);
    auto const reach = wide * length, affected = lacking / wide;
    auto const begin = [&](std::uint64_t w) { return std::min(w * reach - (affected < w ? missing : 0), count); };
    auto which = at / reach;
    if (at >= begin(which + 1)) ++which;
    auto const from = begin(which);
    auto within = permuted(begin(which + 1) - from, {epoch, of_window, which}, at - from);
    if (which == affected && within >= (lacking - which * wide + 1) * length - missing) within += missing;
    auto const chosen = permuted(blocks, {epoch, of_blocks, 0}, which * wide + within / length);
    return chosen * length + within % length;
  }

  // A permutation of [0, count).
  [[nodiscard]] std::uint64_t permuted(std::uint64_t count, key const& by, std::uint64_t at) const noexcept {
    auto const columns = width(count);
    auto const rows = (count + columns - 1) / columns;
    do {
      auto left = at / columns;
      auto right = at % columns;
      for (std::uint32_t round = 0; round < rounds; round += 2) {
        left = (left + word(by, round, right)) % rows;
        right = (right + word(by, round + 1, left)) % columns;
      }
      at = left * columns + right;
    } while (at >= count);
    return at;
  }
  // Its inverse: permuted(count, by, place_of(count, by, at)) == at.
  [[nodiscard]] std::uint64_t place_of(std::uint64_t count, key const& by, std::uint64_t at) const noexcept {
    auto const columns = width(count);
    auto const rows = (count + columns - 1) / columns;
    do {
      auto left = at / columns;
      auto right = at % columns;
      for (std::uint32_t round = rounds; round > 0; round -= 2) {
        right = (right + columns - word(by, round - 1, left) % columns) % columns;
        left = (left + rows - word(by, round - 2, right) % rows) % rows;
      }
      at = left * columns + right;
    } while (at >= count);
    return at;
  }

  // The smallest width whose square is at least `count`: the grid then has fewer than `width` extra cells.
  static std::uint64_t width(std::uint64_t count) noexcept {
    auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(count)));
    while (root * root < count) ++root;
    while (root > 1 && (root - 1) * (root - 1) >= count) --root;
    return root;
  }
  [[nodiscard]] std::uint64_t word(key const& by, std::uint32_t round, std::uint64_t half) const noexcept {
    auto const drawn = random_block({seed, by.epoch}, by.site, half ^ (by.window << 32), round);  // half < 2^32
    return (std::uint64_t{drawn[1]} << 32 | drawn[0]) >> 1;  // one bit less, so that adding a half cannot overflow
  }
};

namespace detail {

/// Whether a dataset sets its order. One that holds another may say so by sets_order().
template <dataset Dataset>
[[nodiscard]] bool sets_order([[maybe_unused]] Dataset const& data) {
  if constexpr (!has_sample_order<Dataset>) {
    return false;
  } else if constexpr (requires { data.sets_order(); }) {
    return data.sets_order();
  } else {
    return true;
  }
}
/// The positions of an epoch of a dataset, in its own order or in the sampler's.
template <dataset Dataset>
[[nodiscard]] std::int64_t epoch_size(Dataset const& data) {
  if constexpr (has_sample_order<Dataset>) {
    return data.epoch_size();
  } else {
    return data.size();
  }
}
/// The number of the sample at a position, in the dataset's own order or in the given one.
template <dataset Dataset>
[[nodiscard]] std::int64_t id_at(Dataset const& data, sampler const& order, std::uint64_t epoch,
                                 std::int64_t position) {
  if constexpr (has_sample_order<Dataset>) {
    if (order.block == 0) return data.id_at(order.seed, epoch, position);  // with a block none is set: see order_of
  }
  return order.id(epoch, position);
}
/// The order of a dataset's samples.
/// @param who  the public name with which messages begin.
template <dataset Dataset>
[[nodiscard]] sampler order_of(Dataset const& data, std::uint64_t seed, std::optional<blocks> const& locality,
                               char const* who) {
  sampler order{.samples = epoch_size(data), .seed = seed};
  if (!locality) return order;
  if (locality->bytes < 1 || locality->window < 1) {
    throw config_error(text(who, ": .locality = ", to_string(*locality), ", but both numbers must be at least 1"));
  }
  if (sets_order(data)) {
    throw config_error(text(who, ": the dataset sets its own order, so .locality has no effect; leave it out"));
  }
  auto const one = shape(data.input_shape()).size() * static_cast<std::int64_t>(size_of(data.input_type())) +
                   shape(data.target_shape()).size() * static_cast<std::int64_t>(size_of(data.target_type()));
  order.block = std::max<std::int64_t>(1, locality->bytes / std::max<std::int64_t>(1, one));
  order.window = locality->window;
  return order;
}

}  // namespace detail

/// "trireme::data::sampler{.samples = 10, .seed = 0}"
[[nodiscard]] inline std::string to_string(sampler const& order) {
  return text("trireme::data::sampler{.samples = ", order.samples, ", .seed = ", order.seed,
              order.block == 0 ? "" : text(", .block = ", order.block, ", .window = ", order.window), "}");
}

}  // namespace trireme::data
