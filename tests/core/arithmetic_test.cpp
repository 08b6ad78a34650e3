#include "trireme/core/arithmetic.hpp"

#include <cfenv>
#include <string>
#include <thread>

#include "../catch.hpp"

using namespace trireme;

namespace {

/// The thread's mode is put back at the end.
struct mode_kept {
  arithmetic_mode before = arithmetic_mode::of_this_thread();
  ~mode_kept() { before.use(); }
};
std::string mode_here() { return to_string(arithmetic_mode::of_this_thread()); }

}  // namespace

TEST_CASE("a floating-point mode is read, printed and set in another thread", "[core][arithmetic]") {
  mode_kept const kept;
  CHECK(mode_here() == "rounding to nearest, denormal numbers kept");
  CHECK(kept.before.rounds_to_nearest());
  CHECK_FALSE(kept.before.flushes());
  struct {
    int direction;
    char const* name;
  } const directions[] = {{FE_DOWNWARD, "down"}, {FE_UPWARD, "up"}, {FE_TOWARDZERO, "towards zero"}};
  for (auto const& each : directions) {
    std::fesetround(each.direction);
    auto const mode = arithmetic_mode::of_this_thread();
    CHECK(to_string(mode) == std::string("rounding ") + each.name + ", denormal numbers kept");
    CHECK_FALSE(mode.rounds_to_nearest());
    CHECK(mode != kept.before);
    float sum = 0;
    kept.before.use();
    std::thread([&] {
      mode.use();
      float volatile one = 1, little = 1e-9F;
      sum = one + little;
    }).join();
    CHECK((sum > 1) == (each.direction == FE_UPWARD));
    CHECK(arithmetic_mode::of_this_thread() == kept.before);
  }
#if defined(__SSE2__)
  auto const found = _mm_getcsr();
  _mm_setcsr(found | 0x8000U);
  CHECK(mode_here() == "rounding to nearest, denormal numbers zero as results");
  _mm_setcsr(found | 0x0040U);
  CHECK(mode_here() == "rounding to nearest, denormal numbers zero as operands");
  _mm_setcsr(found | 0x8040U);
  CHECK(mode_here() == "rounding to nearest, denormal numbers zero");
  CHECK(arithmetic_mode::of_this_thread().flushes());
#endif
}

TEST_CASE("a changed rounding mode is not taken for a compiler option, and checks raise no trap",
          "[core][arithmetic]") {
  mode_kept const kept;
  CHECK_NOTHROW(expect_exact_arithmetic());
  for (int const direction : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
    std::fesetround(direction);
    CHECK_NOTHROW(expect_exact_arithmetic());
  }
  kept.before.use();
#if defined(__SSE2__)
  auto const found = _mm_getcsr();
  _mm_setcsr(found | 0x8040U);
  CHECK_NOTHROW(expect_exact_arithmetic());
  _mm_setcsr(found & ~0x0E80U);  // invalid, division by zero, overflow and underflow end the program
  auto const broken = detail::broken_arithmetic();
  _mm_setcsr(found);
  CHECK(broken.empty());
#endif
}
