#pragma once

#include <cstring>
#include <span>

#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/combine.hpp"

namespace trireme::comm::detail {

/// What communicators do with elements in a memory space; specialised where a space is made known to `comm`.
template <class Space>
struct space_kernels;

template <>
struct space_kernels<host> {
  static constexpr bool touchable = true;
  static constexpr void (*complete)() = nullptr;
  static void copy(void* to, void const* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
  }
  template <class T, class Op>
  static void combine(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count,
                      int divisor) {
    detail::combine<Op, T>(outputs, terms, count, divisor);
  }
};

/// In phantom memory a collective is its synchronisation.
template <>
struct space_kernels<phantom> {
  static constexpr bool touchable = false;
  static constexpr void (*complete)() = nullptr;
  static void copy(void*, void const*, std::size_t) {}
  template <class T, class Op>
  static void combine(std::span<void* const>, std::span<void const* const>, std::int64_t, int) {}
};

template <class Space>
inline constexpr element_kernels moving_kernels{&space_kernels<Space>::copy, nullptr, space_kernels<Space>::complete,
                                                space_kernels<Space>::touchable};
template <class T, class Space, class Op>
inline constexpr element_kernels reducing_kernels{&space_kernels<Space>::copy,
                                                  &space_kernels<Space>::template combine<T, Op>,
                                                  space_kernels<Space>::complete, space_kernels<Space>::touchable};

}  // namespace trireme::comm::detail
