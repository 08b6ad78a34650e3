#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/core/address.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// Memory for the activations of one micro-batch: allocated block by block, released all at once.
///
/// The first round may allocate several blocks; `reset()` then replaces them by one that is large enough for the
/// largest round so far. So a step after the first allocates nothing (a test counts allocations).
///
/// Threads  one owner. Make it in the thread that uses it, so that its pages are near that thread's core.
template <class Space = host>
class arena {
 public:
  /// A position to return to: `rewind(mark())` releases the memory taken in between.
  struct position {
    std::size_t block = 0;
    std::size_t used = 0;
    std::size_t taken = 0;
  };

  arena() = default;
  arena(arena const&) = delete;
  arena& operator=(arena const&) = delete;
  arena(arena&& other) noexcept { *this = std::move(other); }
  arena& operator=(arena&& other) noexcept {
    std::swap(blocks_, other.blocks_);
    std::swap(at_, other.at_);
    std::swap(peak_, other.peak_);
    return *this;
  }
  ~arena() { release(); }

  /// An uninitialised tensor that lives until the next reset() or the rewind() to a mark made before it.
  template <class T>
  [[nodiscard]] tensor_view<T, Space> take(shape extents) {
    auto const bytes = round_up(static_cast<std::size_t>(extents.size()) * sizeof(T));
    while (at_.block < blocks_.size() && at_.used + bytes > blocks_[at_.block].bytes) {
      ++at_.block;
      at_.used = 0;
    }
    if (at_.block == blocks_.size()) {
      auto const size = std::max(bytes, first_block_bytes);
      blocks_.push_back({static_cast<std::byte*>(Space::allocate(size)), size});
    }
    auto* const address = blocks_[at_.block].address + at_.used;
    at_.used += bytes;
    at_.taken += bytes;
    peak_ = std::max(peak_, at_.taken);
    return {elements_at<T>(address), extents};
  }

  [[nodiscard]] position mark() const noexcept { return at_; }
  void rewind(position to) noexcept { at_ = to; }

  /// Releases everything, and joins the blocks into one if there are several.
  void reset() {
    at_ = {};
    if (blocks_.size() < 2) return;
    release();
    auto const size = std::max(peak_ + peak_ / 16, first_block_bytes);
    blocks_.push_back({static_cast<std::byte*>(Space::allocate(size)), size});
  }

  /// The most bytes in use at any time so far.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }

 private:
  struct block {
    std::byte* address;
    std::size_t bytes;
  };
  static constexpr std::size_t first_block_bytes = std::size_t{1} << 16;
  // One cache line of slack against two streams that start on the same cache set.
  static constexpr std::size_t round_up(std::size_t bytes) noexcept { return (bytes + 127) / 64 * 64; }
  void release() noexcept {
    for (auto const& each : blocks_) Space::deallocate(each.address, each.bytes);
    blocks_.clear();
  }

  std::vector<block> blocks_;
  position at_;
  std::size_t peak_ = 0;
};

}  // namespace trireme
