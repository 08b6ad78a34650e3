#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

// Counts what a test program allocates. Included by the one source of such a program: it replaces operator new.

namespace {
std::atomic<long> allocations{0};
}

// Not inlined, or GCC takes malloc and delete for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1);
  if (void* block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  allocations.fetch_add(1);
  auto const unit = static_cast<std::size_t>(alignment);
  if (void* block = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
