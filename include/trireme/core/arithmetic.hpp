#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "trireme/core/dialect.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/text.hpp"

namespace trireme {

/// The floating-point mode of a thread: its rounding, and whether it flushes denormal numbers to zero. A program can
/// change both (fesetround, linking with -ffast-math, torch::set_flush_denormal), which changes the bits of results.
class arithmetic_mode {
 public:
  /// The mode of the calling thread. Takes about a nanosecond.
  [[nodiscard]] static arithmetic_mode of_this_thread() noexcept {
#if defined(__SSE2__)
    return arithmetic_mode(_mm_getcsr() & decides);
#elif defined(__aarch64__) && !defined(__CUDA_ARCH__)
    return arithmetic_mode(control() & decides);
#else
    return arithmetic_mode(static_cast<std::uint64_t>(std::fegetround()));
#endif
  }
  /// Sets this mode for the calling thread; its exception masks are unchanged.
  void use() const noexcept {
    if (*this == of_this_thread()) return;
#if defined(__SSE2__)
    _mm_setcsr(static_cast<unsigned>((_mm_getcsr() & ~decides) | bits_));
#elif defined(__aarch64__) && !defined(__CUDA_ARCH__)
    auto const all = (control() & ~decides) | bits_;
    asm volatile("msr fpcr, %0" : : "r"(all));
#else
    static_cast<void>(std::fesetround(static_cast<int>(bits_)));
#endif
  }

  [[nodiscard]] bool rounds_to_nearest() const noexcept { return rounding() == "to nearest"; }
  /// Whether a denormal number is flushed to zero, as a result or as an operand.
  [[nodiscard]] bool flushes() const noexcept { return (bits_ & flush) != 0; }

  /// "rounding to nearest, denormal numbers kept"
  [[nodiscard]] friend std::string to_string(arithmetic_mode const& mode) {
    auto const part = mode.bits_ & flush;
    return text("rounding ", mode.rounding(), ", denormal numbers ",
                part == 0          ? "kept"
                : part == operands ? "zero as operands"
                : part == flush    ? "zero"
                                   : "zero as results");
  }
  friend bool operator==(arithmetic_mode const&, arithmetic_mode const&) = default;

 private:
  explicit arithmetic_mode(std::uint64_t bits) noexcept : bits_(bits) {}

#if defined(__SSE2__)
  static constexpr std::uint64_t decides = 0xE040, flush = 0x8040, operands = 0x0040;
  [[nodiscard]] std::string_view rounding() const noexcept { return directions[(bits_ >> 13) & 3]; }
  static constexpr std::string_view directions[] = {"to nearest", "down", "up", "towards zero"};
#elif defined(__aarch64__) && !defined(__CUDA_ARCH__)
  static constexpr std::uint64_t decides = 0x1C00000, flush = 0x1000000, operands = 0;
  [[nodiscard]] std::string_view rounding() const noexcept { return directions[(bits_ >> 22) & 3]; }
  static constexpr std::string_view directions[] = {"to nearest", "up", "down", "towards zero"};
  [[nodiscard]] static std::uint64_t control() noexcept {
    std::uint64_t all = 0;
    asm volatile("mrs %0, fpcr" : "=r"(all));
    return all;
  }
#else
  static constexpr std::uint64_t flush = 0, operands = 0;
  [[nodiscard]] std::string_view rounding() const noexcept {
    return static_cast<int>(bits_) == FE_TONEAREST ? "to nearest" : "not to nearest";
  }
#endif

  std::uint64_t bits_;
};

namespace detail {

/// What is wrong with the arithmetic of the compiled code, and the compiler flags that cause it; empty if it is
/// correct. The operands are volatile, so the code that the compiler has generated here is tested. It raises no
/// floating-point exception but "inexact", so that a program may trap the others.
[[nodiscard]] inline std::string_view broken_arithmetic() noexcept {
  using limits = std::numeric_limits<float>;
  auto const bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  float volatile source = limits::quiet_NaN();
  float const nan = source;
  if (exactly_equal(nan, nan) || !std::isnan(nan)) return "NaN equals itself (-ffinite-math-only, -fno-honor-nans)";
  source = limits::infinity();
  float const infinite = source;
  if (std::isfinite(infinite) || !std::isinf(infinite) || !(infinite > limits::max()))
    return "infinity is finite (-ffinite-math-only, -fno-honor-infinities)";
  auto const mode = arithmetic_mode::of_this_thread();
  source = limits::denorm_min();
  float const tiny = source;
  if (!mode.flushes() && !(tiny > 0)) return "denormal numbers are zero (-fdenormal-fp-math)";
  if (!mode.rounds_to_nearest()) return {};  // the other results are known for this mode only
  source = 1;
  float const one = source;
  if (bits((one + 1e30F) - 1e30F) != 0) return "sums have another order (-fassociative-math)";
  source = -0.0F;
  float const zero = source;
  if (bits(zero + 0.0F) != 0) return "zero has no sign (-fno-signed-zeros)";
  source = 5;
  float const five = source;
  if (bits(five / 3.0F) != bits(0x1.aaaaaap+0F)) return "a quotient is a product (-freciprocal-math)";
  return {};
}

}  // namespace detail

/// Throws if the code was compiled with flags under which floating-point arithmetic is not exact IEEE: those that leave
/// no trace for the preprocessor (clang's parts of -ffast-math; the others are an #error of core/dialect.hpp).
///
/// Why: a NaN loss would not be noticed, a checkpoint could not be read, and the bits of results would differ between
/// compilers. make_trainer and make_exchange call it.
///
/// Errors   config_error that names the wrong operation, and the flags that cause it.
inline void expect_exact_arithmetic() {
  auto const broken = detail::broken_arithmetic();
  if (broken.empty()) return;
  throw config_error(
      text("trireme::expect_exact_arithmetic: this program was compiled so that ", broken,
           "; compile the files that include trireme without such flags, or with -fno-fast-math after them"));
}

}  // namespace trireme
