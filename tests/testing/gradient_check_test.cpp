#include "trireme/testing/gradient_check.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/mlp.hpp"

using namespace trireme;

namespace {

std::vector<float> some(std::size_t n) {
  std::vector<float> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(std::sin(static_cast<float>(3 * i + 1)));
  return out;
}

/// y = a x + b of a single number, in double, and (Wrong) with a backward that forgets a factor.
template <bool Wrong>
struct line {
  using value_type = double;
  std::vector<double> values{0.7, -0.3};
  std::vector<double> gradient{0, 0};
  std::vector<double> slopes{};
  samples last{};

  void visit_parameters(auto&& visit) { visit("line", tensor_view{values}, tensor_view{gradient}); }
  double forward(samples const& batch) {
    last = batch;
    slopes.clear();
    auto const x = batch.inputs.as<float>();
    auto const y = batch.targets.as<float>();
    double loss = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      double const error = values[0] * static_cast<double>(x[i]) + values[1] - static_cast<double>(y[i]);
      slopes.push_back(2 * error / static_cast<double>(x.size()));
      loss += error * error / static_cast<double>(x.size());
    }
    return loss;
  }
  void backward(auto&& ready) {
    gradient = {0, 0};
    auto const x = last.inputs.as<float>();
    for (std::size_t i = 0; i < slopes.size(); ++i) {
      gradient[0] += slopes[i] * (Wrong ? 1.0 : static_cast<double>(x[static_cast<std::int64_t>(i)]));
      gradient[1] += slopes[i];
    }
    ready("line");
  }
};

}  // namespace

TEST_CASE("gradients of the library's models agree with their losses", "[testing]") {
  auto const x = some(15);
  auto const y = some(10);
  auto const report = testing::check_gradients(
      nn::mlp{.inputs = 3, .hidden = {7, 5}, .outputs = 2},
      make_samples(tensor_view<float const>(x.data(), {5, 3}), tensor_view<float const>(y.data(), {5, 2})));
  INFO(to_string(report));
  CHECK(report);
  CHECK(report.checked > 50);

  std::vector<std::int32_t> const tokens{1, 4, 2, 0, 3, 4, 1, 1, 2, 3};
  std::vector<std::int32_t> const next{4, 2, 0, 3, 1, 1, 1, 2, 3, 0};
  auto const text = testing::check_gradients(
      nn::gpt{.vocabulary = 5, .context = 5, .layers = 1, .heads = 2, .channels = 6, .dropout = 0.2},
      make_samples(tensor_view<std::int32_t const>(tokens.data(), {2, 5}),
                   tensor_view<std::int32_t const>(next.data(), {2, 5})),
      {.most = 12});
  INFO(to_string(text));
  CHECK(text);
}

TEST_CASE("a backward without a factor is detected and named", "[testing]") {
  auto const x = some(6);
  auto const batch =
      make_samples(tensor_view<float const>(x.data(), {6, 1}), tensor_view<float const>(x.data(), {6, 1}));
  line<false> right;
  CHECK(testing::check_gradients(right, batch));
  CHECK(right.values == std::vector<double>{0.7, -0.3});  // as they were
  line<true> wrong;
  auto const report = testing::check_gradients(wrong, batch);
  CHECK(!report);
  CHECK(report.where == "line[0]");
  CHECK(to_string(report).find("2 elements, worst relative difference") == 0);
}

TEST_CASE("a user's loss is checked by its values alone", "[testing]") {
  std::vector<double> x{0.3, -1.2, 2.5};
  auto const loss = [&] {
    double sum = 0;
    for (auto const each : x) sum += std::log(std::cosh(each));
    return sum;
  };
  std::vector<double> gradient;
  for (auto const each : x) gradient.push_back(std::tanh(each));
  testing::gradient_report report;
  testing::check_gradient("x", x, gradient, loss, {}, report);
  CHECK(report);
  gradient[1] *= 1.01;
  testing::gradient_report other;
  testing::check_gradient("x", x, gradient, loss, {}, other);
  CHECK(!other);
  CHECK(other.where == "x[1]");
}
