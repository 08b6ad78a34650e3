#include <array>
#include <cmath>
#include <vector>

#include "../catch.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp64>;

/// One number, starting at 1, that is updated with the given gradients.
template <class Optimizer>
struct number {
  Optimizer optimizer;
  bool decays = true;
  std::vector<double> value{1};
  std::array<std::vector<double>, Optimizer::moment_names.size()> moments{};

  double follow(std::vector<double> gradients) {
    std::vector<tensor_view<double>> views;
    for (auto& moment : moments) {
      moment.assign(1, 0.0);
      views.emplace_back(moment);
    }
    std::int64_t step = 0;
    for (auto& gradient : gradients) {
      tensor_view<double const> const term(&gradient, shape{1});
      optimizer.update(update_segment<env>{tensor_view{value}, views, {{&term, 1}, 1.0}, {}, decays}, step++);
    }
    return value[0];
  }
};

}  // namespace

TEST_CASE("the first step of adamw has the length of its rate, whatever the gradient", "[optim]") {
  CHECK(number<optim::adamw>{{.learning_rate = 0.1, .weight_decay = 0}}.follow({123}) == Approx(0.9));
  CHECK(number<optim::adamw>{{.learning_rate = 0.1, .weight_decay = 0}}.follow({-1e-3}) == Approx(1.1).epsilon(1e-4));
}

TEST_CASE("adamw equals its definition over several steps", "[optim]") {
  std::vector<double> const gradients{0.5, -0.25, 1.0, 0.125};
  double value = 1;
  double first = 0;
  double second = 0;
  for (int t = 1; t <= 4; ++t) {
    double const g = gradients[static_cast<std::size_t>(t - 1)];
    value -= 0.1 * 0.2 * value;
    first = 0.8 * first + 0.2 * g;
    second = 0.95 * second + 0.05 * g * g;
    value -= 0.1 * (first / (1 - std::pow(0.8, t))) / (std::sqrt(second / (1 - std::pow(0.95, t))) + 1e-8);
  }
  optim::adamw const optimizer{.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.2};
  CHECK(number<optim::adamw>{optimizer}.follow(gradients) == Approx(value).epsilon(1e-12));
}

TEST_CASE("sgd equals its definition, with momentum and with Nesterov's", "[optim]") {
  for (bool const nesterov : {false, true}) {
    double value = 1;
    double velocity = 0;
    for (double const gradient : {1.0, 0.5, -2.0}) {
      double const g = gradient + 0.1 * value;
      velocity = 0.9 * velocity + g;
      value -= 0.01 * (nesterov ? g + 0.9 * velocity : velocity);
    }
    optim::sgd const optimizer{.learning_rate = 0.01, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.1};
    CHECK(number<optim::sgd>{optimizer}.follow({1.0, 0.5, -2.0}) == Approx(value).epsilon(1e-12));
  }
}

TEST_CASE("parameters without weight decay are not pulled to zero", "[optim]") {
  CHECK(number<optim::adamw>{{.weight_decay = 0.5}, false}.follow({0}) == 1);
  CHECK(number<optim::adamw>{{.weight_decay = 0.5}, true}.follow({0}) < 1);
  CHECK(number<optim::sgd>{{.weight_decay = 0.5}, false}.follow({0}) == 1);
  CHECK(number<optim::sgd>{{.weight_decay = 0.5}, true}.follow({0}) < 1);
}

TEST_CASE("a schedule takes the place of the rate", "[optim]") {
  optim::sgd const optimizer{
      .learning_rate = 100, .schedule = optim::constant{.peak = 0.5, .warmup = 2}, .momentum = 0};
  CHECK(number<optim::sgd>{optimizer}.follow({1}) == Approx(0.75));
  CHECK(number<optim::sgd>{optimizer}.follow({1, 0, 1}) == Approx(0.25));
  CHECK(optimizer.rate_at(7) == 0.5);
}

TEST_CASE("optimizers are printed as their source", "[optim]") {
  CHECK(to_string(optim::sgd{.learning_rate = 0.5}) ==
        "optim::sgd{.learning_rate = 0.5, .schedule = {}, .momentum = 0.9, .nesterov = false, .weight_decay = 0, .clip "
        "= 0}");
  CHECK(to_string(optim::adamw{.learning_rate = 0.5}) ==
        "optim::adamw{.learning_rate = 0.5, .schedule = {}, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-08, "
        ".weight_decay = 0.01, "
        ".clip = 0}");
}
