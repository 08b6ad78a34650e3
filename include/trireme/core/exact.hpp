#pragma once

#include <functional>

#include "trireme/core/dialect.hpp"

// Around a comparison that is defaulted: clang warns of the members that it compares there.
#if defined(__clang__)
#define TRIREME_EXACT_BEGIN _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wfloat-equal\"")
#define TRIREME_EXACT_END _Pragma("clang diagnostic pop")
#else
#define TRIREME_EXACT_BEGIN
#define TRIREME_EXACT_END
#endif

namespace trireme {

/// Whether two numbers are equal to the last bit of their values: `a == b`, where that is what is meant.
///
/// Compilers warn of == between floating-point numbers (-Wfloat-equal), because results of arithmetic are rarely
/// equal. Here such numbers are settings (0 means off) or copies that must be the same.
///
/// Numerics as == says: -0 equals 0, NaN equals nothing.
template <class A, class B>
[[nodiscard]] constexpr bool exactly_equal(A const& a, B const& b) noexcept {
  return std::equal_to<>{}(a, b);
}

}  // namespace trireme
