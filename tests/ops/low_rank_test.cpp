#include "trireme/ops/host/low_rank.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/ops.hpp"

using namespace trireme;
using ops::transposed;

namespace {

template <class T>
struct matrix {
  std::int64_t rows, columns;
  std::vector<T> values = std::vector<T>(static_cast<std::size_t>(rows * columns));
  matrix(std::int64_t n, std::int64_t m, std::uint64_t seed = 0) : rows(n), columns(m) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = seed == 0 ? T{} : static_cast<T>(static_cast<double>(mix(seed + i) >> 40) * 0x1p-23 - 1);
  }
  T& operator()(std::int64_t i, std::int64_t j) { return values[static_cast<std::size_t>(i * columns + j)]; }
  tensor_view<T> view() { return tensor_view<T>(values.data(), shape{rows, columns}); }
};

template <class T>
double worst_product(std::int64_t m, std::int64_t n, std::int64_t k, transposed of_a, transposed of_b) {
  auto const turned = [](transposed way) { return way == transposed::yes; };
  matrix<T> a(turned(of_a) ? k : m, turned(of_a) ? m : k, 1);
  matrix<T> b(turned(of_b) ? n : k, turned(of_b) ? k : n, 99);
  matrix<T> y(m, n, 5);  // the previous content must not matter
  ops::on<host>::small_product(y.view(), a.view(), of_a, b.view(), of_b);
  double worst = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += static_cast<double>(turned(of_a) ? a(l, i) : a(i, l)) *
               static_cast<double>(turned(of_b) ? b(j, l) : b(l, j));
      worst = std::max(worst, std::abs(sum - static_cast<double>(y(i, j))));
    }
  }
  return worst;
}

/// How far the columns are from orthonormal.
template <class T>
double not_orthonormal(matrix<T>& x) {
  double worst = 0;
  for (std::int64_t a = 0; a < x.columns; ++a) {
    for (std::int64_t b = 0; b <= a; ++b) {
      double sum = a == b ? -1 : 0;
      for (std::int64_t i = 0; i < x.rows; ++i) sum += static_cast<double>(x(i, a)) * static_cast<double>(x(i, b));
      worst = std::max(worst, std::isnan(sum) ? 1e9 : std::abs(sum));
    }
  }
  return worst;
}

}  // namespace

TEMPLATE_TEST_CASE("small_product is the product of either matrix or its transpose", "[ops]", float, double) {
  double const close = std::is_same_v<TestType, float> ? 1e-5 : 1e-13;
  for (auto const of_a : {transposed::no, transposed::yes}) {
    for (auto const of_b : {transposed::no, transposed::yes}) {
      CHECK(worst_product<TestType>(17, 3, 29, of_a, of_b) < close);
      CHECK(worst_product<TestType>(1, 1, 1, of_a, of_b) < close);
      CHECK(worst_product<TestType>(5, 31, 2, of_a, of_b) < close);
    }
  }
  matrix<TestType> a(3, 4), b(5, 2), y(3, 2);
  CHECK_THROWS_WITH(ops::on<host>::small_product(y.view(), a.view(), transposed::no, b.view(), transposed::no),
                    "trireme::ops::small_product: (3, 2) is not the shape of (3, 4) times (5, 2)");
}

TEMPLATE_TEST_CASE("orthonormalise makes columns orthonormal and keeps what they span", "[ops]", float, double) {
  double const close = std::is_same_v<TestType, float> ? 1e-6 : 1e-14;
  for (auto const& [n, r] : {std::pair{50, 4}, std::pair{7, 7}, std::pair{1, 1}, std::pair{300, 1}}) {
    matrix<TestType> x(n, r, 3);
    auto before = x;
    ops::on<host>::orthonormalise(x.view());
    CHECK(not_orthonormal(x) < close);
    // Each column of before is the sum of its parts along the new ones.
    double worst = 0;
    for (std::int64_t c = 0; c < r; ++c) {
      std::vector<double> rest;
      for (std::int64_t i = 0; i < n; ++i) rest.push_back(static_cast<double>(before(i, c)));
      for (std::int64_t k = 0; k < r; ++k) {
        double part = 0;
        for (std::int64_t i = 0; i < n; ++i) part += static_cast<double>(before(i, c) * x(i, k));
        for (std::int64_t i = 0; i < n; ++i) rest[static_cast<std::size_t>(i)] -= part * static_cast<double>(x(i, k));
      }
      for (double const each : rest) worst = std::max(worst, std::abs(each));
    }
    CHECK(worst < 20 * close);
  }
}

TEMPLATE_TEST_CASE("orthonormalise replaces columns that are zero, dependent or NaN", "[ops]", float, double) {
  double const close = std::is_same_v<TestType, float> ? 1e-6 : 1e-14;
  matrix<TestType> x(9, 6, 11);
  for (std::int64_t i = 0; i < 9; ++i) {
    x(i, 1) = 3 * x(i, 0);
    x(i, 2) = 0;
    x(i, 4) = std::numeric_limits<TestType>::quiet_NaN();
    x(i, 5) = std::numeric_limits<TestType>::infinity();
  }
  ops::on<host>::orthonormalise(x.view());
  CHECK(not_orthonormal(x) < close);
  matrix<TestType> zero(4, 4);
  ops::on<host>::orthonormalise(zero.view());
  CHECK(not_orthonormal(zero) < close);
  matrix<TestType> wide(2, 3);
  CHECK_THROWS_WITH(ops::on<host>::orthonormalise(wide.view()),
                    "trireme::ops::orthonormalise: (2, 3) is not a matrix with at least as many rows as columns");
}
