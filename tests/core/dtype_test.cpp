#include "trireme/core/dtype.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "../catch.hpp"

using namespace trireme;

namespace {

bool is_nan(float16 x) { return (x.bits & 0x7fffU) > 0x7c00U; }

/// The value of a bit pattern, from the definition of binary16.
double by_the_book(std::uint16_t bits) {
  int const exponent = bits >> 10 & 31;
  int const fraction = bits & 1023;
  double const size = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 == 0 ? size : -size;
}

/// The pattern nearest to x, an even one if two are: found by search among all non-negative ones.
std::uint16_t nearest(double x) {
  static std::vector<double> const known = [] {
    std::vector<double> all(0x7c00);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = by_the_book(static_cast<std::uint16_t>(i));
    all.push_back(65536);  // where infinity stands in rounding
    return all;
  }();
  double const size = std::fabs(x);
  auto const sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000U : 0U);
  auto const above = static_cast<std::size_t>(std::lower_bound(known.begin(), known.end(), size) - known.begin());
  if (above == known.size()) return sign | 0x7c00U;
  auto pattern = above;
  if (above > 0) {
    double const up = known[above] - size;
    double const down = size - known[above - 1];
    if (down < up || (down == up && (above - 1) % 2 == 0)) pattern = above - 1;
  }
  return static_cast<std::uint16_t>(sign | pattern);
}

}  // namespace

TEST_CASE("every float16 pattern is the number of the standard, and converts back from float") {
  bool right = true;
  for (std::uint32_t i = 0; i < 0x1'0000U; ++i) {
    float16 x;
    x.bits = static_cast<std::uint16_t>(i);
    auto const wide = static_cast<float>(x);
    auto const back = float16(wide);
    if (is_nan(x)) {
      right = right && std::isnan(wide) && back.bits == (x.bits | 0x200U);
    } else {
      right = right && static_cast<double>(x) == by_the_book(x.bits) && back.bits == x.bits;
    }
  }
  CHECK(right);
}

TEST_CASE("float16 rounds to the nearest number, ties to even") {
  bool right = true;
  auto const check = [&](float x) {
    if (float16(x).bits != nearest(x) || float16(-x).bits != nearest(-x)) {
      right = false;
      UNSCOPED_INFO(x);
    }
  };
  // Each number, the midpoints between neighbours, and the floats next to both.
  for (std::uint32_t i = 0; i < 0x7c00U; ++i) {
    auto const x = static_cast<float>(by_the_book(static_cast<std::uint16_t>(i)));
    auto const next = i == 0x7bffU ? 65536.0F : static_cast<float>(by_the_book(static_cast<std::uint16_t>(i + 1)));
    for (float const at : {x, (x + next) / 2}) {
      check(at);
      check(std::nextafter(at, 0.0F));
      check(std::nextafter(at, 1e9F));
    }
  }
  std::mt19937_64 generate(3);
  for (int i = 0; i < 100'000; ++i) {
    float const x = std::bit_cast<float>(static_cast<std::uint32_t>(generate()));
    if (!std::isnan(x)) check(x);
  }
  for (float const x : {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(), INFINITY})
    check(x);
  CHECK(right);
}

TEST_CASE("float16 converts where the compiler computes") {
  static_assert(float16(1.0F).bits == 0x3c00);
  static_assert(float16(-0.0F).bits == 0x8000);
  static_assert(float16(0x1p-24F).bits == 1);
  static_assert(float16(0x1p-25F).bits == 0);
  static_assert(float16(65519.0F).bits == 0x7bff);
  static_assert(float16(65520.0F).bits == 0x7c00);
  static_assert(static_cast<float>(float16(0.1F)) == 0x1.998p-4F);
  static_assert(float16(2.0F) == float16(2.0F));
  static_assert(dtype_of<f16> == dtype::f16 && size_of(dtype::f16) == sizeof(f16));
  static_assert(storage_float<f16> && storage_float<bf16> && !storage_float<float>);
  float16 nan;
  nan.bits = 0x7c01;
  CHECK_FALSE(nan == nan);
}

TEST_CASE("bfloat16 rounds to the nearest number, ties to even") {
  bool right = true;
  for (std::uint32_t i = 0; i < 0x7f80U; ++i) {
    auto const low = std::bit_cast<float>(i << 16);
    auto const middle = std::bit_cast<float>(i << 16 | 0x8000U);
    right = right && bfloat16(low).bits == i && bfloat16(middle).bits == i + (i & 1U);
    right = right && bfloat16(std::nextafter(middle, 0.0F)).bits == i;
    right = right && bfloat16(std::nextafter(middle, INFINITY)).bits == i + 1;
  }
  CHECK(right);
}

TEST_CASE("every element type has a name of its own and its size") {
  std::vector<std::string_view> names;
  for (auto const type : {dtype::f64, dtype::f32, dtype::bf16, dtype::f16, dtype::i64, dtype::i32, dtype::u64,
                          dtype::u32, dtype::i8, dtype::u8}) {
    CHECK(size_of(type) > 0);
    for (auto const& name : names) CHECK(name != name_of(type));
    names.push_back(name_of(type));
  }
  CHECK(name_of(dtype_of<float16>) == "F16");
}
