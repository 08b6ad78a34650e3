#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/contract/numerics.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/ops/host/detail/attention_scratch.hpp"

namespace trireme::ops::detail {

/// The keys that each query row of one head may attend to. Every mask is an interval of keys for each row, and neither
/// end of it decreases from row to row.
struct attention_sight {
  attention_mask mask{};
  std::int64_t rows = 0;               ///< of queries
  std::int64_t keys = 0;               ///< number of them
  std::int64_t ahead = 0;              ///< positions of row 0 after key 0
  std::int32_t const* seen = nullptr;  ///< (rows, 2): the first key that a row may attend to and one past the last
};

/// Keys that are processed together, among those that a block of query rows attends to.
struct key_range {
  std::int64_t key = 0;
  std::int64_t keys = 0;
  std::int64_t skipped = 0;  ///< number of leading rows of the block that attend to none of these keys
};

/// The keys that a block of query rows attends to: which ones are processed, and which of those are masked for some
/// row. Computed once per block, at every CPU level, for any mask: inner loops only check whether a part is an edge.
///
/// There is always at least one key to process. A row that attends to no key has weights of 0, and a result of 0.
class attention_span {
 public:
  attention_span(attention_sight const& of, std::int64_t row) noexcept {
    for (std::int64_t r = 0; r < attention_rows; ++r) {
      auto const position = row + r + of.ahead;
      auto const window = of.mask.window;
      auto from = window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0;
      auto to = of.mask.causal ? position + 1 : window > 0 ? position + window : of.keys;
      if (of.seen != nullptr) {  // rows past the last one use its interval: their results are never read
        auto const* const limits = of.seen + 2 * std::min(row + r, of.rows - 1);
        from = std::max<std::int64_t>(from, limits[0]);
        to = std::min<std::int64_t>(to, limits[1]);
      }
      begins_[r] = static_cast<std::int32_t>(std::min(from, of.keys));
      ends_[r] = static_cast<std::int32_t>(std::clamp<std::int64_t>(to, 0, of.keys));
    }
    all_from_ = begins_[attention_rows - 1];
    all_to_ = ends_[0];
    begin_ = std::min<std::int64_t>(begins_[0], of.keys - 1) / attention_rows * attention_rows;
    for (int h = 0; h < 2; ++h) {
      auto const last = std::max<std::int64_t>(ends_[(h + 1) * half - 1], begin_ + 1);
      seen_[h] = (last + half - 1) / half * half;
    }
  }

  /// The first key that is processed, a multiple of attention_rows.
  [[nodiscard]] std::int64_t begin() const noexcept { return begin_; }
  /// One past the last key that the lanes at `lane` need, in halves of a block.
  [[nodiscard]] std::int64_t seen(std::int64_t lane) const noexcept { return seen_[lane / half]; }
  /// One past the last key of the block, in whole blocks.
  [[nodiscard]] std::int64_t end() const noexcept { return padded_rows(seen_[1]); }
  /// All rows attend to the keys in [all_from(), all_to()).
  [[nodiscard]] std::int64_t all_from() const noexcept { return all_from_; }
  [[nodiscard]] std::int64_t all_to() const noexcept { return all_to_; }

  /// The part that begins with `key`; empty past the last key.
  [[nodiscard]] key_range from(std::int64_t key) const noexcept {
    auto const skipped = key > begin_ && key >= seen_[0] ? half : 0;
    return {key, std::min(attention_keys, seen(skipped) - key), skipped};
  }
  [[nodiscard]] key_range first() const noexcept { return from(begin_); }
  [[nodiscard]] key_range after(key_range const& it) const noexcept { return from(it.key + it.keys); }

  /// Whether some row does not attend to all keys from `key` on.
  [[nodiscard]] bool edge(std::int64_t key, std::int64_t keys) const noexcept {
    return key < all_from_ || key + keys > all_to_;
  }

  /// The rows [from, to) of the block that attend to a key, for one key after the other.
  class walk {
   public:
    explicit walk(attention_span const& over) noexcept : over_(over) {}
    void to_key(std::int64_t key) noexcept {
      while (from_ < attention_rows && over_.ends_[from_] <= key) ++from_;
      while (to_ < attention_rows && over_.begins_[to_] <= key) ++to_;
    }
    /// Relative to the lanes at `lane`.
    [[nodiscard]] int from(std::int64_t lane) const noexcept { return static_cast<int>(from_ - lane); }
    [[nodiscard]] int to(std::int64_t lane) const noexcept { return static_cast<int>(to_ - lane); }

   private:
    attention_span const& over_;
    std::int64_t from_ = 0, to_ = 0;
  };

 private:
  static constexpr std::int64_t half = attention_rows / 2;
  std::int32_t begins_[attention_rows];
  std::int32_t ends_[attention_rows];
  std::int64_t begin_ = 0, all_from_ = 0, all_to_ = 0;
  std::int64_t seen_[2] = {};
};

/// The divisor of the weights; a row that attends to no key has a mass of 0.
template <class Real>
[[nodiscard]] constexpr Real one_over_mass(Real mass) noexcept {
  return exactly_equal(mass, 0) ? Real(0) : Real(1) / mass;
}

}  // namespace trireme::ops::detail
