#pragma once

#include <cstdint>

#include "trireme/contract/numerics.hpp"
#include "trireme/ops/cuda/launch.hpp"

// The kernels of attention behind plain functions; ops/cuda/attention.cu has their bodies.

namespace trireme::ops::cuda_kernels {

/// The widest head that the kernels take.
inline constexpr std::int64_t widest_head = 256;

/// A tensor of rows of samples; the head `head` of its row `row` begins at
/// address + sample * next_sample + row * next_row + head * width, in elements.
template <class Address>
struct attention_rows {
  Address address = nullptr;
  std::int64_t next_row = 0;
  std::int64_t next_sample = 0;
};

/// Attention of some queries of each sample over some keys: all of them, or one block of an attention over blocks.
struct attention_work {
  handle stream = nullptr;
  dtype of = dtype::f32;  ///< of queries, keys and values; double has sums of double, the others of float
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;  ///< D, columns of a head
  std::int64_t rows = 0;   ///< queries of each sample
  std::int64_t keys = 0;   ///< keys of each sample
  double scale = 1;        ///< of scores

  attention_mask mask{};
  std::int64_t ahead = 0;              ///< positions of row 0 after key 0
  std::int32_t const* seen = nullptr;  ///< (B, rows, 2): first key and one past the last; nullptr: as the mask says

  attention_rows<void const*> queries{}, key{}, value{};  ///< `of`

  /// Whether y and lse hold the attention over other keys, which this call merges with its own: y has the type of
  /// sums. In the backward pass: whether dqueries, dkey and dvalue have the type of sums and are added to.
  bool merges = false;
  attention_rows<void*> y{};
  void* lse = nullptr;             ///< type of sums; nullptr: not written
  std::int64_t lse_next_head = 0;  ///< elements from one head to the next: (B, H, this)

  attention_rows<void const*> dy{};  ///< `of`; so is y in the backward pass
  void* delta = nullptr;             ///< scratch of the backward pass: (B, H, rows) of the type of sums
  attention_rows<void*> dqueries{}, dkey{}, dvalue{};

  /// Dropout of probabilities: the number at (head, row, key) of a sample has the position
  /// ((first_head + head) * whole + first_query + row) * whole + first_key + key.
  double dropout = 0;
  random_key random{};
  std::uint32_t site = 0;
  std::int64_t const* samples = nullptr;  ///< an id for each sample
  std::int64_t first_head = 0, first_query = 0, first_key = 0, whole = 0;
};

/// Writes y and lse.
[[nodiscard]] int attention(attention_work const& work);
/// Writes delta, and dqueries, dkey and dvalue from y, lse and dy.
[[nodiscard]] int attention_backward(attention_work const& work);

}  // namespace trireme::ops::cuda_kernels
