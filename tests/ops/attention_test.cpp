#include "trireme/ops/host/attention.hpp"

#include "trireme/ops/host/visible_keys.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

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
  tensor<std::int32_t> seen{};  // (batch, context, 2), or empty

  void forward() { kernels::attention(y.view(), lse, qkv, what, scratch, drop, seen); }
  void backward() { kernels::attention_backward(dqkv.view(), dy, y, lse, qkv, what, scratch, drop, seen); }

  /// Whether the mask allows a row of a sample to attend to a column.
  bool sees(std::int64_t sample, std::int64_t row, std::int64_t col) const {
    auto const& [causal, window] = what.mask;
    if (causal && col > row) return false;
    if (window > 0 && std::abs(row - col) >= window) return false;
    auto const at = 2 * (sample * what.context + row);
    return seen.view().empty() || (seen[at] <= col && col < seen[at + 1]);
  }
};

// Attention by its definition, row by row.
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
        std::vector<double> weight(static_cast<std::size_t>(context));
        double mass = 0;
        for (std::int64_t col = 0; col < context; ++col) {
          if (!p.sees(b, row, col)) continue;
          double score = 0;
          for (std::int64_t d = 0; d < width; ++d) score += at(row, 0, d) * at(col, 1, d);
          mass += weight[static_cast<std::size_t>(col)] = std::exp(score / std::sqrt(static_cast<double>(width)));
        }
        for (std::int64_t col = 0; col < context; ++col) {
          if (!p.sees(b, row, col)) continue;
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

// Samples of two lengths, the second one padded in front; or documents of 1, 2, 3, ... positions.
enum class limits { none, lengths, documents };

template <class T>
problem<T> problem_of(ops::attention_shape const& what, ops::dropout_site const& drop, limits how) {
  problem<T> out{what, drop};
  if (how == limits::none) return out;
  out.seen = tensor<std::int32_t>(shape{what.batch, what.context, 2});
  auto const context = static_cast<std::int32_t>(what.context);
  for (std::int64_t b = 0; b < what.batch; ++b) {
    std::int32_t first = 0, behind = 1;
    for (std::int32_t row = 0; row < context; ++row) {
      if (row == behind) first = std::exchange(behind, 2 * behind - first + 1);
      auto const at = 2 * (b * what.context + row);
      bool const documents = how == limits::documents;
      out.seen[at] = documents ? first : b == 0 ? 0 : context / 3;
      out.seen[at + 1] = documents ? std::min(behind, context) : b == 0 ? (context + 1) / 2 : context;
    }
  }
  return out;
}

template <class T>
void compare(ops::attention_shape what, ops::dropout_site drop, limits how = limits::none) {
  auto exact = problem_of<double>(what, drop, how);
  exact.forward();
  exact.backward();
  CHECK(distance(exact.y, by_definition(exact)) < 1e-13);
  at_each_level([&] {
    auto rounded = problem_of<T>(what, drop, how);
    rounded.forward();
    rounded.backward();
    CHECK(distance(rounded.y, exact.y) < tolerance<T>);
    for (std::int64_t i = 0; i < exact.lse.view().size(); ++i) {
      if (std::isfinite(exact.lse[i]))
        CHECK(std::abs(rounded.lse[i] - exact.lse[i]) < 10 * tolerance<float>);
      else
        CHECK(static_cast<double>(rounded.lse[i]) == exact.lse[i]);
    }
    CHECK(distance(rounded.dqkv, exact.dqkv) < tolerance<T>);
  });
}

std::vector<std::int64_t> const samples{7, 3};

}  // namespace

TEST_CASE("attention is its definition, in every type, at every CPU level") {
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

TEST_CASE("attention under any mask is its definition, in every type, at every CPU level") {
  for (auto const mask : {ops::attention_mask{.causal = false}, ops::attention_mask{.window = 1},
                          ops::attention_mask{.window = 5}, ops::attention_mask{.window = 33},
                          ops::attention_mask{.window = 70}, ops::attention_mask{.causal = false, .window = 3},
                          ops::attention_mask{.causal = false, .window = 40}, ops::attention_mask{}}) {
    for (auto const how : {limits::none, limits::lengths, limits::documents}) {
      if (mask == ops::attention_mask{} && how == limits::none) continue;
      for (auto what : {ops::attention_shape{2, 1, 1, 3}, ops::attention_shape{2, 33, 3, 60},
                        ops::attention_shape{2, 100, 1, 48}, ops::attention_shape{1, 131, 1, 20}}) {
        what.mask = mask;
        CAPTURE(mask.causal, mask.window, static_cast<int>(how), what.context);
        compare<float>(what, {}, how);
        compare<bfloat16>(what, {}, how);
        ops::dropout_site const drop{0.25, {11, 4}, 9, std::span(samples).first(static_cast<std::size_t>(what.batch))};
        compare<float>(what, drop, how);
        compare<bfloat16>(what, drop, how);
      }
    }
  }
}

TEST_CASE("gradients of masked attention agree with central differences") {
  for (auto const mask : {ops::attention_mask{.causal = false}, ops::attention_mask{.window = 4},
                          ops::attention_mask{.causal = false, .window = 9}}) {
    for (auto const how : {limits::none, limits::lengths, limits::documents}) {
      auto p = problem_of<double>({2, 35, 2, 6, 0, mask}, {0.3, {1, 2}, 3, samples}, how);
      p.forward();
      p.backward();
      for (std::int64_t const row : {0, 16, 31, 32, 34, 35, 69}) {
        auto const at = static_cast<std::size_t>(row * 18);
        CHECK(gradient_error(p.qkv.span().subspan(at, 18), p.dqkv.span().subspan(at, 18), [&] {
                p.forward();
                return inner(p.y.span(), p.dy.span());
              }) < 1e-6);
      }
    }
  }
}

TEMPLATE_TEST_CASE("masked keys are not read, and the result of a row without keys is 0", "", float, bfloat16) {
  using T = TestType;
  at_each_level([] {
    for (bool const causal : {false, true}) {
      auto p = problem_of<T>({2, 70, 2, 16, 0, {.causal = causal}}, {}, limits::lengths);
      p.forward();
      p.backward();
      std::vector<T> const y(p.y.span().begin(), p.y.span().end()), dqkv(p.dqkv.span().begin(), p.dqkv.span().end());
      for (std::int64_t row = 35; row < 70; ++row)  // of the first sample: keys and values after its end
        for (std::int64_t c = 16; c < 48; ++c) p.qkv[row * 48 + c] = T(3);
      p.forward();
      p.backward();
      CHECK(same_bits<T>(std::span(y).first(35 * 16), p.y.span().first(35 * 16)));
      CHECK(same_bits<T>(std::span(dqkv).first(35 * 48), p.dqkv.span().first(35 * 48)));
      for (std::int64_t row = 70; row < 70 + 23 && causal; ++row) {  // before the second sample's first key
        for (std::int64_t c = 0; c < 16; ++c) CHECK(p.y[row * 16 + c] == T(0));
        for (std::int64_t c = 0; c < 48; ++c) CHECK(p.dqkv[row * 48 + c] == T(0));
        CHECK(p.lse[2 * 70 + row - 70] == -std::numeric_limits<float>::infinity());
      }
    }
  });
}

TEST_CASE("gradients of attention agree with central differences") {
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

TEMPLATE_TEST_CASE("a layer of some heads computes the same as these heads of the whole layer, with dropout too", "",
                   float, bfloat16) {
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
      kernels::attention(out.first.view(), lse, from, what, scratch, drop);
      kernels::attention_backward(out.second.view(), slope, out.first, lse, from, what, scratch, drop);
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

TEST_CASE("tokens decide what each position attends to: not to padding, and not to another document") {
  auto const seen = [](std::vector<std::int32_t> const& words, ops::token_mask const& how) {
    auto const n = static_cast<std::int64_t>(words.size());
    std::vector<std::int32_t> out(2 * words.size());
    ops::host_visible_keys::visible_keys(tensor_view<std::int32_t>(out.data(), {1, n, 2}),
                                         tensor_view<std::int32_t const>(words.data(), {1, n}), how);
    return out;
  };
  using limits = std::vector<std::int32_t>;
  CHECK(seen({4, 5, 6}, {}) == limits{0, 3, 0, 3, 0, 3});
  CHECK(seen({0, 5, 6, 0}, {.padding = 0}) == limits{1, 3, 1, 3, 1, 3, 1, 3});
  CHECK(seen({5, 9, 9, 7, 4}, {.separator = 9}) == limits{0, 2, 0, 2, 2, 3, 3, 5, 3, 5});
  CHECK(seen({5, 9, 7, 0, 0}, {.padding = 0, .separator = 9}) == limits{0, 2, 0, 2, 2, 3, 2, 3, 2, 3});
  CHECK(seen({5, 9, 0}, {.padding = 0, .separator = 9}) == limits{0, 2, 0, 2, 2, 2});
  auto const empty = seen({0, 0}, {.padding = 0});
  CHECK(empty[0] >= empty[1]);
  CHECK_THROWS_WITH(seen({5, 0, 6}, {.padding = 0}),
                    "trireme::nn::attend: sample 0 of a micro-batch has the padding token 0 at position 1, between "
                    "words; pad samples at their ends only");
}

TEST_CASE("attention refuses views that do not fit") {
  problem<float> p{{1, 8, 2, 16}};
  CHECK_THROWS_AS(kernels::attention(p.y.view(), p.lse, p.y, p.what, p.scratch, {}), assertion_error);
  CHECK_THROWS_AS(kernels::attention(p.y.view(), p.lse, p.qkv, {1, 8, 3, 16}, p.scratch, {}), assertion_error);
  tensor<std::int32_t> const seen(shape{8});
  CHECK_THROWS_AS(kernels::attention(p.y.view(), p.lse, p.qkv, p.what, p.scratch, {}, seen), assertion_error);
}
