#pragma once

#include <cstddef>
#include <utility>

#include "trireme/core/dialect.hpp"

namespace trireme {

namespace detail {

template <std::size_t Index, class T>
struct pack_item {
  T value;
  friend bool operator==(pack_item const&, pack_item const&) = default;
};

template <class Indices, class... T>
struct pack_items;
template <std::size_t... Index, class... T>
struct pack_items<std::index_sequence<Index...>, T...> : pack_item<Index, T>... {
  friend bool operator==(pack_items const&, pack_items const&) = default;
};

template <class T, std::size_t Index>
[[nodiscard]] constexpr T& item_of(pack_item<Index, T>& item) noexcept {
  return item.value;
}

}  // namespace detail

/// One value of each type, in this order.
///
/// Used instead of std::tuple in types that differ for each model, mesh or trainer, because std::tuple takes the
/// compiler more time than its elements.
template <class... T>
class pack {
 public:
  constexpr pack() = default;
  constexpr pack(T... values) requires(sizeof...(T) > 0)
      : items_{{std::move(values)}...} {}  // NOLINT(google-explicit-constructor)
  friend bool operator==(pack const&, pack const&) = default;

  /// Calls f(value) for each, in their order.
  template <class F>
  constexpr void each(F&& f) const {
    each_of(items_, f);
  }
  /// f(values...), in their order.
  template <class F>
  constexpr decltype(auto) apply(F&& f) const {
    return apply_to(items_, f);
  }
  /// The value of a type that occurs once.
  template <class One>
  [[nodiscard]] constexpr One& get() noexcept {
    return detail::item_of<One>(items_);
  }

 private:
  template <std::size_t... Index, class F>
  static constexpr void each_of(detail::pack_items<std::index_sequence<Index...>, T...> const& items, F& f) {
    (f(static_cast<detail::pack_item<Index, T> const&>(items).value), ...);
  }
  template <std::size_t... Index, class F>
  static constexpr decltype(auto) apply_to(detail::pack_items<std::index_sequence<Index...>, T...> const& items, F& f) {
    return f(static_cast<detail::pack_item<Index, T> const&>(items).value...);
  }

  detail::pack_items<std::index_sequence_for<T...>, T...> items_;
};

}  // namespace trireme
