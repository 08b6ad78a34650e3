#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>

#include "trireme/core/dialect.hpp"

namespace trireme {

// A memory space is a class with static members:
//   name                        of the space, in messages
//   alignment                   of every allocation, in bytes
//   allocate(bytes)             returns uninitialised memory, or throws std::bad_alloc
//   deallocate(address, bytes)  of what allocate returned; noexcept
//   touchable                   (optional) true if the CPU may read and write the elements at their addresses
//   without_elements            (optional) true if there is nothing at its addresses
//   complete_kernels            (optional) the space itself, as a type: its kernels have every set, so that no program
//                               looks for each of them
//   finish()                    (optional) returns when all work that the calling thread has queued is done; a space
//                               without it does all work at once
//   device_bytes()              (optional) the memory of the calling thread's device, or 0 if that is not known
//   rates(dtype, tf32)          (optional) the device_rates of the calling thread's device; noexcept
//   note_kernel(name, views...)  (optional, without_elements) called with the tensors of each kernel; noexcept
//   staging                     (optional) a touchable space from whose memory ops::batch_queue<Space> copies while the
//                               host goes on; the loader reads batches into it
//   remember_plan(bytes)        (optional) what a plan foresees for the calling thread's rank; noexcept: for messages
// Its kernels are a struct ops::on<Space> (ops/kernels.hpp).

/// Whether the CPU may read and write the elements of a space at their addresses.
template <class Space>
inline constexpr bool touchable = requires {
  requires Space::touchable;
};
/// Whether a space has addresses only: nothing is ever copied or computed there.
template <class Space>
inline constexpr bool without_elements = requires {
  requires Space::without_elements;
};

/// Whether batches are copied to a space from memory that only their owner may change while they are.
template <class Space>
inline constexpr bool has_staging = requires {
  typename Space::staging;
};

/// Returns when all work that the calling thread has queued in a space is done.
template <class Space>
void finish_queued_work() {
  if constexpr (requires { Space::finish(); }) Space::finish();
}

/// Tells a space without elements, if it wants to know, on which tensors a kernel works: views, spans of views, weights
/// and structs of views. A kernel only reads elements that are constant in the type.
template <class Space, class... Tensors>
constexpr void note_kernel([[maybe_unused]] std::string_view name,
                           [[maybe_unused]] Tensors const&... tensors) noexcept {
  if constexpr (requires { Space::note_kernel(name, tensors...); }) Space::note_kernel(name, tensors...);
}

/// Memory of this process that the CPU reads and writes. Large blocks are page-aligned and request huge pages, which
/// saves 6 % of a whole training step.
struct host {
  static constexpr std::string_view name = "host";
  static constexpr std::size_t alignment = 64;
  static constexpr bool touchable = true;
  using complete_kernels = host;
  static constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

  /// @returns `bytes` of uninitialised memory; throws std::bad_alloc.
  [[nodiscard]] static void* allocate(std::size_t bytes) {
    if (bytes < huge_page_bytes) return ::operator new (bytes == 0 ? 1 : bytes, std::align_val_t{alignment});
    void* block = ::operator new (bytes, std::align_val_t{huge_page_bytes});
#ifdef MADV_HUGEPAGE
    ::madvise(block, bytes, MADV_HUGEPAGE);
#endif
    return block;
  }
  static void deallocate(void* block, std::size_t bytes) noexcept {
    ::operator delete (block, std::align_val_t{bytes < huge_page_bytes ? alignment : huge_page_bytes});
  }
};

/// Address space without memory: an access to any of its addresses faults at once.
///
/// Tests run a whole training in this space. This proves that no code outside `ops` and `comm` reads a tensor, so
/// another kind of memory needs only those two rooms.
struct phantom {
  static constexpr std::string_view name = "phantom";
  static constexpr std::size_t alignment = 64;
  static constexpr bool without_elements = true;
  using complete_kernels = phantom;

  [[nodiscard]] static void* allocate(std::size_t bytes) {
    void* block =
        ::mmap(nullptr, bytes == 0 ? 1 : bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    return block;
  }
  static void deallocate(void* block, std::size_t bytes) noexcept { ::munmap(block, bytes == 0 ? 1 : bytes); }
};

}  // namespace trireme
