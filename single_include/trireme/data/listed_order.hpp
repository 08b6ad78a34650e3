// Trireme 0.1.0: trireme/data/listed_order.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 48d47dd8d9d8351da775fbf2935cd333faf420a8384f5cb7ae53cec956f1f3a8
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/combined.hpp"

// ---- trireme/data/listed_order.hpp
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace trireme::data {

/// A dataset in an order that is given: position i of each epoch is the sample order[i]. So a run can be compared with
/// one of another program, sample by sample. A number may occur several times, or never.
///
///     data::listed_order(windows, data::nanogpt_order(1337, windows.size(), 480 * 1000))
///
/// Bytes    8 for each position.
/// Errors   config_error if the order is empty or has a number that the dataset does not have.
/// @models trireme::dataset, trireme::has_sample_order, trireme::has_placed_read
class listed_order {
 public:
  listed_order(shared_dataset from, std::vector<std::int64_t> order) : from_(std::move(from)) {
    if (order.empty()) throw config_error("trireme::data::listed_order: the order is empty");
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (order[i] < 0 || order[i] >= from_.size()) {
        throw config_error(text("trireme::data::listed_order: position ", i, " is sample ", order[i],
                                ", but there are ", from_.size(), " samples"));
      }
    }
    order_ = std::make_shared<std::vector<std::int64_t> const>(std::move(order));
  }
  [[nodiscard]] std::int64_t epoch_size() const noexcept { return static_cast<std::int64_t>(order_->size()); }
  [[nodiscard]] std::int64_t id_at(std::uint64_t, std::uint64_t, std::int64_t position) const noexcept {
    return (*order_)[static_cast<std::size_t>(position)];
  }

  [[nodiscard]] std::int64_t size() const noexcept { return from_.size(); }
  [[nodiscard]] dtype input_type() const noexcept { return from_.input_type(); }
  [[nodiscard]] dtype target_type() const noexcept { return from_.target_type(); }
  [[nodiscard]] shape input_shape() const { return from_.input_shape(); }
  [[nodiscard]] shape target_shape() const { return from_.target_shape(); }
  [[nodiscard]] bool slow_to_read() const noexcept { return from_.slow_to_read(); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const { from_.read(ids, inputs, targets); }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    from_.read(place, ids, inputs, targets);
  }

 private:
  shared_dataset from_;
  std::shared_ptr<std::vector<std::int64_t> const> order_;
};

/// Where the numbers of nanogpt_order begin, and how torch makes them.
struct torch_numbers {
  std::uint64_t drawn_before = 0;                    ///< numbers of 32 bits that the generator has given before
  std::uint64_t wide_from = std::uint64_t{1} << 28;  ///< windows from which on it takes 64 bits; older torch: 2^32
  friend bool operator==(torch_numbers const&, torch_numbers const&) = default;
};

/// The offsets that nanoGPT's `torch.randint(windows, (count,))` gives after `torch.manual_seed(seed)` on the CPU: with
/// token_shards{.stride = 1} the samples of its batches, one after the other.
///
/// The first batch of nanoGPT's train.py comes after the model's weights, from the same generator, and its evaluations
/// draw from it too: `.drawn_before` counts what came before, or print `ix` there and give that list to listed_order.
///
/// Method   the Mersenne twister [Matsumoto and Nishimura, 1998], modulo the number of windows.
/// Errors   config_error if windows or count is less than 1.
[[nodiscard]] inline std::vector<std::int64_t> nanogpt_order(std::uint32_t seed, std::int64_t windows,
                                                             std::int64_t count, torch_numbers const& from = {}) {
  if (windows < 1 || count < 1) {
    throw config_error(
        text("trireme::data::nanogpt_order: ", count, " numbers below ", windows, ", but both must be at least 1"));
  }
  std::mt19937 engine(seed);
  engine.discard(from.drawn_before);
  auto const range = static_cast<std::uint64_t>(windows);
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t word = engine();
    if (range >= from.wide_from) word = word << 32 | engine();
    out.push_back(static_cast<std::int64_t>(word % range));
  }
  return out;
}

}  // namespace trireme::data
