// Trireme 0.1.0: trireme/data/listed_order.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 46cdf833ec3278a7ff74e116b67d108ff5696a12b82cdbd2da7b6f16c7dc757f
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

namespace detail {

/// torch's generator on the CPU: the Mersenne twister [Matsumoto and Nishimura, 1998].
class torch_generator {
 public:
  torch_generator(std::uint32_t seed, torch_numbers const& from) : engine_(seed), wide_from_(from.wide_from) {
    engine_.discard(from.drawn_before);
  }
  /// As torch.randint(end, (1,)).
  [[nodiscard]] std::int64_t below(std::int64_t end) {
    auto const range = static_cast<std::uint64_t>(end);
    std::uint64_t word = engine_();
    if (range >= wide_from_) word = word << 32 | engine_();
    return static_cast<std::int64_t>(word % range);
  }

 private:
  std::mt19937 engine_;
  std::uint64_t wide_from_;
};

}  // namespace detail

/// The offsets that nanoGPT's `torch.randint(windows, (count,))` gives after `torch.manual_seed(seed)` on the CPU: with
/// token_shards{.stride = 1} the samples of its batches, one after the other.
///
/// Errors   config_error if windows or count is less than 1.
/// @see nanogpt_run, which also counts what nanoGPT's train.py draws otherwise
[[nodiscard]] inline std::vector<std::int64_t> nanogpt_order(std::uint32_t seed, std::int64_t windows,
                                                             std::int64_t count, torch_numbers const& from = {}) {
  if (windows < 1 || count < 1) {
    throw config_error(
        text("trireme::data::nanogpt_order: ", count, " numbers below ", windows, ", but both must be at least 1"));
  }
  detail::torch_generator random(seed, from);
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  for (auto& each : out) each = random.below(windows);
  return out;
}

/// A run of nanoGPT's train.py from scratch: order() lists the samples of its steps.
///
///     data::nanogpt_run const run{.windows = windows.size(), .held_out_windows = 4434606, .steps = 1000};
///     data::listed_order const ordered(windows, run.order());        // batches of run.samples_per_step()
///
/// In train.py one generator makes the model's weights, then draws batches, and those of evaluations between them; so
/// the sizes of the model and of the evaluations are needed. The values here are those of train.py. On a CPU dropout
/// draws from that generator too: compare runs without it there.
///
/// Method   numbers of torch 2 for a model that is made on the CPU, as train.py does.
/// Bytes    8 for each sample.
/// Errors   order() throws config_error for fields that are not positive (eval_iterations may be 0), for a model with
///          a weight of fewer than 16 numbers, and for an accumulation that the ranks do not divide.
struct nanogpt_run {
  std::int64_t windows = 0;           ///< len(train.bin) - block_size, as token_shards{.stride = 1} counts them
  std::int64_t held_out_windows = 0;  ///< len(val.bin) - block_size
  std::int64_t steps = 0;
  std::int64_t batch = 12;         ///< batch_size
  std::int64_t accumulation = 40;  ///< gradient_accumulation_steps
  std::int64_t eval_interval = 2000;
  std::int64_t eval_iterations = 200;  ///< eval_iters
  std::int64_t layers = 12;            ///< n_layer
  std::int64_t channels = 768;         ///< n_embd
  std::int64_t vocabulary = 50304;
  std::int64_t context = 1024;  ///< block_size
  bool bias = false;
  std::uint32_t seed = 1337;
  std::int64_t ranks = 1;  ///< of torchrun; rank r draws from seed + r, and only rank 0 evaluates
  std::uint64_t wide_from = torch_numbers{}.wide_from;

  [[nodiscard]] std::int64_t samples_per_step() const noexcept { return batch * accumulation; }
  /// The numbers of 32 bits that making the model takes.
  [[nodiscard]] std::uint64_t drawn_by_weights() const noexcept {
    // torch fills a tensor of 16 and more normal numbers by blocks of 16, of which the last one is drawn again.
    auto const normal = [](std::int64_t n) { return n + (n % 16 == 0 ? 0 : 16); };
    auto const square = channels * channels, words = vocabulary * channels, places = context * channels;
    // Each layer first gets its usual numbers: of linear layers one for each weight and bias, uniform.
    auto const usual = normal(words) + normal(places) + layers * (12 * square + (bias ? 9 * channels : 0)) + words;
    // Then those of nanoGPT: the matrix of words as that of the input and of the output, projections a second time.
    auto const own = 2 * normal(words) + normal(places) +
                     layers * (normal(3 * square) + 2 * normal(square) + 3 * normal(4 * square));
    return static_cast<std::uint64_t>(usual + own);
  }
  [[nodiscard]] std::vector<std::int64_t> order() const {
    auto const refuse = [](auto const&... parts) {
      return config_error(text("trireme::data::nanogpt_run: ", parts...));
    };
    auto const least = {windows, held_out_windows, steps,   batch, accumulation, eval_interval,
                        layers,  channels,         context, ranks, vocabulary};
    for (auto const each : least) {
      if (each < 1) throw refuse("a field is ", each, ", but all of them must be at least 1");
    }
    if (eval_iterations < 0) throw refuse(".eval_iterations = ", eval_iterations, ", but it must be 0 or more");
    if (channels < 4 || context * channels < 16 || vocabulary * channels < 16)
      throw refuse("the model has a weight of fewer than 16 numbers, which torch draws in another way");
    if (accumulation % ranks != 0)
      throw refuse(".accumulation = ", accumulation, ", but it must be a multiple of ", ranks, " ranks");
    auto const own = accumulation / ranks;
    std::vector<std::int64_t> out(static_cast<std::size_t>(steps * samples_per_step()));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      detail::torch_generator random(seed + static_cast<std::uint32_t>(rank),
                                     {.drawn_before = drawn_by_weights(), .wide_from = wide_from});
      for (std::int64_t n = 0; n < steps * own; ++n) {
        auto const to = n / own * samples_per_step() + rank * own * batch + n % own * batch;
        for (std::int64_t i = 0; i < batch; ++i) out[static_cast<std::size_t>(to + i)] = random.below(windows);
        // A batch is drawn before the step that it is for: the evaluation of step s is after the first batch of s.
        if (rank != 0 || n % own != 0 || n / own % eval_interval != 0) continue;
        for (auto const end : {windows, held_out_windows}) {
          for (std::int64_t i = 0; i < eval_iterations * batch; ++i) static_cast<void>(random.below(end));
        }
      }
    }
    return out;
  }
  friend bool operator==(nanogpt_run const&, nanogpt_run const&) = default;
};

}  // namespace trireme::data
