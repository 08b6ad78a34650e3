#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

namespace comm::detail {

template <class B>
concept owns_view = std::is_lvalue_reference_v<B> && requires(B values) {
  typename std::remove_cvref_t<B>::space;
  values.view().address();
};
/// The elements of a range, const if they are.
template <class B>
using elements_of = std::remove_pointer_t<decltype(std::data(std::declval<B&>()))>;
// Not std::ranges' concepts, or spans without their type: <ranges> is 3500 lines, and g++ 12 ends with an internal
// error on the latter under -ftime-report.
template <class B>
concept host_buffer = (std::is_lvalue_reference_v<B> ||
                       std::ranges::enable_borrowed_range<std::remove_cvref_t<B>>)&&requires {
  typename elements_of<B>;
}
&&std::is_constructible_v<std::span<elements_of<B>>, B>;

}  // namespace comm::detail

/// What collectives take besides tensor_views: a std::vector, std::array, C array, std::span or other contiguous range
/// in host memory, or a tensor in any space. It must live until the collective ends: a temporary owner (such as a
/// temporary vector) does not compile.
template <class B>
concept message_buffer = comm::detail::owns_view<B> || comm::detail::host_buffer<B>;

namespace comm::detail {

/// All elements; of a range as rank 1.
template <message_buffer B>
[[nodiscard]] constexpr auto view_of(B&& values) {
  if constexpr (owns_view<B>) {
    return values.view();
  } else {
    std::span<elements_of<B>> const all(values);
    return tensor_view<elements_of<B>>(all.data(), shape{static_cast<std::int64_t>(all.size())});
  }
}
template <class T, class Space>
[[nodiscard]] constexpr auto view_of(tensor_view<T, Space> values) {
  return values;
}

/// A buffer or a view.
template <class B>
concept message = requires(B&& values) {
  detail::view_of(static_cast<B&&>(values));
};
template <message B>
using view_of_t = decltype(view_of(std::declval<B>()));
template <message B>
using element_of_t = std::remove_reference_t<decltype(*std::declval<view_of_t<B>>().address())>;  ///< const if it is
template <message B>
using value_of_t = typename view_of_t<B>::value_type;
template <message B>
using space_of_t = typename view_of_t<B>::space;
template <class B>
concept writable = message<B> && !std::is_const_v<element_of_t<B>>;

/// The values as tensor elements; values that are not tensor elements as bytes.
template <class T, class Space>
[[nodiscard]] constexpr auto sendable(tensor_view<T, Space> values) {
  using value = std::remove_const_t<T>;
  using byte = std::conditional_t<std::is_const_v<T>, std::byte const, std::byte>;
  static_assert(
      element<value> || std::is_trivially_copyable_v<value>,
      "trireme::comm: these elements are not trivially copyable, so their bytes are meaningless on another rank; "
      "send the numbers that they consist of, or write them into a buffer of std::byte");
  if constexpr (element<value>)
    return values;
  else
    return tensor_view<byte, Space>(reinterpret_cast<byte*>(values.address()),
                                    shape{values.size() * static_cast<std::int64_t>(sizeof(T))});
}

}  // namespace comm::detail

/// As send_to of a view. Elements that are not numbers are sent as their bytes.
template <message_buffer B>
[[nodiscard]] constexpr auto send_to(int peer, B&& values) {
  return send_to(peer, comm::detail::sendable(comm::detail::view_of(std::forward<B>(values))));
}
template <message_buffer B>
requires comm::detail::writable<B>
[[nodiscard]] constexpr auto receive_from(int peer, B&& values) {
  return receive_from(peer, comm::detail::sendable(comm::detail::view_of(std::forward<B>(values))));
}

}  // namespace trireme
