#include "trireme/ops/host/low_rank.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "support.hpp"
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

/// The product of a and b, either transposed, as small_product promises it: in the order of K, every product and every
/// sum rounded to T. (For float double is exact enough that each is rounded only once.)
template <class T>
matrix<T> product_in_order(matrix<T> a, transposed of_a, matrix<T> b, transposed of_b) {
  bool const a_turned = of_a == transposed::yes, b_turned = of_b == transposed::yes;
  matrix<T> y(a_turned ? a.columns : a.rows, b_turned ? b.rows : b.columns);
  for (std::int64_t i = 0; i < y.rows; ++i) {
    for (std::int64_t j = 0; j < y.columns; ++j) {
      for (std::int64_t l = 0; l < (a_turned ? a.rows : a.columns); ++l) {
        auto const left = static_cast<double>(a_turned ? a(l, i) : a(i, l));
        auto const right = static_cast<double>(b_turned ? b(j, l) : b(l, j));
        T const volatile product = static_cast<T>(left * right);
        y(i, j) = static_cast<T>(static_cast<double>(y(i, j)) + static_cast<double>(product));
      }
    }
  }
  return y;
}
template <class T>
bool same_bits(matrix<T> const& a, matrix<T> const& b) {
  return a.values.empty() || std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(T)) == 0;
}

/// Extents (m, n, k) with a small one: whole vectors and what is left of them at every CPU level, strips and pieces of
/// transposed matrices, ranks that are not a multiple of 4, and empty ones.
std::vector<std::array<std::int64_t, 3>> few_columns() {
  std::vector<std::array<std::int64_t, 3>> all{{0, 3, 4},    {3, 0, 4},    {3, 4, 0},    {1, 1, 1},     {70, 4, 300},
                                               {32, 8, 128}, {33, 1, 129}, {40, 16, 31}, {40, 20, 257}, {9, 5, 513}};
  for (std::int64_t const rank : {1, 2, 3, 4, 5, 8, 9})
    for (std::int64_t const other : {7, 15, 47}) all.push_back({other, rank, 2 * other + 1});
  return all;
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

TEMPLATE_TEST_CASE("products with few columns are summed in the order of K, with the same bits at every CPU level",
                   "[ops]", float, double) {
  using T = TestType;
  at_each_level([] {
    for (auto const& [m, n, k] : few_columns()) {
      CAPTURE(ops::name_of(ops::detected()), m, n, k);
      for (auto const of_a : {transposed::no, transposed::yes}) {
        for (auto const of_b : {transposed::no, transposed::yes}) {
          CAPTURE(of_a, of_b);
          matrix<T> a(of_a == transposed::yes ? k : m, of_a == transposed::yes ? m : k, 1);
          matrix<T> b(of_b == transposed::yes ? n : k, of_b == transposed::yes ? k : n, 2);
          matrix<T> y(m, n, 3);
          ops::on<host>::small_product(y.view(), a.view(), of_a, b.view(), of_b);
          CHECK(same_bits(y, product_in_order(a, of_a, b, of_b)));
        }
      }
      // The sum of a product, and the rest of one, with the bits of the kernels that they are made of.
      matrix<T> x(m, k, 4), z(m, k, 5), b(k, n, 6), y(m, n, 7);
      auto sum = x;
      ops::on<host>::accumulate(sum.view(), z.view(), 0.7);
      ops::on<host>::product_of_sum(y.view(), x.view(), z.view(), 0.7, b.view());
      CHECK(same_bits(x, sum));
      CHECK(same_bits(y, product_in_order(sum, transposed::no, b, transposed::no)));

      matrix<T> p(m, n, 8), own(k, n, 9), all(k, n, 10), rest(m, k, 11);
      auto expected = product_in_order(p, transposed::no, own, transposed::yes);
      ops::on<host>::scale(expected.view(), -0.3);
      ops::on<host>::accumulate(expected.view(), x.view(), 0.3);
      ops::on<host>::rest_and_product(rest.view(), x.view(), p.view(), own.view(), all.view(), 0.3);
      CHECK(same_bits(rest, expected));
      CHECK(same_bits(x, product_in_order(p, transposed::no, all, transposed::yes)));
    }
  });
  matrix<T> x(3, 4), z(4, 3), b(4, 2), y(3, 2);
  CHECK_THROWS_WITH(ops::on<host>::product_of_sum(y.view(), x.view(), z.view(), 1, b.view()),
                    "trireme::ops::product_of_sum: (3, 2) is not the shape of (3, 4) plus (4, 3), times (4, 2)");
  CHECK_THROWS_WITH(ops::on<host>::rest_and_product(x.view(), x.view(), y.view(), b.view(), y.view(), 1),
                    "trireme::ops::rest_and_product: (3, 4) and (3, 4) are not both the shape of (3, 2) times (4, 2) "
                    "transposed and (3, 2) transposed");
}

TEMPLATE_TEST_CASE("a product with few columns passes NaN and infinity on to their row or column only", "[ops]", float,
                   double) {
  using T = TestType;
  matrix<T> a(37, 50, 1), b(50, 4, 2), y(37, 4);
  a(5, 3) = std::numeric_limits<T>::quiet_NaN();
  a(36, 49) = std::numeric_limits<T>::infinity();
  ops::on<host>::small_product(y.view(), a.view(), transposed::no, b.view(), transposed::no);
  for (std::int64_t i = 0; i < 37; ++i) {
    for (std::int64_t j = 0; j < 4; ++j) CHECK(std::isfinite(y(i, j)) == (i != 5 && i != 36));
  }
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
