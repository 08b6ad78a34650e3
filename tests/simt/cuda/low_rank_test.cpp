// Matrices of few columns in CUDA memory: products with the host's bits, and orthonormal columns.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "codec_tensors.hpp"
#include "trireme/ops/host/low_rank.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using namespace codec_tensors;

namespace {

template <class Precision>
constexpr bool has_kernels = ops::low_rank_kernels<cuda, environment<Precision, cuda>>;
static_assert(has_kernels<precision::fp32> && has_kernels<precision::fp64> && has_kernels<precision::bf16> &&
              has_kernels<precision::fp16>);

template <class T>
void compare_product(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t offset) {
  auto const a = numbers<T>(m * k, 1), b = numbers<T>(k * n, 2);
  std::vector<T> y(static_cast<std::size_t>(m * n), T{7});
  there<T> const da(a, offset), db(b, offset), dy(y, offset);
  for (auto const of_a : {ops::transposed::no, ops::transposed::yes}) {
    for (auto const of_b : {ops::transposed::no, ops::transposed::yes}) {
      CAPTURE(m, n, k, of_a, of_b);
      auto const a_shape = of_a == ops::transposed::yes ? shape{k, m} : shape{m, k};
      auto const b_shape = of_b == ops::transposed::yes ? shape{n, k} : shape{k, n};
      kernels::small_product(dy.view().reshaped({m, n}), da.constant().reshaped(a_shape), of_a,
                             db.constant().reshaped(b_shape), of_b);
      ops::host_low_rank::small_product(tensor_view(y).reshaped({m, n}), tensor_view<T const>(a).reshaped(a_shape),
                                        of_a, tensor_view<T const>(b).reshaped(b_shape), of_b);
      CHECK(same_bits(dy.back(), y));
    }
  }
}

/// The largest difference of two lists, and of the inner products of the columns of x (n, r) from those of orthonormal
/// ones.
template <class T>
double difference(std::vector<T> const& a, std::vector<T> const& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto const d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= most)) most = d;
  }
  return most;
}
template <class T>
double error_of_columns(std::vector<T> const& x, std::size_t n, std::size_t r) {
  double most = 0;
  for (std::size_t c = 0; c < r; ++c) {
    for (std::size_t d = 0; d <= c; ++d) {
      double inner = c == d ? -1 : 0;
      for (std::size_t i = 0; i < n; ++i)
        inner += static_cast<double>(x[i * r + c]) * static_cast<double>(x[i * r + d]);
      if (!(std::abs(inner) <= most)) most = std::abs(inner);
    }
  }
  return most;
}
/// A product of a sum of matrices (m, n), and the rest of a product of rank r, beside the host's.
template <class T>
void compare_sum_and_rest(std::int64_t m, std::int64_t n, std::int64_t r) {
  CAPTURE(m, n, r, sizeof(T));
  double const rounding = sizeof(T) == 4 ? 1e-5 : 1e-6;  // of accumulate and scale; products have the host's bits
  auto x = numbers<T>(m * n, 1), y = numbers<T>(m * r, 2), rest = numbers<T>(m * n, 3);
  auto const z = numbers<T>(m * n, 4), own = numbers<T>(n * r, 5), all = numbers<T>(n * r, 6);
  there<T> const dx(x), dy(y), d_rest(rest), dz(z), d_own(own), d_all(all);
  auto const of = [](auto& values, std::int64_t rows, std::int64_t columns) {
    using element = std::remove_pointer_t<decltype(values.data())>;
    return tensor_view<element>(values).reshaped({rows, columns});
  };
  kernels::product_of_sum(dy.view().reshaped({m, r}), dx.view().reshaped({m, n}), dz.constant().reshaped({m, n}), 0.5,
                          d_own.constant().reshaped({n, r}));
  ops::host_low_rank::product_of_sum(of(y, m, r), of(x, m, n), of(z, m, n), 0.5, of(own, n, r));
  CHECK(difference(dx.back(), x) <= rounding);
  CHECK(difference(dy.back(), y) <= rounding * static_cast<double>(n));
  kernels::rest_and_product(d_rest.view().reshaped({m, n}), dx.view().reshaped({m, n}), dy.constant().reshaped({m, r}),
                            d_own.constant().reshaped({n, r}), d_all.constant().reshaped({n, r}), 0.25);
  ops::host_low_rank::rest_and_product(of(rest, m, n), of(x, m, n), of(y, m, r), of(own, n, r), of(all, n, r), 0.25);
  double const more = rounding * static_cast<double>(n * r);
  CHECK(difference(d_rest.back(), rest) <= more);
  CHECK(difference(dx.back(), x) <= more);
}
template <class T>
void compare_columns(std::vector<T> x, std::int64_t n, std::int64_t r) {
  CAPTURE(n, r, sizeof(T));
  there<T> const dx(x, 1), again(x);
  kernels::orthonormalise(dx.view().reshaped({n, r}));
  kernels::orthonormalise(again.view().reshaped({n, r}));
  ops::host_low_rank::orthonormalise(tensor_view(x).reshaped({n, r}));
  auto const got = dx.back();
  double const rounding = sizeof(T) == 4 ? 1e-6 : 1e-13;
  CHECK(difference(got, x) <= rounding);
  CHECK(error_of_columns(got, static_cast<std::size_t>(n), static_cast<std::size_t>(r)) <= 2 * rounding);
  CHECK(same_bits(again.back(), got));
}

}  // namespace

TEMPLATE_TEST_CASE("small products in CUDA memory are the host's", "[low_rank]", float, double) {
  compare_product<TestType>(70, 3, 65, 0);
  compare_product<TestType>(3, 70, 65, 1);
  compare_product<TestType>(67, 66, 2, 0);
  compare_product<TestType>(33, 9, 129, 1);
  compare_product<TestType>(1, 1, 1, 0);
  compare_product<TestType>(130, 17, 32, 0);
  compare_product<TestType>(9, 4, 300, 1);
  compare_product<TestType>(20, 70, 19, 0);
  compare_product<TestType>(5, 6, 0, 0);
  compare_product<TestType>(0, 6, 3, 0);
#if defined(TRIREME_TEST_ON_GPU)
  compare_product<TestType>(3072, 4, 768, 0);
  compare_product<TestType>(3072, 768, 4, 0);
#endif
}

TEMPLATE_TEST_CASE("a product of a sum and the rest of a product in CUDA memory are the host's", "[low_rank]", float,
                   double) {
  compare_sum_and_rest<TestType>(40, 33, 4);
  compare_sum_and_rest<TestType>(7, 65, 1);
  compare_sum_and_rest<TestType>(66, 9, 9);
  compare_sum_and_rest<TestType>(0, 3, 2);
}

TEMPLATE_TEST_CASE("columns in CUDA memory become orthonormal", "[low_rank]", float, double) {
  for (auto const& [n, r] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 5}, {37, 4}, {513, 3}, {1500, 2}, {64, 0}})
    compare_columns(numbers<TestType>(n * r, static_cast<std::uint32_t>(n)), n, r);
  // Columns of zeros, equal ones, and combinations of others.
  compare_columns(std::vector<TestType>(40 * 3), 40, 3);
  auto x = numbers<TestType>(600 * 4, 3);
  for (std::size_t i = 0; i < 600; ++i) {
    x[i * 4 + 2] = x[i * 4];
    x[i * 4 + 3] = 2 * x[i * 4] - x[i * 4 + 1];
  }
  compare_columns(x, 600, 4);
  x.assign(20, std::nan(""));
  there<TestType> const bad(x);
  kernels::orthonormalise(bad.view().reshaped({10, 2}));
  ops::host_low_rank::orthonormalise(tensor_view(x).reshaped({10, 2}));
  CHECK(difference(bad.back(), x) <= 1e-6);
}

TEST_CASE("matrices that do not fit are refused in CUDA memory", "[low_rank]") {
  there<float> const x(numbers<float>(6, 1));
  CHECK(sentence_of<assertion_error>([&] {
          kernels::orthonormalise(x.view().reshaped({2, 3}));
        }) == "trireme::ops::orthonormalise: (2, 3) is not a matrix with at least as many rows as columns");
  CHECK(sentence_of<assertion_error>([&] {
          kernels::small_product(x.view().reshaped({2, 3}), x.constant().reshaped({2, 3}), ops::transposed::no,
                                 x.constant().reshaped({2, 3}), ops::transposed::no);
        }) == "trireme::ops::small_product: (2, 3) is not the shape of (2, 3) times (2, 3)");
}
