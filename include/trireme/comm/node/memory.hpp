#pragma once

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "trireme/comm/detail/descriptor.hpp"

namespace trireme::comm::detail {

/// Address space in which the memory files of all ranks are mapped side by side, so that a peer's address takes one
/// addition.
class node_map {
 public:
  static constexpr std::size_t huge_page = std::size_t{1} << 21;

  node_map() = default;
  node_map(node_map&& other) noexcept { swap(other); }
  node_map& operator=(node_map&& other) noexcept {
    swap(other);
    return *this;
  }
  ~node_map() {
    if (space_ != nullptr) ::munmap(space_, length_);
  }

  /// Reserves `size` times `stride` bytes, which must be a multiple of a huge page.
  [[nodiscard]] bool reserve(int size, std::size_t stride) noexcept {
    auto const length = static_cast<std::size_t>(size) * stride + huge_page;
    void* const space = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return false;
    node_map fresh;
    fresh.space_ = space;
    fresh.length_ = length;
    auto const begin = (reinterpret_cast<std::uintptr_t>(space) + huge_page - 1) / huge_page * huge_page;
    fresh.base_ = static_cast<std::byte*>(space) + (begin - reinterpret_cast<std::uintptr_t>(space));
    fresh.stride_ = stride;
    swap(fresh);
    return true;
  }
  /// Maps `bytes` of a rank's file at its position.
  [[nodiscard]] bool place(int rank, descriptor const& file, std::size_t bytes) noexcept {
    auto* const at = this->at(rank);
    if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file.number(), 0) ==
        MAP_FAILED)
      return false;
    ::madvise(at, bytes, MADV_HUGEPAGE);  // only advice: fewer faults, larger steps for the prefetcher
    return true;
  }
  [[nodiscard]] std::byte* at(int rank) const noexcept { return base_ + static_cast<std::size_t>(rank) * stride_; }

 private:
  void swap(node_map& other) noexcept {
    std::swap(space_, other.space_);
    std::swap(length_, other.length_);
    std::swap(base_, other.base_);
    std::swap(stride_, other.stride_);
  }
  void* space_ = nullptr;
  std::size_t length_ = 0;
  std::byte* base_ = nullptr;
  std::size_t stride_ = 0;
};

/// The blocks of this rank's memory file. Only this rank tracks which are in use; freed pages go back to the system.
class node_heap {
 public:
  node_heap(std::byte* base, std::size_t begin, std::size_t end, int file) : base_(base), file_(file) {
    free_.emplace(begin, end - begin);
  }

  /// The first free block that is large enough; null if there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    auto const need = whole(bytes);
    auto const grain = bytes >= node_map::huge_page ? node_map::huge_page : page;
    if (closed_ || need < bytes) return nullptr;
    for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
      auto const [from, length] = *hole;
      auto const at = (from + grain - 1) / grain * grain;
      if (at - from > length || length - (at - from) < need) continue;
      auto const behind = length - (at - from) - need;
      if (behind > 0) free_.emplace(at + need, behind);
      if (at == from)
        free_.erase(hole);
      else
        hole->second = at - from;
      return base_ + at;
    }
    return nullptr;
  }
  void deallocate(void* block, std::size_t bytes) noexcept {
    std::lock_guard const lock(mutex_);
    auto from = static_cast<std::size_t>(static_cast<std::byte*>(block) - base_);
    auto length = whole(bytes);
    ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                static_cast<off_t>(length));
    if (closed_) return;
    try {
      auto next = free_.lower_bound(from);
      if (next != free_.end() && from + length == next->first) {
        length += next->second;
        next = free_.erase(next);
      }
      if (next != free_.begin()) {
        auto& [before, before_length] = *std::prev(next);
        if (before + before_length == from) {
          before_length += length;
          return;
        }
      }
      free_.emplace_hint(next, from, length);
    } catch (...) {  // no memory for the entry: the address range leaks, but not its pages
    }
  }
  /// After a failure no memory is reused: a rank that has not noticed the failure may still write.
  void close() noexcept {
    std::lock_guard const lock(mutex_);
    closed_ = true;
  }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t whole(std::size_t bytes) noexcept { return (bytes + page - 1) / page * page; }

  std::byte* const base_;
  int const file_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  ///< offset and length of each free block
  bool closed_ = false;
};

}  // namespace trireme::comm::detail
