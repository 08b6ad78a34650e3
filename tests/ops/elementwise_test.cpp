#include "trireme/ops/host/elementwise.hpp"

#include <bit>
#include <limits>

#include "../catch.hpp"
#include "central_differences.hpp"
#include "support.hpp"
#include "trireme/ops/host/values.hpp"

using namespace trireme;
using kernels = ops::host_elementwise;
using ops::activation;

namespace {

constexpr std::array<std::int64_t, 8> sizes{0, 1, 7, 8, 15, 16, 33, 1000};
constexpr std::array<activation, 6> activations{activation::none, activation::gelu, activation::tanh,
                                                activation::relu, activation::silu, activation::gelu_erf};

template <class T>
void compare_with_double() {
  for (auto const n : sizes) {
    auto const x = random_tensor<T>({n}, 1, 6);
    auto const dy = random_tensor<T>({n}, 2);
    auto exact_x = zeros<double>({n});
    auto exact_dy = zeros<double>({n});
    kernels::copy(exact_x.view(), x.view());
    kernels::copy(exact_dy.view(), dy.view());
    for (auto const act : activations) {
      auto exact_y = zeros<double>({n});
      auto exact_dx = zeros<double>({n});
      kernels::activate(exact_y.view(), exact_x, act);
      kernels::activate_backward(exact_dx.view(), exact_dy, exact_x, act);
      at_each_level([&] {
        auto y = zeros<T>({n});
        auto dx = zeros<T>({n});
        kernels::activate(y.view(), x, act);
        kernels::activate_backward(dx.view(), dy, x, act);
        CHECK(distance(y, exact_y) < tolerance<T>);
        CHECK(distance(dx, exact_dx) < tolerance<T>);
      });
    }
    at_each_level([&] {
      auto y = random_tensor<T>({n}, 3);
      auto exact = zeros<double>({n});
      kernels::copy(exact.view(), y.view());
      kernels::add(y.view(), x);
      kernels::add(exact.view(), exact_x);
      kernels::accumulate(y.view(), dy.view(), 0.375);
      kernels::accumulate(exact.view(), exact_dy.view(), 0.375);
      kernels::scale(y.view(), -0.5);
      kernels::scale(exact.view(), -0.5);
      CHECK(distance(y, exact) < tolerance<T>);
    });
  }
}

}  // namespace

TEST_CASE("elementwise kernels in float and bfloat16 agree with double at every CPU level") {
  compare_with_double<float>();
  compare_with_double<bfloat16>();
}

TEST_CASE("gradients of activations agree with central differences") {
  auto x = random_tensor<double>({64}, 5, 4);
  for (auto& each : x.span()) each += 0.001;  // away from relu's kink
  auto const dy = random_tensor<double>({64}, 6);
  auto y = zeros<double>({64});
  auto dx = zeros<double>({64});
  for (auto const act : activations) {
    kernels::activate_backward(dx.view(), dy, x, act);
    CHECK(gradient_error(x.span(), dx.span(), [&] {
            kernels::activate(y.view(), x, act);
            return inner(y.span(), dy.span());
          }) < 1e-6);
  }
}

TEST_CASE("gelu is GPT-2's tanh form, and keeps infinities and NaN") {
  static constexpr float infinity = std::numeric_limits<float>::infinity();
  at_each_level([] {
    tensor<float> x(shape{6});
    tensor<float> y(shape{6});
    std::copy_n(std::array{1.0F, -2.0F, infinity, std::nanf(""), 1e30F, -1e30F}.data(), 6, x.span().data());
    kernels::activate(y.view(), x, activation::gelu);
    CHECK(y[0] == Approx(0.841191990608));
    CHECK(y[1] == Approx(-0.0454023059));
    CHECK(y[2] == infinity);
    CHECK(std::isnan(y[3]));
    CHECK(y[4] == 1e30F);
    CHECK(y[5] == 0);
    kernels::activate_backward(y.view(), zeros<float>({6}), x, activation::gelu);
    CHECK(y[4] == 0);
    CHECK(std::isnan(y[3]));
  });
}

TEST_CASE("silu is x / (1 + exp(-x)), whose slope is 0 or 1 far from 0, and keeps NaN") {
  static constexpr float infinity = std::numeric_limits<float>::infinity();
  at_each_level([] {
    tensor<float> x(shape{6});
    tensor<float> y(shape{6});
    std::copy_n(std::array{1.0F, -2.0F, infinity, std::nanf(""), 1e30F, -1e30F}.data(), 6, x.span().data());
    kernels::activate(y.view(), x, activation::silu);
    CHECK(y[0] == Approx(0.731058578630));
    CHECK(y[1] == Approx(-0.238405844044));
    CHECK(y[2] == infinity);
    CHECK(std::isnan(y[3]));
    CHECK(y[4] == 1e30F);
    CHECK(y[5] == 0);
    auto dy = zeros<float>({6});
    kernels::fill(dy.view(), 1.0);
    kernels::activate_backward(y.view(), dy, x, activation::silu);
    CHECK(y[0] == Approx(0.927670511870));
    CHECK(y[2] == 1);
    CHECK(std::isnan(y[3]));
    CHECK(y[4] == 1);
    CHECK(y[5] == 0);
  });
}

TEST_CASE("gelu_erf is x times the normal distribution's function, and keeps NaN") {
  at_each_level([] {
    tensor<float> x(shape{5});
    tensor<float> y(shape{5});
    std::copy_n(std::array{1.0F, -2.0F, 1e30F, -1e30F, std::nanf("")}.data(), 5, x.span().data());
    kernels::activate(y.view(), x, activation::gelu_erf);
    CHECK(y[0] == Approx(0.841344746069));
    CHECK(y[1] == Approx(-0.0455002638964));
    CHECK(y[2] == 1e30F);
    CHECK(y[3] == 0);
    CHECK(std::isnan(y[4]));
    auto dy = zeros<float>({5});
    kernels::fill(dy.view(), 1.0);
    kernels::activate_backward(y.view(), dy, x, activation::gelu_erf);
    CHECK(y[0] == Approx(1.08331547059));
    CHECK(y[2] == 1);
    CHECK(y[3] == 0);
    CHECK(std::isnan(y[4]));
  });
}

TEST_CASE("float becomes bfloat16 by the same rounding at every CPU level") {
  constexpr std::int64_t n = 1 << 18;
  tensor<float> x(shape{n});
  for (std::int64_t i = 0; i < n; ++i) x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i * 16381 + (i << 14)));
  tensor<bfloat16> expected(shape{n});
  for (std::int64_t i = 0; i < n; ++i) expected[i] = bfloat16(x[i]);
  at_each_level([&] {
    auto y = zeros<bfloat16>({n});
    auto back = zeros<float>({n});
    kernels::copy(y.view(), x.view());
    CHECK(same_bits<bfloat16>(y.span(), expected.span()));
    kernels::copy(back.view(), y.view());
    bool equal = true;
    for (std::int64_t i = 0; i < n; ++i) equal = equal && std::bit_cast<std::uint32_t>(back[i]) >> 16 == y[i].bits;
    CHECK(equal);
  });
}

TEST_CASE("an element's result does not depend on where its slice begins") {
  at_each_level([] {
    auto const x = random_tensor<float>({101}, 8, 3);
    auto whole = zeros<float>({101});
    kernels::activate(whole.view(), x, activation::gelu);
    for (std::int64_t begin = 0; begin < 20; ++begin) {
      auto part = zeros<float>({101 - begin});
      kernels::activate(part.view(), x.view().flat(begin, 101 - begin), activation::gelu);
      CHECK(same_bits<float>(part.span(), whole.span().subspan(static_cast<std::size_t>(begin))));
    }
  });
}

TEST_CASE("elementwise_product is the product of each two elements, rounded once, in place as well") {
  at_each_level([] {
    for (auto const n : sizes) {
      auto const a = random_tensor<bfloat16>({n}, 1), b = random_tensor<bfloat16>({n}, 2);
      auto const c = random_tensor<float>({n}, 3), d = random_tensor<float>({n}, 4);
      auto expected = zeros<bfloat16>({n});
      auto expected_float = zeros<float>({n});
      for (std::int64_t i = 0; i < n; ++i) {
        expected[i] = bfloat16(static_cast<float>(a[i]) * static_cast<float>(b[i]));
        expected_float[i] = c[i] * d[i];
      }
      auto y = zeros<bfloat16>({n});
      auto z = zeros<float>({n});
      kernels::elementwise_product(y.view(), a, b);
      kernels::elementwise_product(z.view(), c, d);
      CHECK(same_bits<bfloat16>(y.span(), expected.span()));
      CHECK(same_bits<float>(z.span(), expected_float.span()));
      kernels::copy(y.view(), a.view());
      kernels::elementwise_product(y.view(), y, b);
      CHECK(same_bits<bfloat16>(y.span(), expected.span()));
      kernels::copy(z.view(), d.view());
      kernels::elementwise_product(z.view(), c, z);
      CHECK(same_bits<float>(z.span(), expected_float.span()));
    }
    CHECK_THROWS_AS(kernels::elementwise_product(zeros<float>({3}).view(), zeros<float>({3}), zeros<float>({4})),
                    assertion_error);
  });
}

TEST_CASE("kernels write nothing beyond the view") {
  at_each_level([] {
    for (auto const n : sizes) {
      auto y = random_tensor<bfloat16>({n + 1}, 1);
      auto const x = random_tensor<bfloat16>({n}, 2);
      auto const guard = y[n];
      kernels::activate(y.view().flat(0, n), x, activation::tanh);
      kernels::add(y.view().flat(0, n), x);
      CHECK(y[n].bits == guard.bits);
    }
  });
}

TEST_CASE("dropout is a function of the sample, not of where it is computed") {
  std::vector<std::int64_t> const all{12, 5, 99};
  auto const start = random_tensor<float>({3, 10, 7}, 3);
  auto whole = zeros<float>({3, 10, 7});
  kernels::copy(whole.view(), start.view());
  kernels::dropout(whole.view(), {0.3, {1, 2}, 4, all});
  for (std::int64_t s = 0; s < 3; ++s) {
    auto part = zeros<float>({10, 7});
    kernels::copy(part.view(), start.view().rows(s, 1));
    kernels::dropout(part.view(), {0.3, {1, 2}, 4, std::span(all).subspan(static_cast<std::size_t>(s), 1)});
    CHECK(same_bits<float>(part.span(), whole.span().subspan(static_cast<std::size_t>(s) * 70, 70)));
  }
  kernels::copy(whole.view(), start.view());
  kernels::dropout(whole.view(), {});
  CHECK(same_bits<float>(whole.span(), start.span()));
}

TEMPLATE_TEST_CASE("ranges of all samples' values drop the same elements as the whole", "", float, double, bfloat16) {
  std::vector<std::int64_t> const ids{12, 5, 99};
  at_each_level([&] {
    auto whole = random_tensor<TestType>({3 * 71}, 3);
    auto parts = random_tensor<TestType>({3 * 71}, 3);
    kernels::dropout(whole.view(), {0.3, {1, 2}, 4, ids});
    std::int64_t const ends[] = {0, 7, 70, 71, 73, 200, 213};
    for (int i = 0; i < 6; ++i) {
      kernels::dropout(parts.view().flat(ends[i], ends[i + 1] - ends[i]), {0.3, {1, 2}, 4, ids, ends[i], 213});
    }
    CHECK(same_bits<TestType>(whole.span(), parts.span()));
  });
}

TEST_CASE("a range of a parameter has the start values of the whole") {
  for (auto const kind : {initial::distribution::normal, initial::distribution::uniform}) {
    tensor<float> whole(shape{103});
    tensor<float> part(shape{103});
    kernels::initialise(whole.view(), {kind, 0.5}, 1, 2);
    for (std::int64_t at = 0, n = 1; at < 103; at += n, n = std::min<std::int64_t>(n + 1, 103 - at)) {
      kernels::initialise(part.view().flat(at, n), {kind, 0.5}, 1, 2, at);
    }
    CHECK(same_bits<float>(whole.span(), part.span()));
  }
}

TEST_CASE("dropout keeps the expected share and scales what it keeps, by the words of the generator") {
  std::vector<std::int64_t> const one{0};
  tensor<float> y(shape{40001});
  kernels::fill(y.view(), 1.0);
  kernels::dropout(y.view(), {0.25, {7, 8}, 2, one});
  std::int64_t kept = 0;
  bool right = true;
  for (std::int64_t i = 0; i < y.size(); ++i) {
    auto const words = random_block({7, 8}, 2, 0, static_cast<std::uint32_t>(i / 4));
    float const expected =
        unit_float(words[static_cast<std::size_t>(i % 4)]) < 0.25F ? 0.0F : static_cast<float>(1 / 0.75);
    right = right && y[i] == expected;
    kept += y[i] != 0 ? 1 : 0;
  }
  CHECK(right);
  CHECK(static_cast<double>(kept) / 40001 == Approx(0.75).margin(0.01));
}

TEST_CASE("initialise draws normal and uniform numbers that depend on seed, name and index") {
  tensor<float> x(shape{100003});
  initial const normal{initial::distribution::normal, 0.02};
  kernels::initialise(x.view(), normal, 1, 2);
  double sum = 0;
  double squares = 0;
  for (auto const each : x.span()) sum += each, squares += double{each} * each;
  CHECK(std::fabs(sum / 100003) < 3e-4);
  CHECK(std::sqrt(squares / 100003) == Approx(0.02).epsilon(0.01));
  tensor<float> shorter(shape{77});
  kernels::initialise(shorter.view(), normal, 1, 2);
  CHECK(same_bits<float>(shorter.span(), x.span().first(77)));
  kernels::initialise(shorter.view(), normal, 1, 3);
  CHECK(shorter[5] != x[5]);
  kernels::initialise(x.view(), {initial::distribution::uniform, 0.5}, 1, 2);
  CHECK(*std::max_element(x.span().begin(), x.span().end()) == Approx(0.5).epsilon(0.001));
  CHECK(*std::min_element(x.span().begin(), x.span().end()) == Approx(-0.5).epsilon(0.001));
  kernels::initialise(x.view(), {initial::distribution::ones, 0}, 1, 2);
  CHECK(x[100002] == 1);
}

TEST_CASE("fill, copy, upload, download and read move any type of element") {
  tensor<std::int32_t> x(shape{3});
  kernels::fill(x.view(), 5);
  CHECK(kernels::read(x.view(), 2) == 5);
  kernels::upload(x.view(), std::vector<std::int32_t>{1, 2, 3});
  std::vector<std::int32_t> out(3);
  kernels::download(std::span(out), x);
  CHECK(out == std::vector<std::int32_t>{1, 2, 3});
  tensor<double> wide(shape{3});
  kernels::copy(wide.view(), x.view());
  CHECK(wide[1] == 2);
  tensor<bfloat16> narrow(shape{3});
  kernels::copy(narrow.view(), wide.view());
  CHECK(static_cast<float>(narrow[2]) == 3);
  kernels::fill(narrow.view(), 1.5);
  CHECK(static_cast<float>(narrow[0]) == 1.5F);
  CHECK_THROWS_AS(kernels::copy(wide.view(), narrow.view().flat(0, 2)), assertion_error);
}

TEST_CASE("copy_columns writes some columns of each row and leaves the others") {
  auto const x = random_tensor<float>({3, 5}, 1);
  auto y = zeros<bfloat16>({3, 4});
  kernels::copy_columns(y.view(), 1, x.view(), 2, 2);
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t column = 0; column < 4; ++column) {
      bool const written = column == 1 || column == 2;
      CHECK(static_cast<float>(y[row * 4 + column]) == (written ? x[row * 5 + column + 1] : 0.0F));
    }
  }
  CHECK_THROWS_AS(kernels::copy_columns(y.view(), 0, x.view().rows(0, 2), 0, 1), assertion_error);
}

TEST_CASE("copy_blocks copies rows at a distance, and copy_runs runs of elements") {
  auto const x = random_tensor<float>({2 * 5 * 7}, 1);  // 2 blocks of 5 rows of 7 numbers
  auto y = zeros<bfloat16>({2 * 3 * 4});                // rows 1 to 3 of each, columns 2 to 5
  kernels::copy_blocks(y.view(), {0, 12, 4}, x.view(), {7 + 2, 35, 7}, {2, 3, 4});
  for (std::int64_t i = 0; i < y.size(); ++i) {
    auto const block = i / 12, row = i / 4 % 3 + 1, column = i % 4 + 2;
    CHECK(static_cast<float>(y[i]) == static_cast<float>(bfloat16(x[(block * 5 + row) * 7 + column])));
  }
  auto whole = zeros<float>({2 * 5 * 7});
  kernels::copy_blocks(whole.view(), {0, 35, 7}, x.view(), {0, 35, 7}, {2, 5, 7});
  CHECK(distance(whole, x) == 0);
  CHECK_THROWS_AS(kernels::copy_blocks(whole.view(), {1, 35, 7}, x.view(), {0, 35, 7}, {2, 5, 7}), assertion_error);
  auto turned = zeros<float>({70});
  std::array<ops::element_run, 2> const runs{{{0, 30, 40}, {40, 0, 30}}};
  kernels::copy_runs(turned.view(), x, runs);
  for (std::int64_t i = 0; i < 70; ++i) CHECK(turned[i] == x[(i + 30) % 70]);
}

TEMPLATE_TEST_CASE("dropout of a part of samples drops what that of whole samples drops", "", float, double, bfloat16) {
  constexpr std::int64_t samples = 3, positions = 8, fused = 2, each = 5, width = fused * each;
  std::array<std::int64_t, 3> const ids{4, 17, 9};
  ops::dropout_site const site{0.4, {1, 2}, 4, ids};
  auto const fresh = [] {
    auto x = zeros<TestType>({samples * positions * width});
    kernels::fill(x.view(), 1.0);
    return x;
  };
  auto whole = fresh();
  kernels::dropout(whole.view(), site);
  auto const at = [&](std::int64_t sample, std::int64_t position, std::int64_t m, std::int64_t c) {
    return static_cast<double>(whole[((sample * positions + position) * fused + m) * each + c]);
  };
  SECTION("some columns of each matrix") {
    constexpr std::int64_t first = 1, count = 3;
    auto part = zeros<TestType>({samples * positions * fused * count});
    kernels::fill(part.view(), 1.0);
    kernels::dropout_part(
        part.view(), site,
        {.context = positions, .split = positions, .width = width, .fused = fused, .column = first, .columns = count});
    for (std::int64_t i = 0; i < part.size(); ++i) {
      auto const row = i / (fused * count), m = i / count % fused;
      CHECK(static_cast<double>(part[i]) == at(row / positions, row % positions, m, first + i % count));
    }
  }
  SECTION("two stretches of positions, from a row in the middle of a sample on") {
    constexpr std::int64_t here = 4, begin = 3;  // positions 1, 2 and 5, 6
    auto part = zeros<TestType>({(samples * here - begin) * width});
    kernels::fill(part.view(), 1.0);
    ops::dropout_cut cut{.row = begin, .context = here, .split = 2, .width = width, .columns = width};
    cut.first[0] = 1;
    cut.first[1] = 5;
    kernels::dropout_part(part.view(), site, cut);
    constexpr std::array<std::int64_t, 4> where{1, 2, 5, 6};
    for (std::int64_t i = 0; i < part.size(); ++i) {
      auto const row = begin + i / width, c = i % width;
      CHECK(static_cast<double>(part[i]) ==
            at(row / here, where[static_cast<std::size_t>(row % here)], c / each, c % each));
    }
  }
}

TEST_CASE("each() calls a function of one's own with numbers of the accumulate type, and rounds once") {
  using values = ops::host_values;
  std::vector<bfloat16> const x{bfloat16(1.5F), bfloat16(-2.0F), bfloat16(0.25F)};
  std::vector<double> const z{1, 2, 3};
  std::vector<float> y(3);
  tensor_view<float> const to(y.data(), {3});
  auto const from = tensor_view<bfloat16 const>(x.data(), {3});
  values::each(to, from, tensor_view<double const>(z.data(), {3}), [](float a, double b) { return a * b; });
  CHECK(y == std::vector<float>{1.5F, -4, 0.75F});
  values::each(to, to, [](auto a) { return a + 1; });
  CHECK(y == std::vector<float>{2.5F, -3, 1.75F});
  values::each(to, [] { return 7; });
  CHECK(y == std::vector<float>{7, 7, 7});
  CHECK_THROWS_AS(values::each(to, to.flat(0, 2), [](float a) { return a; }), assertion_error);
}
