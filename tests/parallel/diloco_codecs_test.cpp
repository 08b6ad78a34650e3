// test-sanitize: none
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/trireme.hpp"

// What parallel::diloco sends takes compressors: against a serial simulation of SparseLoCo that is written here.
// diloco_codecs_training_test.cpp has trainers.

using namespace trireme;
using namespace trireme::compression;

namespace {

using codec = one_of<none, top_k, error_feedback<top_k>, error_feedback<quantise<2>>, error_feedback<cast<bf16>>, dgc>;

constexpr std::int64_t of_a = 700, n = 2500;
constexpr float rate = 0.125F;

float target(std::int64_t step, int sample, std::int64_t i) {
  auto const bits = mix(static_cast<std::uint64_t>(step * 64 + sample) * 4096 + static_cast<std::uint64_t>(i)) >> 40U;
  return static_cast<float>(bits) * 0x1p-24F;
}

struct outcome {
  std::vector<std::vector<float>> weights;  // by rank
  std::vector<std::int64_t> places{0, 0};   // of the tensors in their bucket
  std::int64_t elements = 0;                // of the bucket
};

/// Two tensors in the caller's memory; each rank's gradient is that of the distance to targets of its own.
outcome train(int ranks, parallel::diloco const& how, codec const& with, std::int64_t steps) {
  outcome out{std::vector<std::vector<float>>(static_cast<std::size_t>(ranks))};
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    std::vector<float> w(n, 0.5F), g(n);
    std::vector<foreign_parameter<float>> list{
        {"a", tensor_view<float>(w.data(), {of_a}), tensor_view<float>(g.data(), {of_a})},
        {"b", tensor_view<float>(w.data() + of_a, {n - of_a}), tensor_view<float>(g.data() + of_a, {n - of_a})}};
    auto exchange = make_exchange(std::move(list), world, how, with);
    for (std::int64_t t = 0; t < steps; ++t) {
      exchange.begin(mean_over_ranks{});
      for (std::size_t i = 0; i < w.size(); ++i)
        g[i] = w[i] - target(t, world.rank(), static_cast<std::int64_t>(i));
      exchange.ready("b");
      exchange.ready("a");
      exchange.step(optim::sgd{.learning_rate = rate, .momentum = 0});
    }
    out.weights[static_cast<std::size_t>(world.rank())] = w;
    if (world.rank() != 0) return;
    for (auto const& entry : exchange.plan().entries()) out.places[entry.info.name == "a" ? 0 : 1] = entry.offset;
    out.elements = exchange.plan().buckets().front().elements;
  });
  return out;
}

/// What a slice of changes loses: everything but its largest elements, or but one of -1, 0 and 1 times the largest of
/// 256 neighbours.
void keep_largest(float* x, std::int64_t count, double ratio) {
  auto const k = static_cast<std::int64_t>(std::ceil(ratio * static_cast<double>(count)));
  std::vector<float> sizes(x, x + count);
  for (auto& each : sizes) each = std::abs(each);
  std::sort(sizes.rbegin(), sizes.rend());
  auto const least = sizes[static_cast<std::size_t>(k) - 1];
  for (std::int64_t i = 0; i < count; ++i) x[i] = std::abs(x[i]) < least ? 0 : x[i];
}
void keep_two_bits(float* x, std::int64_t count) {
  for (std::int64_t first = 0; first < count; first += 256) {
    auto const end = std::min(first + 256, count);
    float most = 0;
    for (auto i = first; i < end; ++i) most = std::max(most, std::abs(x[i]));
    for (auto i = first; i < end; ++i) x[i] = most > 0 ? most * std::round(x[i] / most) : 0;
  }
}

/// Serial: the ranks one after the other. Each adds to its change what it has not sent so far, sends what `lossy`
/// leaves of it, and keeps the rest; all move by the mean of what was sent.
template <class Lossy>
std::vector<std::vector<float>> simulated(outcome const& layout, int ranks, parallel::diloco const& how, float decay,
                                          std::int64_t steps, Lossy&& lossy) {
  auto const p = static_cast<std::size_t>(ranks);
  auto const unit = ranks * 1024;
  auto const length = (layout.elements + unit - 1) / unit * unit;
  std::vector<float> outer(n, 0.5F), velocity(n, 0);
  std::vector<std::vector<float>> w(p, outer), left(p, std::vector<float>(static_cast<std::size_t>(length), 0));
  auto const place = [&](std::size_t i) {
    auto const at = static_cast<std::int64_t>(i);
    return static_cast<std::size_t>(at < of_a ? layout.places[0] + at : layout.places[1] + at - of_a);
  };
  for (std::int64_t t = 0; t < steps; ++t) {
    for (std::size_t r = 0; r < p; ++r) {
      for (std::size_t i = 0; i < n; ++i)
        w[r][i] -= rate * (w[r][i] - target(t, static_cast<int>(r), static_cast<std::int64_t>(i)));
    }
    if ((t + 1) % how.period != 0) continue;
    std::vector<float> sum(static_cast<std::size_t>(length), 0);
    for (std::size_t r = 0; r < p; ++r) {
      std::vector<float> change(static_cast<std::size_t>(length), 0);
      for (std::size_t i = 0; i < n; ++i) change[place(i)] = outer[i] - w[r][i] + decay * left[r][place(i)];
      auto sent = change;
      for (std::int64_t slice = 0; slice < ranks; ++slice)
        lossy(sent.data() + slice * length / ranks, length / ranks);
      for (std::size_t i = 0; i < sent.size(); ++i) {
        left[r][i] = change[i] - sent[i];
        sum[i] += sent[i];
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      auto const mean = sum[place(i)] / static_cast<float>(ranks);
      velocity[i] = static_cast<float>(how.outer_momentum) * velocity[i] + mean;
      auto const nesterov = mean + static_cast<float>(how.outer_momentum) * velocity[i];
      outer[i] -= static_cast<float>(how.outer_learning_rate) * nesterov;
      for (auto& each : w) each[i] = outer[i];
    }
  }
  return w;
}

double furthest(std::vector<std::vector<float>> const& a, std::vector<std::vector<float>> const& b) {
  double most = 0;
  for (std::size_t r = 0; r < a.size(); ++r) {
    for (std::size_t i = 0; i < a[r].size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(a[r][i]) - static_cast<double>(b[r][i])));
  }
  return most;
}

parallel::diloco const averaged{.period = 3, .outer_learning_rate = 1, .outer_momentum = 0};

}  // namespace

TEST_CASE("diloco with compressors is a serial simulation of SparseLoCo", "[parallel][diloco]") {
  watchdog const guard("diloco with compressors");
  parallel::diloco const nesterov{.period = 4};
  for (int const ranks : {1, 2, 3, 4}) {
    for (auto const& how : {averaged, nesterov}) {
      INFO(ranks << " ranks, " << describe(how));
      auto const dense = train(ranks, how, codec{none{}}, 14);
      CHECK(furthest(dense.weights, simulated(dense, ranks, how, 1, 14, [](float*, std::int64_t) {})) < 2e-6);
      auto const sparse =
          train(ranks, how, codec{error_feedback<top_k>{.inner = {.ratio = 0.05F}, .decay = 0.95F}}, 14);
      CHECK(furthest(sparse.weights, simulated(sparse, ranks, how, 0.95F, 14, [](float* x, std::int64_t count) {
                       keep_largest(x, count, 0.05F);
                     })) < 4e-6);
      CHECK(furthest(dense.weights, sparse.weights) > 1e-3);
      auto const two =
          train(ranks, how, codec{error_feedback<quantise<2>>{{.rounding = code_rounding::nearest}}}, 14);
      CHECK(furthest(two.weights, simulated(two, ranks, how, 1, 14, keep_two_bits)) < 4e-6);
    }
  }
}

TEST_CASE("top_k of everything changes no bit of diloco", "[parallel][diloco]") {
  for (int const ranks : {1, 2, 3}) {
    auto const dense = train(ranks, averaged, codec{none{}}, 10).weights;
    CHECK(train(ranks, averaged, codec{top_k{.ratio = 1}}, 10).weights == dense);
    CHECK(train(ranks, averaged, codec{error_feedback<top_k>{.inner = {.ratio = 1}}}, 10).weights == dense);
  }
}

TEST_CASE("ranks of diloco have equal bits after a coded outer step", "[parallel][diloco]") {
  for (auto const& with : {codec{error_feedback<top_k>{}}, codec{error_feedback<cast<bf16>>{}},
                           codec{error_feedback<quantise<2>>{{.rounding = code_rounding::nearest}}}}) {
    INFO(describe(with));
    auto const met = train(3, averaged, with, 9).weights;
    CHECK((met[0] == met[1] && met[1] == met[2]));
    auto const apart = train(3, averaged, with, 10).weights;
    CHECK_FALSE(apart[0] == apart[1]);
  }
}
