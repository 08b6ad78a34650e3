#include "trireme/core/exact_sum.hpp"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "../catch.hpp"

using trireme::exact_sum;

namespace {

exact_sum sum_of(std::vector<double> const& terms) {
  exact_sum sum;
  for (auto const term : terms) sum.add(term);
  return sum;
}

}  // namespace

TEST_CASE("exact_sum gives the same state in any order and any grouping") {
  std::mt19937_64 generate(1);
  std::vector<double> terms(2000);
  for (auto& term : terms) {
    term =
        std::ldexp(std::uniform_real_distribution<double>(-1, 1)(generate), static_cast<int>(generate() % 2000) - 1000);
  }
  auto const sum = sum_of(terms);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(terms.begin(), terms.end(), generate);
    CHECK(sum_of(terms) == sum);
    exact_sum left;
    exact_sum right;
    for (std::size_t i = 0; i < terms.size(); ++i) (i % 3 == 0 ? left : right).add(terms[i]);
    for (std::size_t i = 0; i < left.state().size(); ++i) left.state()[i] += right.state()[i];  // what ranks do
    CHECK(left == sum);
  }
  for (auto& term : terms) term = -term;
  CHECK(sum_of(terms).value() == -sum.value());
}

TEST_CASE("a sum of one number is that number") {
  using limits = std::numeric_limits<double>;
  for (double const x : {0.0, 1.0, -1.5, 0.1, limits::max(), -limits::max(), limits::min(), limits::denorm_min(),
                         -3 * limits::denorm_min(), 0x1.fffffffffffffp-1023, 0x1.0000000000001p31, 0x1p-1022}) {
    CHECK(sum_of({x}).value() == x);
    CHECK(sum_of({x, x, -x}).value() == x);
    CHECK(sum_of({x, -x}).value() == 0);
  }
}

TEST_CASE("exact_sum rounds once, to nearest even") {
  double const ulp = std::numeric_limits<double>::epsilon();
  CHECK(sum_of({1.0, ulp / 2}).value() == 1.0);
  CHECK(sum_of({1.0, ulp / 2, 0x1p-1074}).value() == 1.0 + ulp);
  CHECK(sum_of({1.0 + ulp, ulp / 2}).value() == 1.0 + 2 * ulp);
  CHECK(sum_of({-1.0, -ulp / 2, -0x1p-1074}).value() == -1.0 - ulp);
  CHECK(sum_of({1e300, 1.0, -1e300}).value() == 1.0);
  CHECK(sum_of(std::vector<double>(10, 0.1)).value() == 1.0);
  CHECK(sum_of({2.0, -ulp / 2}).value() == 2.0);
  CHECK(sum_of({0x1p53, 1.0, 1.0}).value() == 0x1p53 + 2);
}

TEST_CASE("exact_sum agrees with a sum in integers") {
  std::mt19937_64 generate(2);
  for (int round = 0; round < 200; ++round) {
    std::int64_t expected = 0;
    exact_sum sum;
    for (int i = 0; i < 100; ++i) {
      auto const term = static_cast<std::int64_t>(generate() >> 20) - (std::int64_t{1} << 43);
      expected += term;
      sum.add(static_cast<double>(term) * 0x1p-40);
    }
    CHECK(sum.value() == static_cast<double>(expected) * 0x1p-40);
  }
}

TEST_CASE("sums beyond the largest double are infinite, and a term that is not finite is remembered") {
  double const most = std::numeric_limits<double>::max();
  CHECK(sum_of({most, most}).value() == std::numeric_limits<double>::infinity());
  CHECK(sum_of({-most, -most}).value() == -std::numeric_limits<double>::infinity());
  CHECK(sum_of({most, most, -most}).value() == most);
  auto sum = sum_of({1.0, std::numeric_limits<double>::infinity()});
  CHECK(sum.non_finite() == 1);
  CHECK(std::isnan(sum.value()));
  sum.add(std::numeric_limits<double>::quiet_NaN());
  CHECK(sum.non_finite() == 2);
}
