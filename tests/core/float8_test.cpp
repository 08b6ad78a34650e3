#include "trireme/core/float8.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "../catch.hpp"
#include "trireme/core/float4.hpp"

using namespace trireme;

namespace {

/// The lines of golden/float8.txt, which the package ml-dtypes has made: numbers with their codes.
template <class Format, bool encodes = true>
void equals_package(std::string const& name) {
  auto const* const folder = std::getenv("TRIREME_TEST_DATA");  // ctest says where tests/ is
  std::ifstream file(std::string(folder == nullptr ? "tests" : folder) + "/golden/float8.txt");
  REQUIRE(file.good());
  int lines = 0, different = 0, pairs = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string format, kind, word;
    words >> format >> kind;
    if (format != name) continue;
    ++lines;
    std::uint32_t code = 0;
    while (words >> word) {
      auto const number = static_cast<std::uint32_t>(std::stoul(word, nullptr, 16));
      if (kind == "decode") {
        Format at;
        at.bits = static_cast<std::uint8_t>(code++);
        auto const found = static_cast<float>(at);
        auto const bits = std::isnan(found) ? 0x7fc0'0000U : std::bit_cast<std::uint32_t>(found);
        different += bits != number;
      } else {
        auto const right = std::stoul(word.substr(word.find(':') + 1), nullptr, 16);
        if constexpr (encodes) different += Format(std::bit_cast<float>(number)).bits != right;
        ++pairs;
      }
    }
    if (kind == "decode") CHECK(code == (name == "e2m1" ? 16 : 256));
  }
  CHECK(lines == (encodes ? 2 : 1));
  if (encodes) CHECK(pairs > (name == "e2m1" ? 60 : 900));
  CHECK(different == 0);
}

}  // namespace

TEST_CASE("all codes of 8-bit floats, and all ties, are those of the package ml-dtypes", "[core]") {
  equals_package<float8_e4m3>("e4m3");
  equals_package<float8_e5m2>("e5m2");
}

TEST_CASE("so are those of 4-bit floats, and of scales", "[core]") {
  equals_package<float4_e2m1>("e2m1");
  equals_package<float8_e8m0, false>("e8m0");
  CHECK(static_cast<float>(float4_e2m1::max()) == 6);
  CHECK(float4_e2m1(-0.1F).bits == 8);
  for (int const exponent : {-127, -126, 0, 3, 127})
    CHECK(static_cast<float>(float8_e8m0::power(exponent)) == std::ldexp(1.0F, exponent));
  CHECK(float8_e8m0::power(-200).bits == 0);
  CHECK(float8_e8m0::power(200).bits == 254);
}

TEST_CASE("8-bit floats at the ends of their ranges", "[core]") {
  constexpr auto infinite = std::numeric_limits<float>::infinity();
  static_assert(static_cast<float>(float8_e4m3::max()) == 448);
  static_assert(static_cast<float>(float8_e5m2::max()) == 57344);
  static_assert(static_cast<float>(float8_e4m3(0x1p-9F)) == 0x1p-9F);
  static_assert(static_cast<float>(float8_e4m3(0x1p-10F)) == 0);  // a tie
  CHECK(std::isnan(static_cast<float>(float8_e4m3(465))));
  CHECK(static_cast<float>(float8_e4m3(464)) == 448);  // a tie
  CHECK(static_cast<float>(float8_e5m2(1e5F)) == infinite);
  for (float const each : {464.5F, 1e30F, infinite}) {
    CHECK(static_cast<float>(float8_e4m3::saturated(each)) == 448);
    CHECK(static_cast<float>(float8_e4m3::saturated(-each)) == -448);
  }
  CHECK(static_cast<float>(float8_e5m2::saturated(-infinite)) == -57344);
  CHECK(static_cast<float>(float8_e4m3::saturated(1.0625F)) == 1);
  CHECK(std::isnan(static_cast<float>(float8_e4m3::saturated(std::nanf("")))));
}
