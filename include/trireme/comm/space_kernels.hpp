#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/combine.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::comm {

namespace detail {

/// Of memory that is neither touchable nor has kernels: no communicator supports it.
template <class Space>
struct derived_kernels {};

template <class Space>
requires touchable<Space>
struct derived_kernels<Space> {
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

/// Without elements a collective only synchronises.
template <class Space>
requires without_elements<Space>
struct derived_kernels<Space> {
  static constexpr bool touchable = false;
  static constexpr bool phantom = true;
  static constexpr void (*complete)() = nullptr;
  static void copy(void*, void const*, std::size_t) {}
  template <class T, class Op>
  static void combine(std::span<void* const>, std::span<void const* const>, std::int64_t, int) {}
};

template <class Space>
using bytes_in = tensor_view<std::uint8_t, Space>;
template <class Space>
concept copies_by_kernels = !touchable<Space> && !without_elements<Space> &&
                            requires(bytes_in<Space> y, tensor_view<std::uint8_t const, Space> x) {
  ops::on<Space>::copy(y, x);
};
template <class Space, class Op>
concept reduces_by_kernels = requires(std::span<tensor_view<float, Space> const> outputs,
                                      std::span<tensor_view<float const, Space> const> terms) {
  ops::on<Space>::reduce(outputs, terms, Op{}, 1);
};

template <copies_by_kernels Space>
struct derived_kernels<Space> {
  static constexpr bool touchable = false;
  static constexpr void (*complete)() = [] {
    if constexpr (requires { Space::finish(); })
      return static_cast<void (*)()>([] { Space::finish(); });
    else
      return static_cast<void (*)()>(nullptr);
  }();
  /// Whether ops::on<Space>::reduce takes this reduction.
  [[nodiscard]] static constexpr bool combines(reduction_kind op) noexcept {
    switch (op) {
      case reduction_kind::mean:
        return reduces_by_kernels<Space, reduction::mean>;
      case reduction_kind::max:
        return reduces_by_kernels<Space, reduction::max>;
      case reduction_kind::min:
        return reduces_by_kernels<Space, reduction::min>;
      case reduction_kind::pairwise:
        return reduces_by_kernels<Space, reduction::pairwise>;
      default:
        return op == reduction_kind::none || reduces_by_kernels<Space, reduction::sum>;
    }
  }
  static void copy(void* to, void const* from, std::size_t bytes) {
    shape const all{static_cast<std::int64_t>(bytes)};
    if (bytes > 0 && to != from)
      ops::on<Space>::copy(bytes_in<Space>(static_cast<std::uint8_t*>(to), all),
                           tensor_view<std::uint8_t const, Space>(static_cast<std::uint8_t const*>(from), all));
  }
  template <class T, class Op>
  static void combine(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count,
                      int divisor) {
    thread_local std::vector<tensor_view<T, Space>> to;
    thread_local std::vector<tensor_view<T const, Space>> from;
    to.clear();
    from.clear();
    for (auto* const each : outputs) to.emplace_back(static_cast<T*>(each), shape{count});
    for (auto const* const each : terms) from.emplace_back(static_cast<T const*>(each), shape{count});
    if constexpr (reduces_by_kernels<Space, Op>)  // otherwise reached only by a single rank, which combines nothing
      ops::on<Space>::reduce(std::span<tensor_view<T, Space> const>(to),
                             std::span<tensor_view<T const, Space> const>(from), Op{}, divisor);
  }
};

}  // namespace detail

/// The operations that communicators need in a memory space. They follow from the space (core/space.hpp) and from its
/// kernels ops::on<Space>: touchable memory is copied and combined by the CPU; other memory by copy() of bytes and
/// reduce(). So comm::threads has every collective of a space with the kernels of an exchange. A specialisation of your
/// own is for a space without kernels, or with quicker ones for communicators.
///
/// Requires  touchable     whether the CPU may read and write the elements;
///           phantom       (optional) true if there are no elements, so nothing is ever copied or combined;
///           combines(op)  (optional) whether combine has this reduction; by default it has all but users' own;
///           complete      returns when all work queued by this thread is done; null: it is done at once;
///           copy(to, from, bytes)  within the space;
///           combine<T, Op>(outputs, terms, count, divisor)  outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this
///                                  order (pairwise: in the tree over them); a mean is then divided by `divisor`.
template <class Space>
struct space_kernels : detail::derived_kernels<Space> {};

}  // namespace trireme::comm
