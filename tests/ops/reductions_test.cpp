#include "trireme/ops/host/reductions.hpp"

#include <limits>
#include <numeric>

#include "../catch.hpp"
#include "support.hpp"

using namespace trireme;
using kernels = ops::host_reductions;

namespace {

template <class T, class Op>
void reduced(std::vector<tensor<T>>& outputs, std::vector<tensor<T>> const& terms, Op op, int divisor = 1) {
  std::vector<tensor_view<T>> to;
  std::vector<tensor_view<T const>> from;
  for (auto& each : outputs) to.push_back(each.view());
  for (auto const& each : terms) from.push_back(each.view());
  kernels::reduce(std::span<tensor_view<T> const>(to), from, op, divisor);
}

}  // namespace

TEMPLATE_TEST_CASE("reduce combines terms in order and writes every output", "", float, double, bfloat16, float16,
                   std::int32_t, std::int64_t, std::uint64_t, std::uint8_t, std::int8_t) {
  for (std::int64_t const n : {0, 1, 15, 64, 65, 1000}) {
    at_each_level([&] {
      std::vector<tensor<TestType>> terms;
      for (unsigned r = 0; r < 3; ++r) {
        terms.push_back(zeros<TestType>({n}));
        for (std::int64_t i = 0; i < n; ++i) {
          terms.back()[i] = static_cast<TestType>(static_cast<float>((i * 37 + r * 11) % 29));
        }
      }
      std::vector<tensor<TestType>> outputs;
      for (int r = 0; r < 2; ++r) outputs.push_back(zeros<TestType>({n}));
      auto const check = [&](auto op, auto combine) {
        reduced(outputs, terms, op);
        bool right = true;
        for (std::int64_t i = 0; i < n; ++i) {
          auto expected = static_cast<double>(terms[0][i]);
          for (std::size_t r = 1; r < 3; ++r) expected = combine(expected, static_cast<double>(terms[r][i]));
          right =
              right && static_cast<double>(outputs[0][i]) == expected && static_cast<double>(outputs[1][i]) == expected;
        }
        CHECK(right);
      };
      check(reduction::sum{}, [](double a, double b) { return a + b; });
      check(reduction::max{}, [](double a, double b) { return std::max(a, b); });
      check(reduction::min{}, [](double a, double b) { return std::min(a, b); });
      if constexpr (!std::is_integral_v<TestType>) {
        reduced(outputs, terms, reduction::mean{}, 3);
        bool right = true;
        for (std::int64_t i = 0; i < n; ++i) {
          using total = ops::accumulate_t<TestType>;
          auto const sum =
              static_cast<total>(terms[0][i]) + static_cast<total>(terms[1][i]) + static_cast<total>(terms[2][i]);
          right = right && outputs[0][i] == static_cast<TestType>(sum / 3) && outputs[1][i] == outputs[0][i];
        }
        CHECK(right);
      }
    });
  }
}

TEMPLATE_TEST_CASE("max and min: NaN wins and -0 < +0 in every lane", "", float, double, bfloat16, float16) {
  float const specials[] = {0.0F,
                            -0.0F,
                            1.5F,
                            -1.5F,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::quiet_NaN(),
                            0x1p-24F,
                            -0x1p-24F};
  auto const number = [&](std::int64_t i) { return TestType(specials[i % 10]); };
  // Every pair of them, at every position of a vector and of the remainder.
  for (std::int64_t const n : {100, 107, 1000, 1033}) {
    at_each_level([&] {
      std::vector<tensor<TestType>> terms;
      for (int r = 0; r < 2; ++r) {
        terms.push_back(zeros<TestType>({n}));
        for (std::int64_t i = 0; i < n; ++i) terms.back()[i] = number(r == 0 ? i : i / 10);
      }
      std::vector<tensor<TestType>> outputs;
      outputs.push_back(zeros<TestType>({n}));
      auto const check = [&](auto op, bool largest) {
        reduced(outputs, terms, op);
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < n; ++i) {
          auto const a = static_cast<double>(terms[0][i]);
          auto const b = static_cast<double>(terms[1][i]);
          auto const is = static_cast<double>(outputs[0][i]);
          if (std::isnan(a) || std::isnan(b)) {
            wrong += std::isnan(is) ? 0 : 1;
            continue;
          }
          bool const a_is_less = a < b || (a == b && std::signbit(a));
          auto const should = a_is_less == largest ? b : a;
          wrong += is == should && std::signbit(is) == std::signbit(should) ? 0 : 1;
        }
        CHECK(wrong == 0);
      };
      check(reduction::max{}, true);
      check(reduction::min{}, false);
    });
  }
}

TEMPLATE_TEST_CASE("16-bit numbers are summed in float and rounded once", "", bfloat16, float16) {
  float const large = std::is_same_v<TestType, bfloat16> ? 256.0F : 2048.0F;
  at_each_level([&] {
    std::vector<tensor<TestType>> terms;
    for (int r = 0; r < 5; ++r) {
      terms.push_back(zeros<TestType>({40}));
      for (auto& x : terms.back().span()) x = TestType(r == 0 ? large : 0.5F);
    }
    std::vector<tensor<TestType>> outputs;
    outputs.push_back(zeros<TestType>({40}));
    reduced(outputs, terms, reduction::sum{});
    CHECK(static_cast<float>(outputs[0][39]) == large + 2);  // added one at a time, every 0.5 would be lost
    reduced(outputs, terms, reduction::mean{}, 5);
    CHECK(outputs[0][39] == TestType((large + 2) / 5));
  });
}

TEMPLATE_TEST_CASE("a pairwise sum has the bits of one fixed tree over the terms at every CPU level", "", float, double,
                   bfloat16) {
  using total = ops::accumulate_t<TestType>;
  constexpr std::int64_t n = 203;
  for (std::int64_t const count : {1, 2, 3, 4, 6, 7, 8}) {
    std::vector<tensor<TestType>> terms;
    for (std::int64_t r = 0; r < count; ++r) {
      terms.push_back(zeros<TestType>({n}));
      for (std::int64_t i = 0; i < n; ++i) {
        auto const bits = mix(static_cast<std::uint64_t>(i * 100 + r));
        terms.back()[i] = static_cast<TestType>(static_cast<float>(bits >> 40) * static_cast<float>(1 << (bits % 20)));
      }
    }
    // Leaf by leaf, with the number of merges in the tree.
    std::vector<TestType> expected;
    for (std::int64_t i = 0; i < n; ++i) {
      std::vector<total> partial;
      for (std::int64_t r = 0; r < count; ++r) {
        partial.push_back(static_cast<total>(terms[static_cast<std::size_t>(r)][i]));
        for (int merges = tree_merges(count, r); merges > 0; --merges) {
          total const right = partial.back();
          partial.pop_back();
          partial.back() = partial.back() + right;
        }
      }
      REQUIRE(partial.size() == 1);
      expected.push_back(static_cast<TestType>(partial[0]));
    }
    at_each_level([&] {
      std::vector<tensor<TestType>> outputs;
      outputs.push_back(zeros<TestType>({n}));
      reduced(outputs, terms, reduction::pairwise{});
      bool right = true;
      for (std::int64_t i = 0; i < n; ++i) right = right && outputs[0][i] == expected[static_cast<std::size_t>(i)];
      CHECK(right);
    });
  }
}

TEMPLATE_TEST_CASE("every 16-bit number converts to the same bits at every CPU level", "", bfloat16, float16) {
  std::vector<tensor<TestType>> terms;
  for (unsigned r = 0; r < 2; ++r) terms.push_back(zeros<TestType>({1 << 16}));
  for (std::int64_t i = 0; i < 1 << 16; ++i) {
    terms[0][i].bits = static_cast<std::uint16_t>(i);
    terms[1][i].bits = static_cast<std::uint16_t>(mix(static_cast<std::uint64_t>(i)));
  }
  std::vector<tensor<TestType>> first;
  at_each_level([&] {
    std::vector<tensor<TestType>> outputs;
    outputs.push_back(zeros<TestType>({1 << 16}));
    reduced(outputs, terms, reduction::sum{});
    if (first.empty()) return first.push_back(std::move(outputs[0]));
    bool right = true;
    for (std::int64_t i = 0; i < 1 << 16; ++i) {  // which of two NaNs an addition returns depends on the compiler
      auto const a = first[0][i];
      auto const b = outputs[0][i];
      bool const both_nan = a != a && b != b;
      right = right && (a.bits == b.bits || both_nan);
    }
    CHECK(right);
    auto wide = zeros<float>({1 << 16});
    auto back = zeros<TestType>({1 << 16});
    ops::host_elementwise::copy(wide.view(), terms[0].view());
    ops::host_elementwise::copy(back.view(), wide.view());
    for (std::int64_t i = 0; i < 1 << 16; ++i) {
      auto const by_hand = static_cast<float>(terms[0][i]);
      right = right && std::bit_cast<std::uint32_t>(by_hand) == std::bit_cast<std::uint32_t>(wide[i]) &&
              TestType(by_hand).bits == back[i].bits;
    }
    CHECK(right);
  });
}

TEST_CASE("an output may be one of the terms") {
  at_each_level([] {
    auto a = random_tensor<float>({77}, 1);
    auto b = random_tensor<float>({77}, 2);
    auto const first = a[76] + b[76];
    std::array<tensor_view<float>, 2> const outputs{a.view(), b.view()};
    std::array<tensor_view<float const>, 2> const terms{a.view(), b.view()};
    kernels::reduce(std::span<tensor_view<float> const>(outputs), terms);
    CHECK(a[76] == first);
    CHECK(same_bits<float>(a.span(), b.span()));
  });
}

TEST_CASE("sum_of_squares has the same bits at every CPU level, and for slices of whole blocks in any order") {
  auto const x = random_tensor<float>({5000}, 1, 3);
  std::vector<exact_sum> all;
  at_each_level([&] {
    exact_sum sum;
    kernels::sum_of_squares(x.view(), sum);
    all.push_back(sum);
    exact_sum parts;
    kernels::sum_of_squares(x.view().flat(3072, 5000 - 3072), parts);
    kernels::sum_of_squares(x.view().flat(0, 3072), parts);
    CHECK(parts == sum);
  });
  for (auto const& each : all) CHECK(each == all[0]);
  double expected = 0;
  for (auto const each : x.span()) expected += double{each} * each;
  CHECK(all[0].value() == Approx(expected).epsilon(1e-13));
  exact_sum wide;
  auto const y = random_tensor<double>({1030}, 2);
  kernels::sum_of_squares(y.view(), wide);
  CHECK(wide.value() > 0);
}

TEMPLATE_TEST_CASE("finite finds a single number that is not finite", "", float, double, bfloat16, float16) {
  for (std::int64_t const n : {0, 1, 16, 33, 5000}) {
    at_each_level([&] {
      auto x = random_tensor<TestType>({n}, 1);
      CHECK(kernels::finite(x.view()));
      if (n == 0) return;
      for (std::int64_t const at : {std::int64_t{0}, n / 2, n - 1}) {
        auto const before = x[at];
        x[at] = static_cast<TestType>(-std::numeric_limits<float>::infinity());
        CHECK_FALSE(kernels::finite(x.view()));
        x[at] = static_cast<TestType>(std::nanf(""));
        CHECK_FALSE(kernels::finite(x.view()));
        x[at] = before;
      }
      x[n - 1] = static_cast<TestType>(std::numeric_limits<float>::min());
      CHECK(kernels::finite(x.view()));
      if constexpr (std::is_same_v<TestType, float16>) {
        x[n - 1] = TestType(65504.0F);  // its exponent is nearly that of infinity, or would be it in bfloat16
        CHECK(kernels::finite(x.view()));
      }
    });
  }
}

TEMPLATE_TEST_CASE("hash is the sum of hash_element over the elements, however they are cut", "", float, double,
                   bfloat16, std::int64_t) {
  constexpr std::int64_t n = 1001;
  auto const x = random_tensor<TestType>({n}, 3, 100);
  std::uint64_t expected = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &x[i], sizeof(TestType));
    expected += hash_element(42, static_cast<std::uint64_t>(i + 7), bits);
  }
  at_each_level([&] {
    CHECK(kernels::hash(x.view(), 42, 7) == expected);
    CHECK(kernels::hash(x.view().flat(0, 333), 42, 7) + kernels::hash(x.view().flat(333, n - 333), 42, 340) ==
          expected);
  });
}

TEMPLATE_TEST_CASE("select_largest picks by magnitude, ties by index, indices ascending", "", float, double) {
  std::mt19937 generate(5);
  for (std::int64_t const n : {1, 2, 17, 1000, 5003}) {
    auto x = random_tensor<TestType>({n}, 7);  // 256 values only: many ties
    if (n == 5003) std::fill_n(x.span().begin(), 5000, TestType(1));
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
    for (std::int64_t const k : {std::int64_t{0}, std::int64_t{1}, n / 3, n - 1, n}) {
      std::vector<std::int32_t> expected(order.begin(), order.begin() + k);
      std::sort(expected.begin(), expected.end());
      tensor<std::int32_t> indices(shape{k});
      tensor<TestType> values(shape{k});
      kernels::select_largest(x.view(), indices.view(), values);
      CHECK(std::equal(expected.begin(), expected.end(), indices.span().begin(), indices.span().end()));
      bool right = true;
      for (std::int64_t i = 0; i < k; ++i) right = right && values[i] == x[indices[i]];
      CHECK(right);
    }
  }
}

TEST_CASE("scatter sets or adds, and refuses an index outside") {
  auto y = zeros<float>({5});
  y[3] = 1;
  tensor<std::int32_t> indices(shape{2});
  indices[0] = 1, indices[1] = 3;
  auto const values = random_tensor<float>({2}, 1);
  kernels::scatter(y.view(), indices, values, true);
  CHECK(y[3] == 1 + values[1]);
  kernels::scatter(y.view(), indices, values, false);
  CHECK(y[3] == values[1]);
  indices[1] = 5;
  CHECK_THROWS_AS(kernels::scatter(y.view(), indices, values, false), assertion_error);
}
