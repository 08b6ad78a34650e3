// Trireme 0.1.0: trireme/data/megatron_windows.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ae77c46a06bc9df48f86f70ce4901977d5dc35d8f0a2b3ac98708b8031478eca
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/token_shards.hpp"
#include "trireme/formats/token_files.hpp"

// ---- trireme/data/megatron_windows.hpp
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

class megatron_samples;

/// The samples of Megatron-LM's GPTDataset, in its order: to compare a run with one of Megatron-LM, sample by sample.
///
///     data::megatron_windows{.file = "data/text.bin", .context = 2048, .samples = 1000 * 256, .seed = 1234}.open()
///
/// Sequences of the index are shuffled, joined over as many epochs as `.samples` need, cut into windows, and the
/// windows are shuffled; the last epoch is shuffled apart if less than 80 % of it is needed. A batch of fit() is then a
/// global batch of Megatron-LM. The seed of fit() has no influence, and a further epoch is the same order again. For
/// everything else take token_shards, which needs no memory for an order.
///
/// Bytes    12 for each sequence and epoch, 8 for each sequence, 4 for each sample.
/// Errors   open() throws config_error for fields out of range and for sequences that do not fill a window; the errors
///          of token_shards for damaged files.
struct megatron_windows {
  std::string file;                 ///< NAME.bin, with NAME.idx beside it
  std::int64_t context = 1024;      ///< Megatron-LM's --seq-length
  std::int64_t samples = 0;         ///< that the whole run takes: steps * global batch; 0: those of one epoch
  std::uint32_t seed = 1234;        ///< --seed
  std::int64_t first_sequence = 0;  ///< of the split that is used (--split)
  std::int64_t last_sequence = -1;  ///< the last one; -1: of the file
  std::int64_t vocabulary = 0;      ///< ids from it on are refused when they are read; 0: any is read
  std::int32_t separator = -1;      ///< the target after it is -1 (--eod-mask-loss); -1: none
  [[nodiscard]] megatron_samples open() const;
  friend bool operator==(megatron_windows const&, megatron_windows const&) = default;
};

/// "trireme::data::megatron_windows{.file = "text.bin", .context = 1024, ...}"
[[nodiscard]] inline std::string to_string(megatron_windows const& from) {
  return text("trireme::data::megatron_windows{.file = \"", from.file, "\", .context = ", from.context,
              ", .samples = ", from.samples, ", .seed = ", from.seed, ", .first_sequence = ", from.first_sequence,
              ", .last_sequence = ", from.last_sequence, ", .vocabulary = ", from.vocabulary,
              ", .separator = ", from.separator, "}");
}

namespace detail {

/// numpy.random.RandomState(seed).
class numpy_random_state {
 public:
  explicit numpy_random_state(std::uint32_t seed) : engine_(seed) {}
  /// As its shuffle() of an array of one axis.
  template <class T>
  void shuffle(std::span<T> of) {
    for (std::size_t i = of.size(); i-- > 1;) std::swap(of[i], of[below_or_at(static_cast<std::uint32_t>(i))]);
  }

 private:
  [[nodiscard]] std::uint32_t below_or_at(std::uint32_t most) {
    auto mask = most;
    for (unsigned by = 1; by < 32; by *= 2) mask |= mask >> by;
    while (true) {
      auto const value = static_cast<std::uint32_t>(engine_()) & mask;
      if (value <= most) return value;
    }
  }
  std::mt19937 engine_;
};

}  // namespace detail

/// The samples of megatron_windows.
///
/// Shapes   inputs (T) int32; targets (T) int32: the next token of each, or -1 after the separator.
/// Threads  read() is const: any number of callers. Copies share the order and the open file.
/// @models trireme::dataset, trireme::has_sample_order          @see megatron_windows
class megatron_samples {
 public:
  explicit megatron_samples(megatron_windows from) : from_(std::move(from)) {
    auto const refuse = [](auto const&... parts) { return config_error(text(who, ": ", parts...)); };
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (from_.context < 1 || from_.context >= most || from_.samples < 0) {
      throw refuse(".context = ", from_.context, " and .samples = ", from_.samples,
                   ", but at least 1 token and not less than 0 samples are needed");
    }
    tokens_ = std::make_shared<detail::shard_sequence const>(
        token_shards{.files = from_.file, .kind = shard_kind::megatron, .vocabulary = from_.vocabulary});
    auto const lengths = lengths_of(from_.file);
    auto const sequences = static_cast<std::int64_t>(lengths.size());
    auto const last = from_.last_sequence == -1 ? sequences - 1 : from_.last_sequence;
    if (from_.first_sequence < 0 || last >= sequences || last < from_.first_sequence) {
      throw refuse("sequences ", from_.first_sequence, " to ", last, " are not a range of ", from_.file, ", which has ",
                   how_many(sequences, "sequence"));
    }
    auto const used = last - from_.first_sequence + 1;
    auto made = std::make_shared<order>();
    std::int64_t begin = 0, tokens = 0;
    made->begins.reserve(lengths.size());
    for (std::int64_t i = 0; i < sequences; ++i) {
      auto const length = std::int64_t{lengths[static_cast<std::size_t>(i)]};
      made->begins.push_back(begin);
      begin += length;
      if (i >= from_.first_sequence && i <= last) tokens += length;
    }
    if (tokens <= from_.context) {
      throw refuse("the sequences have ", how_many(tokens, "token"), ", but one window of .context = ", from_.context,
                   " needs one more than that many");
    }
    auto const windows_of = [&](std::int64_t epochs) { return (epochs * tokens - 1) / from_.context; };
    if (std::max(from_.samples, windows_of(1)) > most || from_.samples / windows_of(1) * used > most) {
      throw refuse(".samples = ", from_.samples, " of ", from_.file,
                   " are too long an order, which has at most 2^31 - 1 samples and sequences in all epochs");
    }
    std::int64_t epochs = 1;
    while (epochs * tokens < from_.samples * from_.context + 1) ++epochs;
    auto const windows = windows_of(epochs), before_last = windows_of(epochs - 1);
    bool const apart = epochs > 1 && from_.samples - before_last < windows_of(1) * 4 / 5;

    detail::numpy_random_state random(from_.seed);
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      for (auto i = from_.first_sequence; i <= last; ++i) made->sequences.push_back(static_cast<std::int32_t>(i));
    }
    std::span<std::int32_t> const all(made->sequences);
    auto const first = static_cast<std::size_t>((apart ? epochs - 1 : epochs) * used);
    random.shuffle(all.first(first));
    random.shuffle(all.subspan(first));
    std::int64_t at = 0;
    made->ends.reserve(all.size());
    for (auto const sequence : all) made->ends.push_back(at += lengths[static_cast<std::size_t>(sequence)]);
    for (std::int64_t i = 0; i < windows; ++i) made->windows.push_back(static_cast<std::uint32_t>(i));
    std::span<std::uint32_t> const numbers(made->windows);
    auto const together = static_cast<std::size_t>(apart ? before_last : windows);
    random.shuffle(numbers.first(together));
    random.shuffle(numbers.subspan(together));
    order_ = std::move(made);
  }

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(order_->windows.size()); }
  [[nodiscard]] std::int64_t epoch_size() const noexcept { return from_.samples > 0 ? from_.samples : size(); }
  [[nodiscard]] std::int64_t id_at(std::uint64_t, std::uint64_t, std::int64_t position) const noexcept {
    return order_->windows[static_cast<std::size_t>(position)];
  }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {from_.context}; }
  [[nodiscard]] shape target_shape() const { return {from_.context}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    auto const context = static_cast<std::size_t>(from_.context);
    for (auto const id : ids) {
      read_tokens(id * from_.context, {in, context});
      std::copy(in + 1, in + context, out);
      read_tokens((id + 1) * from_.context, {out + context - 1, 1});
      for (std::size_t t = 0; from_.separator >= 0 && t < context; ++t) {
        if (in[t] == from_.separator) out[t] = -1;
      }
      in += context;
      out += context;
    }
  }

 private:
  static constexpr char const* who = "trireme::data::megatron_windows";
  struct order {
    std::vector<std::int64_t> begins;     // of each sequence, in tokens of the file
    std::vector<std::int32_t> sequences;  // of all epochs
    std::vector<std::int64_t> ends;       // of each of them, in tokens of all epochs
    std::vector<std::uint32_t> windows;
  };

  /// The index was checked when the shard was opened.
  [[nodiscard]] static std::vector<std::int32_t> lengths_of(std::string const& file) {
    auto const path = (file.ends_with(".bin") ? file.substr(0, file.size() - 4) : file) + ".idx";
    detail::stable_file const index(path, who);
    std::array<std::byte, formats::token_files::megatron_index::header_bytes> start{};
    index.read(0, {reinterpret_cast<unsigned char*>(start.data()), start.size()});
    auto const header = formats::token_files::parse_megatron(start, static_cast<std::uint64_t>(index.size()), path);
    if (header.sequences > std::numeric_limits<std::int32_t>::max()) {
      throw config_error(text(who, ": ", path, " has ", header.sequences, " sequences, but at most 2^31 - 1 are read"));
    }
    std::vector<std::int32_t> out(static_cast<std::size_t>(header.sequences));
    index.read(static_cast<std::int64_t>(header.lengths_at()),
               {reinterpret_cast<unsigned char*>(out.data()), 4 * out.size()});
    return out;
  }
  /// Tokens of the joined sequences.
  void read_tokens(std::int64_t at, std::span<std::int32_t> to) const {
    auto const& ends = order_->ends;
    for (auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin()); !to.empty();
         ++i) {
      auto const here = static_cast<std::size_t>(std::min(ends[i] - at, static_cast<std::int64_t>(to.size())));
      if (here == 0) continue;  // an empty sequence
      auto const sequence = static_cast<std::size_t>(order_->sequences[i]);
      auto const first = i == 0 ? 0 : ends[i - 1];
      tokens_->read(order_->begins[sequence] + at - first, to.first(here));
      at += static_cast<std::int64_t>(here);
      to = to.subspan(here);
    }
  }

  megatron_windows from_;
  std::shared_ptr<detail::shard_sequence const> tokens_;
  std::shared_ptr<order const> order_;
};

inline megatron_samples megatron_windows::open() const { return megatron_samples(*this); }

}  // namespace trireme::data
