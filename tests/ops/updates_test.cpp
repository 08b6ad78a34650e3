#include "trireme/ops/host/updates.hpp"

#include "../catch.hpp"
#include "support.hpp"

using namespace trireme;
using kernels = ops::host_updates;

namespace {

template <class M, class P>
struct problem {
  std::int64_t n;
  tensor<M> value = random_tensor<M>({n}, 1);
  tensor<M> first = random_tensor<M>({n}, 2);
  tensor<M> second = zeros<M>({n});
  tensor<M> g0 = random_tensor<M>({n}, 4);
  tensor<M> g1 = random_tensor<M>({n}, 5);
  tensor<P> out0 = zeros<P>({n});
  tensor<P> out1 = zeros<P>({n});

  explicit problem(std::int64_t size) : n(size) {
    for (std::int64_t i = 0; i < n; ++i) second[i] = static_cast<M>(static_cast<float>(i % 13) / 64);
  }
  // Over [begin, end) of all views.
  void adamw(ops::adamw_numbers const& numbers, std::int64_t begin, std::int64_t end) {
    auto const part = [&](auto& t) { return t.view().flat(begin, end - begin); };
    std::array<tensor_view<M const>, 2> const terms{part(g0), part(g1)};
    std::array<tensor_view<P>, 2> const outputs{part(out0), part(out1)};
    kernels::adamw(part(value), part(first), part(second), ops::gradient_terms<M, host>{terms, 0.5},
                   std::span<tensor_view<P> const>(outputs), numbers);
  }
  void sgd(ops::sgd_numbers const& numbers) {
    std::array<tensor_view<M const>, 2> const terms{g0.view(), g1.view()};
    std::array<tensor_view<P>, 2> const outputs{out0.view(), out1.view()};
    kernels::sgd(value.view(), first, ops::gradient_terms<M, host>{terms, 0.5},
                 std::span<tensor_view<P> const>(outputs), numbers);
  }
};

ops::adamw_numbers const adam{.learning_rate = 0.01,
                              .beta1 = 0.9,
                              .beta2 = 0.99,
                              .epsilon = 1e-8,
                              .weight_decay = 0.1,
                              .correction1 = 0.19,
                              .correction2 = 0.0199};

}  // namespace

TEST_CASE("adamw is the formula of its paper") {
  problem<double, double> p(40);
  problem<double, double> const before(40);
  p.adamw(adam, 0, 40);
  for (std::int64_t i = 0; i < 40; ++i) {
    double const g = 0.5 * (before.g0[i] + before.g1[i]);
    double const m = 0.9 * before.first[i] + 0.1 * g;
    double const v = 0.99 * before.second[i] + 0.01 * g * g;
    double const expected =
        before.value[i] - 0.01 * 0.1 * before.value[i] - 0.01 * (m / 0.19) / (std::sqrt(v / 0.0199) + 1e-8);
    CHECK(p.value[i] == Approx(expected).epsilon(1e-12));
    CHECK(p.first[i] == Approx(m).epsilon(1e-12));
    CHECK(p.second[i] == Approx(v).epsilon(1e-12));
    CHECK(p.out0[i] == p.value[i]);
  }
}

TEST_CASE("adamw in float agrees with double and writes every output, converted") {
  for (std::int64_t const n : {0, 1, 15, 16, 17, 1000}) {
    problem<double, double> exact(n);
    exact.adamw(adam, 0, n);
    at_each_level([&] {
      problem<float, bfloat16> p(n);
      p.adamw(adam, 0, n);
      CHECK(distance(p.value, exact.value) < 1e-6);
      CHECK(distance(p.first, exact.first) < 1e-6);
      CHECK(distance(p.second, exact.second) < 1e-6);
      bool rounded = true;
      for (std::int64_t i = 0; i < n; ++i) {
        rounded = rounded && p.out0[i].bits == bfloat16(p.value[i]).bits && p.out1[i].bits == p.out0[i].bits;
      }
      CHECK(rounded);
    });
  }
}

TEST_CASE("an update has the same bits however the parameters are sliced") {
  at_each_level([] {
    problem<float, float> whole(103);
    whole.adamw(adam, 0, 103);
    problem<float, float> parts(103);
    parts.adamw(adam, 0, 37);
    parts.adamw(adam, 37, 38);
    parts.adamw(adam, 38, 103);
    CHECK(same_bits<float>(whole.value.span(), parts.value.span()));
    CHECK(same_bits<float>(whole.second.span(), parts.second.span()));
  });
}

TEST_CASE("a value may be one of the outputs") {
  problem<float, float> apart(50);
  apart.adamw(adam, 0, 50);
  problem<float, float> p(50);
  std::array<tensor_view<float const>, 2> const terms{p.g0.view(), p.g1.view()};
  std::array<tensor_view<float>, 2> const outputs{p.out0.view(), p.value.view()};
  kernels::adamw(p.value.view(), p.first, p.second, ops::gradient_terms<float, host>{terms, 0.5},
                 std::span<tensor_view<float> const>(outputs), adam);
  CHECK(same_bits<float>(apart.value.span(), p.value.span()));
  CHECK(same_bits<float>(apart.out0.span(), p.out0.span()));
}

TEST_CASE("sgd moves by the gradient, its momentum, or Nesterov's, with decay") {
  for (ops::sgd_numbers const numbers : {ops::sgd_numbers{0.1, 0, false, 0}, ops::sgd_numbers{0.1, 0.9, false, 0.01},
                                         ops::sgd_numbers{0.1, 0.9, true, 0.01}}) {
    problem<double, double> exact(33);
    problem<double, double> const before(33);
    exact.sgd(numbers);
    for (std::int64_t i = 0; i < 33; ++i) {
      double const g = 0.5 * (before.g0[i] + before.g1[i]) + numbers.weight_decay * before.value[i];
      double const v = numbers.momentum * before.first[i] + g;
      double const along = numbers.momentum == 0 ? g : numbers.nesterov ? g + numbers.momentum * v : v;
      CHECK(exact.value[i] == Approx(before.value[i] - 0.1 * along).margin(1e-14));
      CHECK(exact.first[i] == Approx(numbers.momentum == 0 ? before.first[i] : v).margin(1e-14));
    }
    at_each_level([&] {
      problem<float, float> p(33);
      p.sgd(numbers);
      CHECK(distance(p.value, exact.value) < 1e-6);
      CHECK(distance(p.out1, exact.value) < 1e-6);
    });
  }
}

TEST_CASE("updates refuse gradients and outputs of another size") {
  problem<float, float> p(8);
  std::array<tensor_view<float const>, 1> const terms{p.g0.view().flat(0, 7)};
  CHECK_THROWS_AS(kernels::sgd(p.value.view(), {}, ops::gradient_terms<float, host>{terms, 1},
                               std::span<tensor_view<float> const>{}, {.learning_rate = 1}),
                  assertion_error);
}
