#pragma once

#include "trireme/core/dialect.hpp"

namespace trireme {

/// The elements whose bytes begin at an address.
///
/// A cast for memory that was allocated and aligned for such elements. Compilers warn of a direct cast from bytes
/// (-Wcast-align=strict), because they do not know that.
template <class T>
[[nodiscard]] inline T* elements_at(void* address) noexcept {
  return static_cast<T*>(address);
}
template <class T>
[[nodiscard]] inline T const* elements_at(void const* address) noexcept {
  return static_cast<T const*>(address);
}

}  // namespace trireme
