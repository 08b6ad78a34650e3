#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::ops {

/// What all kernels of memory without elements do: check sizes.
template <class Space>
struct phantom_checks {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;
  template <class T>
  using output = std::type_identity_t<tensor_view<T, Space>>;

 protected:
  static void same(std::string_view who, std::int64_t a, std::int64_t b) {
    expects(assertion_level::light, a == b,
            [&] { return text("trireme::ops::", who, ": sizes ", a, " and ", b, " differ"); });
  }
  template <class Views>
  static void all_same(std::string_view who, std::int64_t n, Views const& views) {
    for (auto const& each : views) same(who, n, each.size());
  }
};

}  // namespace trireme::ops
