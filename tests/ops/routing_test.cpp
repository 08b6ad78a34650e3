#include "trireme/ops/host/routing.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../catch.hpp"
#include "central_differences.hpp"
#include "support.hpp"

using namespace trireme;
using kernels = ops::host_routing;

namespace {

template <class T>
struct problem {
  using A = ops::accumulate_t<T>;
  std::int64_t rows, experts, choices, channels;
  tensor<T> logits = random_tensor<T>({rows, experts}, 1, 2);
  tensor<T> from = random_tensor<T>({rows * choices, channels}, 2);
  tensor<T> dy = random_tensor<T>({rows, channels}, 3);
  tensor<T> y = zeros<T>({rows, channels});
  tensor<A> probabilities = zeros<A>({rows, experts});
  tensor<A> weights = zeros<A>({rows, choices});
  tensor<std::int32_t> chosen = zeros<std::int32_t>({rows, choices});
  tensor<std::int32_t> places = zeros<std::int32_t>({rows, choices});
  std::vector<std::int64_t> counts = std::vector<std::int64_t>(static_cast<std::size_t>(experts));

  void forward() {
    kernels::route(probabilities, chosen, weights, logits.view());
    kernels::sort_by_expert(places, counts, chosen);
    kernels::combine(y.view(), from, places, weights);
  }
};

}  // namespace

TEST_CASE("rows choose the most probable experts, and of equal ones the first") {
  problem<double> p{2, 4, 2, 1};
  double const logits[] = {0, 1, 1, 1, 2, -1, 3, 2};
  for (std::int64_t i = 0; i < 8; ++i) p.logits[i] = logits[i];
  p.forward();
  CHECK(p.chosen[0] == 1);
  CHECK(p.chosen[1] == 2);
  CHECK(p.weights[0] == Approx(0.5));
  CHECK(p.chosen[2] == 2);
  CHECK(p.chosen[3] == 0);
  CHECK(p.weights[2] == Approx(1 / (1 + std::exp(-1.0))));
  CHECK(p.weights[2] + p.weights[3] == Approx(1));
}

TEST_CASE("choices are sorted by expert, and those of one expert lie in the order of rows") {
  problem<float> p{50, 5, 2, 3};
  p.forward();
  std::vector<std::int64_t> at(100, -1);
  for (std::int64_t i = 0; i < 100; ++i) at[static_cast<std::size_t>(p.places[i])] = i;
  std::int64_t place = 0;
  for (std::int32_t e = 0; e < 5; ++e) {
    std::int64_t before = -1;
    for (std::int64_t n = 0; n < p.counts[static_cast<std::size_t>(e)]; ++n) {
      auto const choice = at[static_cast<std::size_t>(place++)];
      REQUIRE(choice > before);
      CHECK(p.chosen[choice] == e);
      before = choice;
    }
  }
  CHECK(place == 100);
}

TEST_CASE("rows that are dispatched and combined with equal weights are unchanged") {
  problem<float> p{9, 4, 2, 3};
  p.forward();
  auto const x = random_tensor<float>({9, 3}, 5);
  kernels::dispatch(p.from.view(), x, p.places);
  kernels::combine(p.y.view(), p.from, p.places, {});
  for (std::int64_t i = 0; i < 27; ++i) CHECK(p.y[i] == 2 * x[i]);
}

TEST_CASE("gradients of a mixture agree with central differences") {
  for (std::int64_t const choices : {1, 2, 3}) {
    INFO(choices << " choices");
    problem<double> p{6, 4, choices, 5};
    auto const slopes = zeros<double>({6, 4});
    double const scale = 0.3;
    auto const loss = [&] {
      p.forward();
      auto const even = kernels::imbalance(tensor_view<double, host>{}, p.probabilities, p.chosen, 3, 0).sum;
      return inner(p.y.span(), p.dy.span()) + scale * even;
    };
    static_cast<void>(loss());
    auto const dfrom = zeros<double>({6 * choices, 5});
    auto const dweights = zeros<double>({6, choices});
    auto const dlogits = zeros<double>({6, 4});
    kernels::combine_backward(dfrom.view(), dweights, p.dy, p.from, p.places, p.weights);
    kernels::imbalance(slopes.view(), p.probabilities, p.chosen, 3, scale);
    kernels::route_backward(dlogits.view(), dweights, p.probabilities, p.chosen, p.weights, slopes);
    CHECK(gradient_error(p.from.span(), dfrom.span(), loss) < 1e-8);
    CHECK(gradient_error(p.logits.span(), dlogits.span(), loss) < 1e-8);
  }
}

TEST_CASE("the imbalance is 1 where all experts get as much, and the number of experts where one gets all") {
  problem<double> p{4, 2, 1, 1};
  double const even[] = {1, 0, 0, 1, 1, 0, 0, 1};
  double const one[] = {9e2, 0, 9e2, 0, 9e2, 0, 9e2, 0};
  for (std::int64_t i = 0; i < 8; ++i) p.logits[i] = even[i];
  p.forward();
  CHECK(kernels::imbalance(tensor_view<double, host>{}, p.probabilities, p.chosen, 4, 0).sum == Approx(1));
  for (std::int64_t i = 0; i < 8; ++i) p.logits[i] = one[i];
  p.forward();
  CHECK(kernels::imbalance(tensor_view<double, host>{}, p.probabilities, p.chosen, 4, 0).sum == Approx(2));
  CHECK(kernels::imbalance(tensor_view<double, host>{}, p.probabilities, p.chosen, 2, 0).sum == Approx(4));
}

TEST_CASE("scored rows choose by score and bias, of the groups with the best two experts, and are weighted by scores") {
  problem<double> p{1, 6, 2, 1};
  double const logits[] = {0, 1, 2, -1, 3, -3};
  for (std::int64_t i = 0; i < 6; ++i) p.logits[i] = logits[i];
  auto const sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  auto bias = zeros<double>({6});
  auto const score = [&](ops::scored_choice const& how) {
    kernels::score(p.probabilities.view(), p.chosen, p.weights, p.logits.view(), bias, how);
  };
  score({.scale = 2.5});
  CHECK((p.chosen[0] == 4 && p.chosen[1] == 2));
  CHECK(p.weights[0] == Approx(2.5 * sigmoid(3) / (sigmoid(3) + sigmoid(2))));
  bias[3] = 2;  // chosen first, with a weight that does not depend on the bias
  score({});
  CHECK((p.chosen[0] == 3 && p.chosen[1] == 4));
  CHECK(p.weights[0] == Approx(sigmoid(-1) / (sigmoid(3) + sigmoid(-1))));
  bias[3] = 0;  // two of three groups: 0 and 1 have 0.5 + 0.73, 2 and 3 have 0.88 + 0.27, 4 and 5 have 0.95 + 0.05
  score({.groups = 3, .chosen_groups = 1});
  CHECK((p.chosen[0] == 1 && p.chosen[1] == 0));
  score({.groups = 3, .chosen_groups = 2});
  CHECK((p.chosen[0] == 2 && p.chosen[1] == 1));
}

TEST_CASE("gradients of scored choices agree with central differences") {
  for (auto const choices : {2, 3}) {
    problem<double> p{7, 6, choices, 4};
    auto const bias = random_tensor<double>({6}, 9);
    ops::scored_choice const how{.groups = 3, .chosen_groups = 2, .scale = 2.5};
    auto const forward = [&] {
      kernels::score(p.probabilities.view(), p.chosen, p.weights, p.logits.view(), bias, how);
      kernels::sort_by_expert(p.places, p.counts, p.chosen);
      kernels::combine(p.y.view(), p.from, p.places, p.weights);
      return inner(p.y.span(), p.dy.span());
    };
    forward();
    auto dfrom = zeros<double>(p.from.extents()), dweights = zeros<double>(p.weights.extents());
    auto dlogits = zeros<double>(p.logits.extents());
    kernels::combine_backward(dfrom.view(), dweights, p.dy, p.from, p.places, p.weights);
    kernels::score_backward(dlogits.view(), dweights, p.probabilities, p.chosen, p.weights, how);
    CHECK(gradient_error(p.logits.span(), dlogits.span(), forward) < 1e-6);
  }
}

TEST_CASE("the excess of an expert is how often it is chosen above the mean, times the experts") {
  tensor<std::int32_t> chosen(shape{3, 2});
  std::int32_t const which[] = {0, 1, 0, 2, 0, 1};
  for (std::int64_t i = 0; i < 6; ++i) chosen[i] = which[i];
  auto excess = zeros<float>({4});
  for (int n = 0; n < 2; ++n) kernels::add_excess(excess.view(), chosen);
  CHECK((excess[0] == 12 && excess[1] == 4 && excess[2] == -4 && excess[3] == -12));
}

TEST_CASE("a bias that moves by the sign of the excess spreads what a lopsided router gives to one expert") {
  problem<double> p{60, 6, 1, 1};
  for (std::int64_t row = 0; row < 60; ++row) p.logits[6 * row] += 4;
  auto bias = zeros<double>({6});
  auto const most_of = [&](int steps) {
    for (int n = 0; n <= steps; ++n) {
      kernels::score(p.probabilities.view(), p.chosen, p.weights, p.logits.view(), bias, {});
      kernels::sort_by_expert(p.places, p.counts, p.chosen);
      auto excess = zeros<double>({6});
      kernels::add_excess(excess.view(), p.chosen);
      for (std::int64_t e = 0; e < 6; ++e) bias[e] -= 0.01 * ((excess[e] > 0) - (excess[e] < 0));
    }
    return *std::max_element(p.counts.begin(), p.counts.end());
  };
  CHECK(most_of(0) == 60);
  CHECK(most_of(100) < 20);  // the mean is 10
}
