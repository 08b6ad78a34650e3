#pragma once

#include <cstddef>
#include <span>

#include "trireme/core/tensor.hpp"

namespace trireme::ops {

/// The elements themselves, for loops of your own where there is no kernel.
struct host_values {
  /// Calls f(span of the elements)... of each view, in the calling thread. In memory that does not exist (phantom) f is
  /// not called.
  template <class F, class... T>
  static void with_values(F&& f, tensor_view<T, host>... views) {
    f(std::span<T>(raw(views), static_cast<std::size_t>(views.size()))...);
  }
};

}  // namespace trireme::ops
