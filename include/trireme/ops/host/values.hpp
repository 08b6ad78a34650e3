#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Access to the elements themselves, for loops of your own if there is no kernel.
struct host_values {
  /// y[i] = f(x[i]...), computed in accumulate_t of each type and rounded once. y may be any of the x's.
  /// Shapes   all views have the same number of elements.
  /// Threads  the calling one. For phantom memory, which has no elements, f is not called.
  /// Errors   assertion_error (light) if the sizes differ.
  /// @param rest  the views x..., followed by f.
  template <class T, class... Rest>
  static void each(tensor_view<T, host> y, Rest const&... rest) {
    auto const all = std::tie(rest...);
    apply(y, std::get<sizeof...(Rest) - 1>(all), all, std::make_index_sequence<sizeof...(Rest) - 1>{});
  }

  /// Calls f(span of the elements...) with the elements of each view, in the calling thread. For phantom memory f is
  /// not called.
  template <class F, class... T>
  static void with_values(F&& f, tensor_view<T, host>... views) {
    f(std::span<T>(raw(views), static_cast<std::size_t>(views.size()))...);
  }

 private:
  template <class T, class F, class All, std::size_t... Index>
  static void apply(tensor_view<T, host> y, F const& f, All const& all, std::index_sequence<Index...>) {
    (detail::same_size("each", y.size(), std::get<Index>(all).size()), ...);
    loop(
        raw(y), y.size(), [&](auto... x) { return f(x...); }, raw(std::get<Index>(all))...);
  }
  template <class T, class F, class... X>
  static void loop(T* y, std::int64_t n, F const& f, X const*... x) {
    for (std::int64_t i = 0; i < n; ++i)
      y[i] = static_cast<T>(static_cast<accumulate_t<T>>(f(static_cast<accumulate_t<X>>(x[i])...)));
  }
};

}  // namespace trireme::ops
