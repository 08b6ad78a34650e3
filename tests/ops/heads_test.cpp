#include "trireme/ops/host/heads.hpp"

#include "../catch.hpp"
#include "central_differences.hpp"
#include "support.hpp"
#include "trireme/ops/latent_heads.hpp"

using namespace trireme;
using kernels = ops::host_heads;

namespace {

template <class T>
struct problem {
  using A = ops::accumulate_t<T>;
  ops::head_layout how;
  std::int64_t rows;
  tensor<T> x = random_tensor<T>({rows, how.columns()}, 1);
  tensor<T> dqkv = random_tensor<T>({rows, 3 * how.heads* how.width}, 2);
  tensor<T> qkv = zeros<T>({rows, 3 * how.heads* how.width});
  tensor<T> dx = zeros<T>({rows, how.columns()});
  tensor<A> table = zeros<A>({how.context, how.width});

  problem(ops::head_layout what, std::int64_t samples, std::int64_t first = 0)
      : how(what), rows(samples * what.context) {
    kernels::rotations(table.view(), first, 100);
  }
  void forward() { kernels::arrange_heads(qkv.view(), x, table, how); }
  void backward() { kernels::arrange_heads_backward(dx.view(), dqkv, table, how); }
  T const* at(std::int64_t row, std::int64_t third, std::int64_t head) const {
    return qkv.span().data() + ((row * 3 + third) * how.heads + head) * how.width;
  }
};

double score(double const* q, double const* k, std::int64_t width) {
  double sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += q[i] * k[i];
  return sum;
}

constexpr std::array<ops::head_layout, 4> layouts{{{5, 3, 3, 6}, {4, 6, 2, 34}, {3, 4, 1, 2}, {1, 2, 2, 32}}};

}  // namespace

TEST_CASE("a score of turned queries and keys depends on how far apart they are, not on where") {
  for (auto const first : {0, 7, 1000}) {
    problem<double> here({9, 2, 2, 8}, 1, first);
    for (std::int64_t row = 1; row < 9; ++row)
      std::copy_n(here.x.span().data(), here.how.columns(), here.x.span().data() + row * here.how.columns());
    here.forward();
    for (std::int64_t apart = 0; apart < 4; ++apart) {
      auto const at_first = score(here.at(apart, 0, 1), here.at(0, 1, 1), 8);
      for (std::int64_t row = 1; row + apart < 9; ++row)
        CHECK(score(here.at(row + apart, 0, 1), here.at(row, 1, 1), 8) == Approx(at_first).margin(1e-11));
    }
    CHECK(score(here.at(3, 0, 1), here.at(0, 1, 1), 8) != Approx(score(here.at(0, 0, 1), here.at(0, 1, 1), 8)));
  }
}

TEST_CASE("position p turns pair i by p / base^(2 i / D), and leaves values alone") {
  problem<double> p({3, 1, 1, 4}, 1, 5);
  p.forward();
  auto const* const x = p.x.span().data() + 2 * 12;  // position 7
  CHECK(p.at(2, 0, 0)[0] == Approx(x[0] * std::cos(7.0) - x[2] * std::sin(7.0)));
  CHECK(p.at(2, 0, 0)[2] == Approx(x[0] * std::sin(7.0) + x[2] * std::cos(7.0)));
  CHECK(p.at(2, 1, 0)[1] == Approx(x[5] * std::cos(0.7) - x[7] * std::sin(0.7)));
  CHECK(p.at(2, 1, 0)[3] == Approx(x[5] * std::sin(0.7) + x[7] * std::cos(0.7)));
  for (int i = 0; i < 4; ++i) CHECK(p.at(2, 2, 0)[i] == x[8 + i]);
}

TEST_CASE("scaled angles are slower, by one factor or as transformers has it for Llama 3") {
  tensor<double> table(shape{2, 16});
  kernels::rotations(table.view(), 1, 500000, {.factor = 4});
  CHECK(table[0] == Approx(std::cos(0.25)));
  CHECK(table[8] == Approx(std::sin(0.25)));
  // transformers.modeling_rope_utils, rope_theta 500000, head_dim 16, in float
  std::array<double, 8> const llama3{1.0,
                                     0.193922758102417,
                                     0.03760603070259094,
                                     0.00729266507551074,
                                     0.0005248460220173001,
                                     3.428102354519069e-05,
                                     6.647869668086059e-06,
                                     1.289173155782919e-06};
  kernels::rotations(table.view(), 1, 500000, {.factor = 8, .original = 8192});
  for (std::size_t i = 0; i < 8; ++i)
    CHECK(table[8 + static_cast<std::int64_t>(i)] == Approx(std::sin(llama3[i])).epsilon(3e-7));
}

namespace {

template <class T>
struct normed : problem<T> {
  using A = ops::accumulate_t<T>;
  using problem<T>::how, problem<T>::rows, problem<T>::x;
  tensor<T> query_gain = random_tensor<T>({how.width}, 3), key_gain = random_tensor<T>({how.width}, 4);
  tensor<A> rstd = zeros<A>({rows, how.heads + how.key_heads});
  tensor<T> y = zeros<T>({rows, how.columns()}), dy = random_tensor<T>({rows, how.columns()}, 5);
  tensor<T> dx = zeros<T>({rows, how.columns()});
  tensor<A> dquery_gain = zeros<A>({how.width}), dkey_gain = zeros<A>({how.width});

  using problem<T>::problem;
  void forward() { kernels::normalise_heads(y.view(), rstd, x, query_gain, key_gain, how, 0.1); }
  void backward(tensor<T>& to) {
    for (auto* each : {&dquery_gain, &dkey_gain}) std::fill(each->span().begin(), each->span().end(), A(0));
    kernels::normalise_heads_backward(to.view(), dquery_gain, dkey_gain, dy, x, rstd, query_gain, key_gain, how);
  }
};

}  // namespace

TEST_CASE("gradients of normalised heads agree with central differences, and values stay as they are") {
  for (auto const& how : layouts) {
    normed<double> p(how, 2);
    p.forward();
    p.backward(p.dx);
    auto const loss = [&] {
      p.forward();
      return inner(p.y.span(), p.dy.span());
    };
    CHECK(gradient_error(p.x.span(), p.dx.span(), loss) < 1e-6);
    CHECK(gradient_error(p.query_gain.span(), p.dquery_gain.span(), loss) < 1e-6);
    CHECK(gradient_error(p.key_gain.span(), p.dkey_gain.span(), loss) < 1e-6);
    auto const at = how.value(how.key_heads - 1);
    for (std::int64_t i = 0; i < how.width; ++i) CHECK(p.y[at + i] == p.x[at + i]);
  }
}

TEMPLATE_TEST_CASE("normalised heads in float and bfloat16 agree with double at every CPU level, in place as well",
                   "[ops]", float, bfloat16) {
  for (auto const& how : layouts) {
    normed<double> exact(how, 2);
    exact.forward();
    exact.backward(exact.dx);
    at_each_level([&] {
      normed<TestType> p(how, 2);
      p.forward();
      p.backward(p.dx);
      CHECK(distance(p.y, exact.y) < tolerance<TestType>);
      CHECK(distance(p.dx, exact.dx) < tolerance<TestType>);
      CHECK(distance(p.dquery_gain, exact.dquery_gain) < 10 * tolerance<TestType>);
      p.backward(p.dy);
      CHECK(same_bits<TestType>(p.dy.span(), p.dx.span()));
      kernels::normalise_heads(p.x.view(), p.rstd, p.x, p.query_gain, p.key_gain, how, 0.1);
      CHECK(same_bits<TestType>(p.x.span(), p.y.span()));
    });
  }
}

TEST_CASE("a key and its value serve all queries of their group") {
  problem<double> p({2, 4, 2, 2}, 1);
  kernels::arrange_heads(p.qkv.view(), p.x, {}, p.how);
  // A row: q0 q1 k0 v0 q2 q3 k1 v1, two numbers each.
  std::array<std::int64_t, 4> const queries{0, 1, 4, 5}, keys{2, 2, 6, 6};
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t head = 0; head < 4; ++head) {
      auto const* const x = p.x.span().data() + row * 16;
      auto const h = static_cast<std::size_t>(head);
      for (std::int64_t i = 0; i < 2; ++i) {
        CHECK(p.at(row, 0, head)[i] == x[2 * queries[h] + i]);
        CHECK(p.at(row, 1, head)[i] == x[2 * keys[h] + i]);
        CHECK(p.at(row, 2, head)[i] == x[2 * keys[h] + 2 + i]);
      }
    }
  }
}

TEST_CASE("gradients of arranged heads agree with central differences") {
  for (auto const& how : layouts) {
    problem<double> p(how, 2, 3);
    p.backward();
    CHECK(gradient_error(p.x.span(), p.dx.span(), [&] {
            p.forward();
            return inner(p.qkv.span(), p.dqkv.span());
          }) < 1e-6);
    kernels::arrange_heads_backward(p.dx.view(), p.dqkv, {}, how);
    CHECK(gradient_error(p.x.span(), p.dx.span(), [&] {
            kernels::arrange_heads(p.qkv.view(), p.x, {}, how);
            return inner(p.qkv.span(), p.dqkv.span());
          }) < 1e-6);
  }
}

TEMPLATE_TEST_CASE("arranged heads in float and bfloat16 agree with double at every CPU level, in place as well",
                   "[ops]", float, bfloat16) {
  for (auto const& how : layouts) {
    problem<double> exact(how, 2);
    exact.forward();
    exact.backward();
    at_each_level([&] {
      problem<TestType> rounded(how, 2);
      rounded.forward();
      rounded.backward();
      CHECK(distance(rounded.qkv, exact.qkv) < tolerance<TestType>);
      CHECK(distance(rounded.dx, exact.dx) < tolerance<TestType>);
      if (how.grouped()) return;
      kernels::arrange_heads(rounded.x.view(), rounded.x, rounded.table, how);
      kernels::arrange_heads_backward(rounded.dqkv.view(), rounded.dqkv, rounded.table, how);
      CHECK(same_bits<TestType>(rounded.x.span(), rounded.qkv.span()));
      CHECK(same_bits<TestType>(rounded.dqkv.span(), rounded.dx.span()));
    });
  }
}

TEST_CASE("heads that do not fit are refused") {
  problem<float> p({2, 4, 2, 2}, 1);
  CHECK_THROWS_AS(kernels::arrange_heads(p.qkv.view(), p.x, p.table, {2, 4, 4, 2}), assertion_error);
  CHECK_THROWS_AS(kernels::arrange_heads(p.qkv.view(), p.x, p.table, {3, 4, 2, 2}), assertion_error);
  normed<float> n({2, 4, 2, 2}, 1);
  CHECK_THROWS_AS(kernels::normalise_heads(n.y.view(), n.rstd, n.x, n.rstd, n.key_gain, n.how, 0.1), assertion_error);
  CHECK_THROWS_AS(kernels::rotations(tensor<float>(shape{2, 3}).view(), 0, 1e4), assertion_error);
}

TEST_CASE("latent heads have one rotated key, zeros after narrower values, and the transpose as backward") {
  using latent = ops::latent_heads_on<host>;
  for (ops::latent_layout const how : {ops::latent_layout{3, 2, 3, 4, 5}, ops::latent_layout{3, 2, 1, 2, 6}}) {
    auto const rows = 2 * how.context, d = how.width();
    auto const queries = random_tensor<double>({rows, how.heads * how.query()}, 1);
    auto const pairs = random_tensor<double>({rows, how.heads * how.pair()}, 2);
    auto const key = random_tensor<double>({rows, how.rotary}, 3);
    auto table = zeros<double>({how.context, how.rotary});
    kernels::rotations(table.view(), 4, 100);
    auto qkv = zeros<double>({rows, 3 * how.heads * d});
    for (auto& each : qkv.span()) each = 1e9;
    latent::arrange(qkv.view(), queries, pairs, key, table, how);
    auto const at = [&](std::int64_t row, std::int64_t third, std::int64_t head) {
      return qkv.span().data() + ((row * 3 + third) * how.heads + head) * d;
    };
    auto const scale = std::sqrt(static_cast<double>(d) / static_cast<double>(how.query()));
    auto const* const q = queries.span().data() + (4 * how.heads + 1) * how.query();  // row 4, head 1: position 5
    auto const* const k = key.span().data() + 4 * how.rotary;
    auto const* const p = pairs.span().data() + (4 * how.heads + 1) * how.pair();
    CHECK(at(4, 0, 1)[0] == Approx(scale * q[0]));
    CHECK(at(4, 0, 1)[how.plain] == Approx(scale * (q[how.plain] * std::cos(5.0) - q[how.plain + 1] * std::sin(5.0))));
    CHECK(at(4, 1, 1)[0] == p[0]);
    CHECK(at(4, 1, 1)[how.plain + 1] == Approx(k[0] * std::sin(5.0) + k[1] * std::cos(5.0)));
    CHECK(at(4, 1, 0)[how.plain + 1] == at(4, 1, 1)[how.plain + 1]);
    CHECK(at(4, 2, 1)[how.values - 1] == p[how.pair() - 1]);
    for (auto i = how.query(); i < d; ++i) CHECK(at(4, 1, 1)[i] == 0);
    for (auto i = how.values; i < d; ++i) CHECK(at(4, 2, 1)[i] == 0);

    auto const dqkv = random_tensor<double>({rows, 3 * how.heads * d}, 4);
    auto dqueries = zeros<double>({rows, how.heads * how.query()}),
         dpairs = zeros<double>({rows, how.heads * how.pair()});
    auto dkey = zeros<double>({rows, how.rotary});
    latent::arrange_backward(dqueries.view(), dpairs.view(), dkey.view(), dqkv, table, how);
    CHECK(inner(qkv.span(), dqkv.span()) == Approx(inner(queries.span(), dqueries.span()) +
                                                   inner(pairs.span(), dpairs.span()) + inner(key.span(), dkey.span()))
                                                .epsilon(1e-12));
  }
}
