#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "trireme/comm/detail/kernels.hpp"

namespace trireme::comm::detail {

/// From this size on what is copied does not stay in the caches anyway.
inline constexpr std::uint64_t streamed_bytes = 8 << 20;

/// Whether messages of so many bytes are copied past the caches.
[[nodiscard]] inline bool is_streamed(element_kernels const* elements, std::uint64_t bytes) noexcept {
  return bytes >= streamed_bytes && elements != nullptr && elements->copy == &space_kernels<host>::copy;
}

/// Copies past the caches, so that the old contents of `to` need not be read: a third less memory traffic.
inline void stream_copy(std::byte* to, std::byte const* from, std::size_t bytes) noexcept {
  if (to == from) return;
#if defined(__SSE2__)
  auto const skip = std::min<std::size_t>(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
  std::memmove(to, from, skip);
  std::size_t at = skip;
  for (; at + 64 <= bytes; at += 64)
    for (std::size_t part = at; part < at + 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + part)));
  std::memmove(to + at, from + at, bytes - at);
  _mm_sfence();
#else
  std::memmove(to, from, bytes);
#endif
}

}  // namespace trireme::comm::detail
