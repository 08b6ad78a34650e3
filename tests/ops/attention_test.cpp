#include "trireme/ops/host/attention.hpp"

#include "../catch.hpp"
#include "central_differences.hpp"
#include "support.hpp"

using namespace trireme;
using kernels = ops::host_attention;

namespace {

template <class T>
struct problem {
  using A = ops::accumulate_t<T>;
  ops::attention_shape what;
  ops::dropout_site drop{};
  tensor<T> qkv = random_tensor<T>({what.batch * what.context, 3 * what.channels}, 1, 2);
  tensor<T> dy = random_tensor<T>({what.batch * what.context, what.channels}, 2);
  tensor<T> y = zeros<T>({what.batch * what.context, what.channels});
  tensor<T> dqkv = zeros<T>({what.batch * what.context, 3 * what.channels});
  tensor<A> lse = zeros<A>({what.batch, what.heads, what.context});
  arena<host> scratch{};

  void forward() { kernels::causal_attention(y.view(), lse, qkv, what, scratch, drop); }
  void backward() { kernels::causal_attention_backward(dqkv.view(), dy, y, lse, qkv, what, scratch, drop); }
};

// The definition, row by row.
tensor<double> by_definition(problem<double> const& p) {
  auto const batch = p.what.batch;
  auto const context = p.what.context;
  auto const heads = p.what.heads;
  auto const channels = p.what.channels;
  auto const width = p.what.head_channels();
  auto y = zeros<double>({batch * context, channels});
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t row = 0; row < context; ++row) {
        auto const at = [&](std::int64_t token, std::int64_t part, std::int64_t d) {
          return p.qkv[((b * context + token) * 3 + part) * channels + h * width + d];
        };
        std::vector<double> weight(static_cast<std::size_t>(row + 1));
        double mass = 0;
        for (std::int64_t col = 0; col <= row; ++col) {
          double score = 0;
          for (std::int64_t d = 0; d < width; ++d) score += at(row, 0, d) * at(col, 1, d);
          mass += weight[static_cast<std::size_t>(col)] = std::exp(score / std::sqrt(static_cast<double>(width)));
        }
        for (std::int64_t col = 0; col <= row; ++col) {
          double share = weight[static_cast<std::size_t>(col)] / mass;
          if (p.drop.active()) {
            auto const position = static_cast<std::uint64_t>((h * context + row) * context + col);
            auto const words = random_block(p.drop.key, p.drop.site,
                                            static_cast<std::uint64_t>(p.drop.samples[static_cast<std::size_t>(b)]),
                                            static_cast<std::uint32_t>(position / 4));
            share *= unit_float(words[position % 4]) < p.drop.probability ? 0 : 1 / (1 - p.drop.probability);
          }
          for (std::int64_t d = 0; d < width; ++d)
            y[(b * context + row) * channels + h * width + d] += share * at(col, 2, d);
        }
      }
    }
  }
  return y;
}

template <class T>
void compare(ops::attention_shape what, ops::dropout_site drop) {
  problem<double> exact{what, drop};
  exact.forward();
  exact.backward();
  CHECK(distance(exact.y, by_definition(exact)) < 1e-13);
  at_each_level([&] {
    problem<T> rounded{what, drop};
    rounded.forward();
    rounded.backward();
    CHECK(distance(rounded.y, exact.y) < tolerance<T>);
    CHECK(distance(rounded.lse, exact.lse) < tolerance<float>);
    CHECK(distance(rounded.dqkv, exact.dqkv) < tolerance<T>);
  });
}

std::vector<std::int64_t> const samples{7, 3};

}  // namespace

TEST_CASE("causal_attention is its definition, in every type, at every CPU level") {
  for (auto const what :
       {ops::attention_shape{2, 1, 1, 3}, ops::attention_shape{1, 32, 2, 32}, ops::attention_shape{2, 33, 3, 60},
        ops::attention_shape{1, 100, 1, 48}, ops::attention_shape{1, 131, 2, 128}, ops::attention_shape{0, 8, 1, 8}}) {
    compare<float>(what, {});
    compare<bfloat16>(what, {});
    ops::dropout_site const drop{0.25, {11, 4}, 9, std::span(samples).first(static_cast<std::size_t>(what.batch))};
    compare<float>(what, drop);
    compare<bfloat16>(what, drop);
  }
}

TEST_CASE("gradients of causal_attention agree with central differences") {
  for (double const probability : {0.0, 0.3}) {
    problem<double> p{{2, 35, 2, 6}, {probability, {1, 2}, 3, samples}};
    p.forward();
    p.backward();
    // A sample of rows: the first, the last of a block, the first of the next, the last.
    for (std::int64_t const row : {0, 31, 32, 34, 35, 69}) {
      auto const at = static_cast<std::size_t>(row * 18);
      CHECK(gradient_error(p.qkv.span().subspan(at, 18), p.dqkv.span().subspan(at, 18), [&] {
              p.forward();
              return inner(p.y.span(), p.dy.span());
            }) < 1e-6);
    }
  }
}

TEMPLATE_TEST_CASE("the first row attends to itself only, and a later token changes no earlier row", "", float,
                   bfloat16) {
  using T = TestType;
  at_each_level([] {
    problem<T> p{{1, 40, 2, 16}};
    p.forward();
    for (std::int64_t c = 0; c < 16; ++c) CHECK(p.y[c] == p.qkv[32 + c]);
    std::vector<T> const before(p.y.span().begin(), p.y.span().begin() + 39 * 16);
    for (std::int64_t c = 0; c < 48; ++c) p.qkv[39 * 48 + c] = T(5);
    p.forward();
    CHECK(same_bits<T>(before, p.y.span().first(before.size())));
  });
}

TEMPLATE_TEST_CASE("a sample's attention does not depend on the other samples", "", float, bfloat16) {
  using T = TestType;
  at_each_level([] {
    problem<T> all{{3, 50, 2, 32}};
    all.forward();
    all.backward();
    problem<T> one{{1, 50, 2, 32}};
    std::copy_n(all.qkv.span().data() + 2 * 50 * 96, 50 * 96, one.qkv.span().data());
    std::copy_n(all.dy.span().data() + 2 * 50 * 32, 50 * 32, one.dy.span().data());
    one.forward();
    one.backward();
    CHECK(same_bits<T>(one.y.span(), all.y.span().subspan(2 * 50 * 32)));
    CHECK(same_bits<T>(one.dqkv.span(), all.dqkv.span().subspan(2 * 50 * 96)));
  });
}

TEMPLATE_TEST_CASE("a context of many blocks agrees with double", "", float, bfloat16) {
  compare<TestType>({1, 517, 1, 32}, {});
}

TEMPLATE_TEST_CASE("attention with scores far apart stays finite", "", float, bfloat16) {
  at_each_level([] {
    problem<TestType> p{{1, 64, 1, 16}};
    for (auto& x : p.qkv.span()) x = TestType(static_cast<float>(x) * 100);
    p.forward();
    p.backward();
    for (auto const x : p.y.span()) CHECK(std::isfinite(static_cast<float>(x)));
    for (auto const x : p.dqkv.span()) CHECK(std::isfinite(static_cast<float>(x)));
  });
}

TEMPLATE_TEST_CASE("some heads of a layer are those heads of all of it, with dropout too", "", float, bfloat16) {
  using T = TestType;
  std::vector<std::int64_t> const ids{7, 3};
  ops::dropout_site const drop{0.3, {1, 2}, 4, ids};
  constexpr std::int64_t rows = 2 * 40;
  at_each_level([&] {
    auto const qkv = random_tensor<T>({rows, 3 * 48}, 1);
    auto const dy = random_tensor<T>({rows, 48}, 2);
    auto const run = [&](tensor<T> const& from, tensor<T> const& slope, ops::attention_shape const& what) {
      arena<host> scratch;
      tensor<T> y(shape{rows, what.channels});
      tensor<ops::accumulate_t<T>> lse(shape{2, what.heads, 40});
      std::pair<tensor<T>, tensor<T>> out{shape{rows, what.channels}, shape{rows, 3 * what.channels}};
      kernels::causal_attention(out.first.view(), lse, from, what, scratch, drop);
      kernels::causal_attention_backward(out.second.view(), slope, out.first, lse, from, what, scratch, drop);
      return out;
    };
    auto const all = run(qkv, dy, {2, 40, 3, 48});
    tensor<T> some(shape{rows, 3 * 32});  // heads 1 and 2 of 3
    tensor<T> slope(shape{rows, 32});
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t third = 0; third < 3; ++third) {
        std::copy_n(qkv.span().data() + row * 144 + third * 48 + 16, 32, some.span().data() + row * 96 + third * 32);
      }
      std::copy_n(dy.span().data() + row * 48 + 16, 32, slope.span().data() + row * 32);
    }
    auto const part = run(some, slope, {2, 40, 2, 32, 1});
    bool same = true;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t c = 0; c < 32; ++c) {
        same = same && part.first[row * 32 + c] == all.first[row * 48 + 16 + c];
        for (std::int64_t third = 0; third < 3; ++third) {
          same = same && part.second[row * 96 + third * 32 + c] == all.second[row * 144 + third * 48 + 16 + c];
        }
      }
    }
    CHECK(same);
  });
}

TEST_CASE("attention after the first call allocates no scratch memory") {
  problem<float> p{{1, 70, 2, 64}};
  p.forward();
  p.backward();
  p.scratch.reset();
  auto const peak = p.scratch.peak_bytes();
  p.forward();
  p.backward();
  CHECK(p.scratch.peak_bytes() == peak);
  CHECK(p.scratch.mark().taken == 0);
}

TEST_CASE("causal_attention refuses views that do not fit") {
  problem<float> p{{1, 8, 2, 16}};
  CHECK_THROWS_AS(kernels::causal_attention(p.y.view(), p.lse, p.y, p.what, p.scratch, {}), assertion_error);
  CHECK_THROWS_AS(kernels::causal_attention(p.y.view(), p.lse, p.qkv, {1, 8, 3, 16}, p.scratch, {}), assertion_error);
}
