#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/interval.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::data {

/// Part `index` of `count` items that are split into `shares` parts as evenly as possible: [index*count/shares,
/// (index+1)*count/shares).
[[nodiscard]] constexpr interval even_split(std::int64_t count, std::int64_t shares, std::int64_t index) noexcept {
  auto const first = index * count / shares;
  return {first, (index + 1) * count / shares - first};
}

/// A position in the endless sequence of samples: the epoch, and how many of its samples are used. Checkpoints contain
/// it. It does not depend on ranks or batches, so a run can be resumed from it with another world size.
struct loader_position {
  std::uint64_t epoch = 0;
  std::int64_t position = 0;
  std::int64_t samples = 0;  ///< of the whole dataset; 0: not known, then neither it nor the order is compared
  std::uint64_t seed = 0;    ///< of the order of samples
  std::int64_t block = 0;    ///< of the order, as in data::sampler
  std::int64_t window = 0;
  std::int64_t of = 0;  ///< samples of a dataset that sets its own order, whose epochs may have another number of them
  friend bool operator==(loader_position const& a, loader_position const& b) noexcept {
    return a.epoch == b.epoch && a.position == b.position;  // the order may be unknown
  }

  /// The beginning of the next epoch, which may use any dataset and any order.
  [[nodiscard]] constexpr loader_position next_epoch() const noexcept { return {epoch + 1, 0}; }
};

/// "trireme::data::loader_position{.epoch = 1, .position = 64, .samples = 128, .seed = 0}"
[[nodiscard]] inline std::string to_string(loader_position const& at) {
  return text("trireme::data::loader_position{.epoch = ", at.epoch, ", .position = ", at.position,
              at.samples > 0 ? text(", .samples = ", at.samples, ", .seed = ", at.seed) : "",
              at.block > 0 ? text(", .block = ", at.block, ", .window = ", at.window) : "",
              at.of > 0 && at.of != at.samples ? text(", .of = ", at.of) : "", "}");
}

/// One rank's part of one batch. Owned by the loader.
///
/// A batch of n samples is split into M logical micro-batches, part m = even_split(n, M, m); rank r runs the parts
/// even_split(M, ranks, r). The content of a part does not depend on the number of ranks, so sums over parts can be
/// formed in the same order on any number of ranks.
struct batch {
  std::span<trireme::samples const> micro_batches;  ///< this rank's non-empty parts; may be empty
  std::span<std::int64_t const> parts;              ///< the logical number m of each of them, ascending
  std::int64_t samples = 0;                         ///< of the whole batch, over all ranks
  std::uint64_t epoch = 0;
  std::int64_t position = 0;  ///< of the first sample of the whole batch in its epoch
};

/// Where a loader reads batches to. By default it is ordinary memory, whose batches are copied before a step returns.
struct batch_memory {
  void* (*allocate)(std::size_t bytes) = nullptr;  ///< nullptr: ordinary memory
  void (*deallocate)(void* block, std::size_t bytes) noexcept = nullptr;
  /// Returns when no copy reads the loader's last batch any more, and with `all` when none reads the next one either.
  /// The loader calls it before it changes them. It may throw.
  std::function<void(bool all)> unread{};

  /// The staging memory of a space.
  template <class Space>
  requires has_staging<Space>
  [[nodiscard]] static batch_memory staging(std::function<void(bool all)> unread) {
    return {&Space::staging::allocate, &Space::staging::deallocate, std::move(unread)};
  }
};

namespace detail {

/// The memory of one rank's part of a batch, allocated once for the largest batch.
class batch_buffer {
 public:
  template <dataset Dataset>
  batch_buffer(Dataset const& data, std::int64_t samples, std::int64_t parts, batch_memory const& memory = {})
      : inputs_(allocated<std::byte>(samples * bytes_of(data.input_type(), data.input_shape()), memory)),
        targets_(allocated<std::byte>(samples * bytes_of(data.target_type(), data.target_shape()), memory)),
        ids_(allocated<std::int64_t>(samples, memory)),
        is_staging_(memory.allocate != nullptr) {
    for (auto& id : ids_.span()) id = 0;
    views_.reserve(static_cast<std::size_t>(parts));
    parts_.reserve(static_cast<std::size_t>(parts));
  }

  [[nodiscard]] std::span<std::int64_t> ids(std::int64_t count) {
    return ids_.span().first(static_cast<std::size_t>(count));
  }

  [[nodiscard]] std::span<std::int64_t> all_ids() noexcept { return ids_.span(); }

  /// Reads the samples [first, first + count), whose numbers are in ids(), as one block.
  /// @param place  of the first of them in the order; null: they are in none.
  template <dataset Dataset>
  void read(Dataset const& data, std::int64_t first, std::int64_t count, read_place const* place = nullptr) {
    auto const numbers = std::span<std::int64_t const>(ids_.span())
                             .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    auto* const in = inputs_.span().data() + first * bytes_of(data.input_type(), data.input_shape());
    auto* const out = targets_.span().data() + first * bytes_of(data.target_type(), data.target_shape());
    if (place != nullptr) {
      read_at(data, *place, numbers, in, out);
    } else {
      data.read(numbers, in, out);
    }
  }

  /// The first `count` samples, in this buffer, as another filling of it.
  template <dataset Dataset>
  [[nodiscard]] samples whole(Dataset const& data, std::int64_t count) {
    return {{inputs_.span().data(), data.input_type(), batched(count, data.input_shape())},
            {targets_.span().data(), data.target_type(), batched(count, data.target_shape())},
            ids(count),
            is_staging_ ? next_filling() : 0};
  }
  /// The same samples without reading them: all of their values are 0.
  template <dataset Dataset>
  [[nodiscard]] samples zeros(Dataset const& data, std::int64_t count) {
    for (auto const& values : {inputs_.span(), targets_.span()}) std::fill(values.begin(), values.end(), std::byte{});
    return whole(data, count);
  }

  void clear() noexcept {
    views_.clear();
    parts_.clear();
  }
  void add_part(std::int64_t number, samples const& part) {
    parts_.push_back(number);
    views_.push_back(part);
  }
  [[nodiscard]] std::span<samples const> views() const noexcept { return views_; }
  [[nodiscard]] std::span<std::int64_t const> parts() const noexcept { return parts_; }

 private:
  template <class T>
  static tensor<T> allocated(std::int64_t count, batch_memory const& memory) {
    if (memory.allocate == nullptr) return tensor<T>(shape{count});
    auto const bytes = static_cast<std::size_t>(count) * sizeof(T);
    std::shared_ptr<void> const block(memory.allocate(bytes),
                                      [bytes, free = memory.deallocate](void* it) { free(it, bytes); });
    return {tensor_view<T>(static_cast<T*>(block.get()), shape{count}), block};
  }
  static std::uint64_t next_filling() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  static std::int64_t bytes_of(dtype type, shape const& one) {
    return one.size() * static_cast<std::int64_t>(size_of(type));
  }
  static shape batched(std::int64_t count, shape const& one) {
    shape whole{count};
    for (auto const extent : one.extents()) whole.push_back(extent);
    return whole;
  }

  tensor<std::byte> inputs_;
  tensor<std::byte> targets_;
  tensor<std::int64_t> ids_;
  bool is_staging_;
  std::vector<samples> views_;
  std::vector<std::int64_t> parts_;
};

}  // namespace detail

}  // namespace trireme::data
