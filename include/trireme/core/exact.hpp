#pragma once

#include <functional>

#include "trireme/core/dialect.hpp"

// Around a defaulted comparison: clang warns of the members that it compares.
#if defined(__clang__)
#define TRIREME_EXACT_BEGIN _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wfloat-equal\"")
#define TRIREME_EXACT_END _Pragma("clang diagnostic pop")
#else
#define TRIREME_EXACT_BEGIN
#define TRIREME_EXACT_END
#endif

namespace trireme {

/// Whether two numbers are equal: `a == b`, for code that means exact equality.
///
/// Compilers warn of == between floating-point numbers (-Wfloat-equal), because results of arithmetic are rarely
/// equal. Here such numbers are settings (0 means off) or copies that must be the same.
///
/// Numerics as ==: -0 equals 0, NaN equals nothing.
template <class A, class B>
[[nodiscard]] constexpr bool exactly_equal(A const& a, B const& b) noexcept {
  return std::equal_to<>{}(a, b);
}

}  // namespace trireme
