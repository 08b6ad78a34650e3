#include "trireme/data/function.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "../catch.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;

namespace {
auto const sine = [](float x) { return std::sin(x); };
}

TEST_CASE("a function gives pairs of an input and its value", "[data][function]") {
  auto const data = data::function(sine, {.samples = 1000, .low = -2, .high = 3, .seed = 9});
  static_assert(dataset<decltype(data)>);
  CHECK(data.size() == 1000);
  CHECK(data.input_shape() == shape{1});
  CHECK(data.target_shape() == shape{1});
  CHECK(data.input_type() == dtype::f32);
  std::vector<std::int64_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> x(1000), y(1000);
  data.read(ids, x.data(), y.data());
  double mean = 0, square = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    REQUIRE(x[i] >= -2);
    REQUIRE(x[i] < 3);
    REQUIRE(y[i] == std::sin(x[i]));
    mean += x[i] / 1000;
    square += x[i] * x[i] / 1000;
  }
  CHECK(mean == Approx(0.5).margin(0.15));
  CHECK(square - mean * mean == Approx(25.0 / 12).epsilon(0.1));
}

TEST_CASE("a sample of a function depends on the seed and its number alone", "[data][function]") {
  auto const data = data::function(sine, {.seed = 1});
  auto const same = data::function(sine, {.samples = 10, .seed = 1});
  auto const other = data::function(sine, {.seed = 2});
  std::vector<std::int64_t> const ids{5, 3, 5};
  std::vector<float> x(3), y(3);
  data.read(ids, x.data(), y.data());
  CHECK(x[0] == x[2]);
  CHECK(x[0] == same.input(5));
  CHECK(x[1] == same.input(3));
  CHECK(x[0] != other.input(5));
}

TEST_CASE("the upper bound is never reached, even where rounding would", "[data][function]") {
  auto const data = data::function(sine, {.samples = 20000, .low = 16777215, .high = 16777216});
  for (std::int64_t i = 0; i < data.size(); ++i) REQUIRE(data.input(i) < 16777216);
}

TEST_CASE("impossible options of a function dataset are refused", "[data][function]") {
  auto const infinity = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(data::function(sine, {.samples = 0}), config_error);
  CHECK_THROWS_AS(data::function(sine, {.samples = -1}), config_error);
  CHECK_THROWS_AS(data::function(sine, {.low = 1, .high = 1}), config_error);
  CHECK_THROWS_AS(data::function(sine, {.low = std::nanf("")}), config_error);
  CHECK_THROWS_AS(data::function(sine, {.high = infinity}), config_error);
  CHECK_THROWS_WITH(data::function(sine, {.low = 2, .high = 1}),
                    "trireme::data::function: inputs cannot be drawn from [2, 1): .low must be less than .high, and "
                    "both finite");
  CHECK(to_string(data::function_options{}) ==
        "trireme::data::function_options{.samples = 4096, .low = -3.14F, .high = 3.14F, .seed = 0}");
}
