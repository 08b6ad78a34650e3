#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "trireme/comm/detail/combine.hpp"

namespace trireme::comm {

/// The operations that communicators need in a memory space. With a specialisation for your own space, comm::threads
/// has every collective for it.
///
/// Requires  touchable     whether the CPU may read and write the elements;
///           phantom       (optional) true if there are no elements, so nothing is ever copied or combined;
///           pairwise      (optional) false if combine has no pairwise sums;
///           complete      returns when all work queued by this thread is done; null: it is done at once;
///           copy(to, from, bytes)  within the space;
///           combine<T, Op>(outputs, terms, count, divisor)  outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this
///                                  order (pairwise: in the tree over them); a mean is then divided by `divisor`.
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

/// In phantom memory a collective only synchronises.
template <>
struct space_kernels<phantom> {
  static constexpr bool touchable = false;
  static constexpr bool phantom = true;
  static constexpr void (*complete)() = nullptr;
  static void copy(void*, void const*, std::size_t) {}
  template <class T, class Op>
  static void combine(std::span<void* const>, std::span<void const* const>, std::int64_t, int) {}
};

}  // namespace trireme::comm
