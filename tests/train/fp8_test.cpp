// test-sanitize: none
#include "trireme/precision/fp8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../watchdog.hpp"
#include "trireme/optim/optim.hpp"

using namespace trireme;
using role = product_operand::role;
using product = product_operand::product;

namespace {

product_operand operand_of(role is, product of, bool head = false, std::string_view weight = "w",
                           std::uint64_t draw = 7) {
  product_operand which;
  which.weight = weight;
  which.is = is;
  which.of = of;
  which.head = head;
  which.draw = draw;
  return which;
}

/// The matrix that products read in place of this one.
template <class Precision>
std::vector<float> rounded(Precision const& how, role is, product of, std::vector<float> const& numbers,
                           std::int64_t width) {
  std::vector<bfloat16> in, out(numbers.size());
  for (auto const each : numbers) in.emplace_back(each);
  shape const extents{static_cast<std::int64_t>(numbers.size()) / width, width};
  typename Precision::instance state(how);
  state.operand(operand_of(is, of), tensor_view<bfloat16 const>(in.data(), extents),
                tensor_view<bfloat16>(out.data(), extents));
  std::vector<float> all;
  for (auto const each : out) all.push_back(static_cast<float>(each));
  return all;
}

/// A matrix of 256 columns in which one row is large and one column is.
std::vector<float> spread(std::int64_t rows) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < rows * 256; ++i) {
    auto const wave = std::sin(static_cast<float>(i) * 0.7F);
    all.push_back(
        static_cast<float>(bfloat16(wave * (i / 256 == 3 ? 1000.0F : 1.0F) * (i % 256 == 7 ? 1000.0F : 1.0F))));
  }
  return all;
}
/// The same by the definition: of tiles rows x columns.
std::vector<float> by_definition(std::vector<float> const& in, std::int64_t rows, std::int64_t columns, bool cut) {
  std::vector<float> out(in.size());
  auto const height = static_cast<std::int64_t>(in.size()) / 256;
  for (std::int64_t i = 0; i < height; ++i) {
    for (std::int64_t j = 0; j < 256; ++j) {
      float largest = 0;
      for (auto a = i / rows * rows; a < std::min(height, i / rows * rows + rows); ++a) {
        for (auto b = j / columns * columns; b < std::min<std::int64_t>(256, j / columns * columns + columns); ++b)
          largest = std::max(largest, std::abs(in[static_cast<std::size_t>(a * 256 + b)]));
      }
      float scale = std::exp2(std::floor(std::log2(largest)) - 8);
      if (!cut && largest > 448 * scale) scale *= 2;
      auto const at = static_cast<std::size_t>(i * 256 + j);
      out[at] = scale > 0 ? static_cast<float>(float8_e4m3::saturated(in[at] / scale)) * scale : 0;
    }
  }
  return out;
}
double error_of(std::vector<float> const& rounded, std::vector<float> const& from) {
  double sum = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    auto const relative = from[i] == 0.0F ? 0.0 : std::abs(rounded[i] / from[i] - 1);
    sum += static_cast<double>(relative);
  }
  return sum / static_cast<double>(from.size());
}

}  // namespace

TEST_CASE("operands of 8-bit products have a scale for each tile along the sum", "[train][precision]") {
  auto const all = spread(200);
  precision::fp8 const deep;
  precision::mxfp8 const micro;
  for (auto const of : {product::forward, product::input_gradient}) {
    CHECK(rounded(deep, role::input, of, all, 256) == by_definition(all, 1, 128, false));
    CHECK(rounded(deep, role::gradient, of, all, 256) == by_definition(all, 1, 128, false));
    CHECK(rounded(deep, role::weight, of, all, 256) == by_definition(all, 128, 128, false));
    CHECK(rounded(micro, role::gradient, of, all, 256) == by_definition(all, 1, 32, true));
  }
  CHECK(rounded(deep, role::input, product::weight_gradient, all, 256) == by_definition(all, 128, 1, false));
  CHECK(rounded(deep, role::gradient, product::weight_gradient, all, 256) == by_definition(all, 128, 1, false));
  CHECK(rounded(micro, role::input, product::weight_gradient, all, 256) == by_definition(all, 32, 1, true));
  CHECK(rounded(micro, role::weight, product::forward, all, 256) == by_definition(all, 32, 1, true));
  CHECK(rounded(micro, role::weight, product::input_gradient, all, 256) == by_definition(all, 1, 32, true));
  CHECK(rounded(deep, role::input, product::forward, {}, 256).empty());
  // The weight of a head lies the other way.
  CHECK(micro.rounding_of(operand_of(role::weight, product::forward, true)).of.columns == 32);
  CHECK(micro.rounding_of(operand_of(role::weight, product::input_gradient, true)).of.rows == 32);
  auto const of_head = operand_of(role::input, product::forward, true);
  CHECK((!deep.writes(of_head) && precision::fp8{.head = true}.writes(of_head)));
}

TEST_CASE("the numbers of the emulation are those of the codecs", "[train][precision]") {
  namespace pd = precision::detail;
  using numbers = pd::rounding::numbers;
  int different = 0;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    auto const x = std::bit_cast<float>(code << 16) * 1.1F;
    if (!std::isfinite(x)) continue;
    auto const eight = static_cast<float>(float8_e4m3::saturated(x)), four = static_cast<float>(float4_e2m1(x));
    different += std::bit_cast<std::uint32_t>(pd::nearest<numbers::e4m3>(x)) != std::bit_cast<std::uint32_t>(eight);
    different += std::bit_cast<std::uint32_t>(pd::nearest<numbers::e2m1>(x)) != std::bit_cast<std::uint32_t>(four);
  }
  CHECK(different == 0);
}

TEST_CASE("NVFP4 has a scale in E4M3 for each 16 numbers, and for each 16 x 16 of weights", "[train][precision]") {
  auto const all = spread(48);
  precision::nvfp4 const plain{.hadamard = false, .stochastic = false};
  auto const expected = [&](std::int64_t rows, std::int64_t columns) {
    float most = 0;
    for (auto const x : all) most = std::max(most, std::abs(x));
    float const whole = std::exp2(std::ceil(std::log2(most / (6 * 448))));
    std::vector<float> out(all.size());
    for (std::int64_t i = 0; i < 48; ++i) {
      for (std::int64_t j = 0; j < 256; ++j) {
        float largest = 0;
        for (auto a = i / rows * rows; a < i / rows * rows + rows; ++a)
          for (auto b = j / columns * columns; b < j / columns * columns + columns; ++b)
            largest = std::max(largest, std::abs(all[static_cast<std::size_t>(a * 256 + b)]));
        auto const code = static_cast<float>(float8_e4m3::saturated(largest / whole / 6));
        float const scale = std::max(code, 0x1p-9F) * whole;
        auto const at = static_cast<std::size_t>(i * 256 + j);
        out[at] = largest > 0 ? static_cast<float>(float4_e2m1(all[at] / scale)) * scale : 0;
      }
    }
    return out;
  };
  CHECK(rounded(plain, role::input, product::forward, all, 256) == expected(1, 16));
  CHECK(rounded(plain, role::gradient, product::input_gradient, all, 256) == expected(1, 16));
  CHECK(rounded(plain, role::gradient, product::weight_gradient, all, 256) == expected(16, 1));
  CHECK(rounded(plain, role::weight, product::forward, all, 256) == expected(16, 16));
  precision::nvfp4 const keeping{.keep = "h.1.* *head"};
  CHECK(keeping.writes(operand_of(role::input, product::forward, false, "h.0.w")));
  CHECK_FALSE(keeping.writes(operand_of(role::input, product::forward, false, "h.1.w")));
}

TEST_CASE("a Hadamard matrix spreads what is large in one row, and leaves the product as it was",
          "[train][precision]") {
  // Two operands of a weight's gradient, (33, 8): two blocks of 16 rows, and one row more.
  std::vector<float> x(33 * 8), dy(33 * 8);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(bfloat16(std::sin(static_cast<float>(i * i % 101))));
    dy[i] = static_cast<float>(bfloat16(std::cos(static_cast<float>(i * i % 89)) * (i / 8 == 5 ? 100.0F : 1.0F)));
  }
  auto const product_of = [](std::vector<float> const& a, std::vector<float> const& b) {
    std::vector<double> out(64);
    for (std::size_t m = 0; m < 33; ++m)
      for (std::size_t at = 0; at < 64; ++at)
        out[at] += static_cast<double>(a[m * 8 + at / 8]) * static_cast<double>(b[m * 8 + at % 8]);
    return out;
  };
  auto const exact = product_of(x, dy);
  auto const error = [&](precision::nvfp4 const& how) {
    auto const found = product_of(rounded(how, role::input, product::weight_gradient, x, 8),
                                  rounded(how, role::gradient, product::weight_gradient, dy, 8));
    double sum = 0, size = 0;
    for (std::size_t at = 0; at < 64; ++at) {
      sum += (found[at] - exact[at]) * (found[at] - exact[at]);
      size += exact[at] * exact[at];
    }
    return std::sqrt(sum / size);
  };
  CHECK(error({.stochastic = false}) < 0.3);
  CHECK(error({.stochastic = false}) > 0.001);
  // Other operands are not turned: a row of zeros stays one.
  std::vector<float> one(32 * 16);
  one[16] = 1;
  CHECK(rounded(precision::nvfp4{}, role::input, product::forward, one, 16)[0] == 0);
  CHECK(std::abs(rounded(precision::nvfp4{}, role::input, product::weight_gradient, one, 16)[0]) ==
        Approx(0.25).margin(0.01));
}

TEST_CASE("gradients in NVFP4 are right in the mean, and the same for the same numbers", "[train][precision]") {
  std::vector<float> numbers(16);
  for (std::size_t i = 0; i < 16; ++i) numbers[i] = static_cast<float>(bfloat16(static_cast<float>(i) * 0.37F));
  std::vector<bfloat16> in, out(16);
  for (auto const each : numbers) in.emplace_back(each);
  precision::nvfp4::instance state(precision::nvfp4{});
  std::vector<double> mean(16);
  constexpr int rounds = 4000;
  for (int i = 0; i < rounds; ++i) {
    state.operand(operand_of(role::gradient, product::input_gradient, false, "w", static_cast<std::uint64_t>(i)),
                  tensor_view<bfloat16 const>(in.data(), shape{1, 16}),
                  tensor_view<bfloat16>(out.data(), shape{1, 16}));
    for (std::size_t at = 0; at < 16; ++at) mean[at] += static_cast<double>(static_cast<float>(out[at])) / rounds;
  }
  for (std::size_t at = 0; at + 1 < 16; ++at) CHECK(mean[at] == Approx(static_cast<double>(numbers[at])).margin(0.06));
  auto const once = rounded(precision::nvfp4{}, role::gradient, product::input_gradient, numbers, 16);
  CHECK(once == rounded(precision::nvfp4{}, role::gradient, product::input_gradient, numbers, 16));
  CHECK(once != rounded(precision::nvfp4{}, role::gradient, product::weight_gradient, numbers, 16));
}

TEST_CASE("square tiles round gradients of unequal rows worse", "[train][precision]") {
  auto const all = spread(256);
  auto const lines = error_of(rounded(precision::fp8{}, role::gradient, product::input_gradient, all, 256), all);
  auto const squares = error_of(
      rounded(precision::fp8{.square_gradients = true}, role::gradient, product::input_gradient, all, 256), all);
  CHECK(lines < 0.05);
  CHECK(squares > 2 * lines);
}

TEST_CASE("a tile that is not finite stays as it is; zeros, and the smallest and largest numbers",
          "[train][precision]") {
  auto const seen = [](std::vector<float> numbers) {
    numbers.resize(256);
    return rounded(precision::fp8{}, role::input, product::forward, numbers, 256);
  };
  auto const infinite = std::numeric_limits<float>::infinity();
  auto const mixed = seen({infinite, 1.0078125F, 0});
  CHECK((mixed[0] == infinite && mixed[1] == 1.0078125F));
  CHECK(std::isnan(seen({1, std::nanf("")})[1]));
  CHECK(seen({}) == std::vector<float>(256));
  auto const largest = static_cast<float>(bfloat16(3e38F));
  CHECK(std::abs(seen({largest})[0] / largest - 1) < 0.07F);
  for (float const small : {1e-30F, 1e-38F, 1e-40F})
    CHECK(std::abs(seen({small})[0] - small) <= 0.07F * small + 1e-39F);
}

TEST_CASE("training with 8- and 4-bit products learns, resumes bit for bit, and equals its plan",
          "[train][precision]") {
  watchdog const guard("fp8");
  optim::adamw const adaptive{.learning_rate = 1e-2};
  using precision::rounded;
  rounded const all[] = {{precision::fp8{.tile = 16}}, {precision::mxfp8{}}, {precision::nvfp4{}}};
  for (auto const& each : all) {
    INFO(describe(each));
    for (int const ranks : {1, 2}) CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.8, adaptive, each) == "");
    CHECK(policy_cases::on_mlp.moves({2, 3}, adaptive, each) == "");
  }
  CHECK(describe(all[1]) == describe(precision::mxfp8{}));
  CHECK_THROWS_WITH(policy_cases::on_mlp.state_by_threads(1, adaptive, rounded{precision::fp8{.tile = 0}}),
                    Catch::Matchers::Contains("precision::fp8"));
}
