#include "trireme/ops/host/embedding.hpp"

#include "../catch.hpp"
#include "support.hpp"

using namespace trireme;
using kernels = ops::host_embedding;

namespace {

tensor<std::int32_t> tokens_of(shape extents, std::initializer_list<std::int32_t> values) {
  tensor<std::int32_t> out(extents);
  std::copy(values.begin(), values.end(), out.span().begin());
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("embed adds the row of a token and the row of its position", "", float, double, bfloat16) {
  constexpr std::int64_t channels = 19;
  auto const table = random_tensor<TestType>({5, channels}, 1);
  auto const positions = random_tensor<TestType>({4, channels}, 2);
  auto const tokens = tokens_of({2, 3}, {4, 0, 4, 1, 2, 3});
  at_each_level([&] {
    auto y = zeros<TestType>({2, 3, channels});
    kernels::embed(y.view(), tokens, table, positions);
    for (std::int64_t row = 0; row < 6; ++row) {
      for (std::int64_t c = 0; c < channels; ++c) {
        auto const exact = static_cast<double>(table[tokens[row] * channels + c]) +
                           static_cast<double>(positions[row % 3 * channels + c]);
        CHECK(static_cast<double>(y[row * channels + c]) == Approx(exact).margin(1e-2));
      }
    }
    kernels::embed(y.view(), tokens, table, {});
    CHECK(static_cast<float>(y[1]) == static_cast<float>(table[4 * channels + 1]));
  });
}

TEMPLATE_TEST_CASE("embed_backward adds every use of a row", "", float, double, bfloat16) {
  using G = ops::accumulate_t<TestType>;
  constexpr std::int64_t channels = 17;
  auto const tokens = tokens_of({2, 3}, {4, 0, 4, 1, 2, 4});
  auto const dy = random_tensor<TestType>({6, channels}, 3);
  at_each_level([&] {
    auto dtable = zeros<G>({5, channels});
    auto dpositions = zeros<G>({4, channels});
    dtable[3 * channels] = G(1);
    kernels::embed_backward(dtable.view(), dpositions, dy.view(), tokens);
    auto const slope = [&](std::int64_t row) { return static_cast<double>(dy[row * channels + 2]); };
    CHECK(static_cast<double>(dtable[4 * channels + 2]) == Approx(slope(0) + slope(2) + slope(5)).margin(1e-6));
    CHECK(static_cast<double>(dpositions[2 * channels + 2]) == Approx(slope(2) + slope(5)).margin(1e-6));
    CHECK(dtable[3 * channels] == G(1));
    CHECK(dpositions[3 * channels] == G(0));
    kernels::embed_backward(dtable.view(), {}, dy.view(), tokens);
  });
}

TEST_CASE("a token outside the table, or a context longer than the positions, is refused") {
  auto const table = random_tensor<float>({5, 4}, 1);
  auto const positions = random_tensor<float>({2, 4}, 2);
  auto y = zeros<float>({3, 4});
  CHECK_THROWS_AS(kernels::embed(y.view(), tokens_of({3}, {0, 5, 1}), table, {}), config_error);
  CHECK_THROWS_AS(kernels::embed(y.view(), tokens_of({3}, {0, -1, 1}), table, {}), config_error);
  CHECK_THROWS_AS(kernels::embed(y.view(), tokens_of({3}, {0, 1, 1}), table, positions), assertion_error);
}

TEMPLATE_TEST_CASE("parts of a table add up to the table, and each gets the gradient of its rows", "", float,
                   bfloat16) {
  using G = ops::accumulate_t<TestType>;
  constexpr std::int64_t channels = 19;
  auto const table = random_tensor<TestType>({5, channels}, 1);
  auto const tokens = tokens_of({2, 3}, {4, 0, 4, 1, 2, 3});
  auto const dy = random_tensor<TestType>({6, channels}, 3);
  at_each_level([&] {
    auto whole = zeros<TestType>({6, channels});
    kernels::embed(whole.view(), tokens, table, {});
    auto dwhole = zeros<G>({5, channels});
    kernels::embed_backward(dwhole.view(), {}, dy.view(), tokens);
    auto sum = zeros<TestType>({6, channels});
    auto dparts = zeros<G>({5, channels});
    for (auto const& range : {interval{0, 2}, interval{2, 3}}) {
      auto y = random_tensor<TestType>({6, channels}, 9);
      auto const rows = table.view().rows(range.first, range.count);
      kernels::embed(y.view(), tokens, rows, {}, {range.first, 5});
      ops::host_elementwise::add(sum.view(), y);
      kernels::embed_backward(dparts.view().rows(range.first, range.count), {}, dy.view(), tokens, {range.first, 5});
    }
    CHECK(same_bits<TestType>(sum.span(), whole.span()));
    CHECK(same_bits<G>(dparts.span(), dwhole.span()));
  });
  auto y = zeros<TestType>({3, channels});
  auto const rows = table.view().rows(0, 2);
  CHECK_THROWS_AS(kernels::embed(y.view(), tokens_of({3}, {0, 5, 1}), rows, {}, {0, 5}), config_error);
}
