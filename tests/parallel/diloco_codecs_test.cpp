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
#include "trireme/comm/counted.hpp"
#include "trireme/comm/decorate.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/trireme.hpp"

// What parallel::diloco sends takes compressors: against a serial simulation of SparseLoCo that is written here.
// diloco_codecs_training_test.cpp has trainers.

using namespace trireme;
using namespace trireme::compression;

namespace {

using codec = one_of<none, top_k, error_feedback<top_k>, error_feedback<quantise<2>>, error_feedback<cast<bf16>>, dgc>;

constexpr float rate = 0.125F;
constexpr std::int64_t sizes[] = {700, 1800, 900, 1100, 500, 1000};
constexpr std::size_t n = 6000;

float target(std::int64_t step, std::size_t sample, std::size_t i) {
  auto const bits = mix(static_cast<std::uint64_t>(step * 64) + sample * 8192 * 4096 + i) >> 40U;
  return static_cast<float>(bits) * 0x1p-24F;
}

struct outcome {
  std::vector<std::vector<float>> weights;           // by rank
  std::vector<std::pair<int, std::int64_t>> places;  // by weight: its bucket, and where it is there
  std::vector<std::int64_t> elements;                // by bucket
  std::vector<int> fragments;                        // by bucket
  std::vector<std::uint64_t> bytes;                  // by step: what rank 0 sent in it
};

/// Tensors in the caller's memory; each rank's gradient is that of the distance to targets of its own.
outcome train(int ranks, parallel::diloco const& how, codec const& with, std::int64_t steps) {
  outcome out;
  out.weights.resize(static_cast<std::size_t>(ranks));
  launch(comm::decorate(comm::threads{.ranks = ranks}, comm::counted{}), [&](auto& world) {
    std::vector<float> w(n, 0.5F), g(n);
    std::vector<foreign_parameter<float>> list;
    std::int64_t first = 0;
    for (auto const size : sizes) {
      list.push_back({std::string(1, static_cast<char>('a' + list.size())),
                      tensor_view<float>(w.data() + first, {size}), tensor_view<float>(g.data() + first, {size})});
      first += size;
    }
    auto const rank = static_cast<std::size_t>(world.rank());
    auto exchange = make_exchange(std::move(list), world, how, with);
    for (std::int64_t t = 0; t < steps; ++t) {
      exchange.begin(mean_over_ranks{});
      for (std::size_t i = 0; i < n; ++i) g[i] = w[i] - target(t, rank, i);
      for (auto const& entry : exchange.plan().entries()) exchange.ready(entry.info.name);
      auto const bytes = [&] {
        std::uint64_t sum = 0;
        for (auto const& each : comm::traffic_table(world.counts()).by_operation) sum += each.bytes;
        return sum;
      };
      auto const before = bytes();
      exchange.step(optim::sgd{.learning_rate = rate, .momentum = 0});
      if (rank == 0) out.bytes.push_back(bytes() - before);
    }
    out.weights[rank] = w;
    if (rank != 0) return;
    for (auto const& entry : exchange.plan().entries()) {
      for (std::int64_t i = 0; i < entry.size(); ++i) out.places.push_back({entry.bucket, entry.offset + i});
    }
    for (auto const& each : exchange.plan().buckets()) {
      out.elements.push_back(each.elements);
      out.fragments.push_back(exchange.plan().at(each.entries.front()).fragment);
    }
  });
  return out;
}

/// What a slice of changes loses: everything but its largest elements, or but one of -1, 0 and 1 times the largest of
/// 256 neighbours.
void keep_largest(float* x, std::int64_t count, double ratio) {
  auto const k = static_cast<std::int64_t>(std::ceil(ratio * static_cast<double>(count)));
  std::vector<float> magnitudes(x, x + count);
  for (auto& each : magnitudes) each = std::abs(each);
  std::sort(magnitudes.rbegin(), magnitudes.rend());
  auto const least = magnitudes[static_cast<std::size_t>(k) - 1];
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
/// leaves of it, and keeps the rest; so many steps later all move by the mean of what was sent.
template <class Lossy>
std::vector<std::vector<float>> simulated(outcome const& layout, int ranks, parallel::diloco const& how, float decay,
                                          std::int64_t steps, Lossy&& lossy) {
  auto const p = static_cast<std::size_t>(ranks);
  struct bucket {
    std::int64_t begun = -1;
    std::vector<float> sum;
    std::vector<std::vector<float>> left;  // by rank
  };
  std::vector<bucket> buckets(layout.elements.size());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    auto const unit = ranks * 1024;
    buckets[b].sum.resize(static_cast<std::size_t>((layout.elements[b] + unit - 1) / unit * unit));
    buckets[b].left.assign(p, buckets[b].sum);
  }
  std::vector<float> outer(n, 0.5F), velocity(n, 0);
  std::vector<std::vector<float>> w(p, outer), sent(p, outer);
  auto const each_of = [&](std::size_t b, auto&& f) {
    for (std::size_t i = 0; i < n; ++i) {
      if (layout.places[i].first == static_cast<int>(b)) f(i, static_cast<std::size_t>(layout.places[i].second));
    }
  };
  auto const momentum = static_cast<float>(how.outer_momentum);
  auto const meet = [&](std::size_t b) {
    each_of(b, [&](std::size_t i, std::size_t at) {
      auto const mean = buckets[b].sum[at] / static_cast<float>(ranks);
      velocity[i] = momentum * velocity[i] + mean;
      outer[i] -= static_cast<float>(how.outer_learning_rate) * (mean + momentum * velocity[i]);
      for (std::size_t r = 0; r < p; ++r) w[r][i] = outer[i] + (w[r][i] - sent[r][i]);
    });
    buckets[b].begun = -1;
  };
  for (std::int64_t t = 0; t < steps; ++t) {
    for (std::size_t r = 0; r < p; ++r) {
      for (std::size_t i = 0; i < n; ++i) w[r][i] -= rate * (w[r][i] - target(t, r, i));
    }
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      auto& it = buckets[b];
      if (it.begun >= 0 && t == it.begun + how.delay) meet(b);
      if ((t + 1) % how.period != layout.fragments[b] * how.period / how.fragments) continue;
      it.begun = t;
      std::fill(it.sum.begin(), it.sum.end(), 0.0F);
      for (std::size_t r = 0; r < p; ++r) {
        auto change = it.sum;
        std::fill(change.begin(), change.end(), 0.0F);
        each_of(b, [&](std::size_t i, std::size_t at) {
          sent[r][i] = w[r][i];
          change[at] = outer[i] - w[r][i] + decay * it.left[r][at];
        });
        auto kept = change;
        auto const slice = static_cast<std::int64_t>(kept.size()) / ranks;
        for (std::int64_t s = 0; s < ranks; ++s) lossy(kept.data() + s * slice, slice);
        for (std::size_t i = 0; i < kept.size(); ++i) {
          it.left[r][i] = change[i] - kept[i];
          it.sum[i] += kept[i];
        }
      }
      if (how.delay == 0) meet(b);
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

int differing(std::vector<std::vector<float>> const& a, std::vector<std::vector<float>> const& b, float more_than) {
  int count = 0;
  for (std::size_t r = 0; r < a.size(); ++r) {
    for (std::size_t i = 0; i < a[r].size(); ++i) count += std::abs(a[r][i] - b[r][i]) > more_than ? 1 : 0;
  }
  return count;
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
      // Where a change is close to half of its scale, rounding decides to which side it goes, and then the next scale.
      auto const two = train(ranks, how, codec{error_feedback<quantise<2>>{{.rounding = code_rounding::nearest}}}, 9);
      auto const expected = simulated(two, ranks, how, 1, 9, keep_two_bits);
      CHECK(differing(two.weights, expected, 1e-4F) < 150 * ranks);  // of 6000 a rank
      CHECK(differing(two.weights, dense.weights, 1e-4F) > 1000 * ranks);
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

TEST_CASE("fragments and delays of diloco are their serial simulation", "[parallel][diloco]") {
  watchdog const guard("streaming diloco");
  auto const nothing = [](float*, std::int64_t) {};
  for (int const ranks : {1, 2, 3}) {
    for (auto const& [fragments, delay] : {std::pair{1, 2}, std::pair{3, 0}, std::pair{4, 1}, std::pair{4, 5}}) {
      parallel::diloco const how{.period = 6, .fragments = fragments, .delay = delay};
      INFO(ranks << " ranks, " << describe(how));
      auto const dense = train(ranks, how, codec{none{}}, 23);
      CHECK(furthest(dense.weights, simulated(dense, ranks, how, 1, 23, nothing)) < 4e-6);
      auto const sparse = train(ranks, how, codec{error_feedback<top_k>{.inner = {.ratio = 0.05F}}}, 23);
      CHECK(furthest(sparse.weights, simulated(sparse, ranks, how, 1, 23, [](float* x, std::int64_t count) {
                       keep_largest(x, count, 0.05F);
                     })) < 8e-6);
    }
  }
}

TEST_CASE("the most bytes of a step fall with the number of fragments", "[parallel][diloco]") {
  auto const most = [](outcome const& of) { return *std::max_element(of.bytes.begin(), of.bytes.end()); };
  auto const all = [](outcome const& of) {
    std::uint64_t sum = 0;
    for (auto const each : of.bytes) sum += each;
    return sum;
  };
  auto const whole = train(2, {.period = 6}, codec{none{}}, 12);
  auto const parts = train(2, {.period = 6, .fragments = 6}, codec{none{}}, 12);
  auto const least = *std::min_element(whole.bytes.begin(), whole.bytes.end());  // the vote
  INFO(most(whole) << " and " << most(parts) << " bytes, with a vote of " << least);
  CHECK(most(parts) - least < (most(whole) - least) * 2 / 5);  // tensors are not split: the largest is 0.3 of all
  CHECK(static_cast<double>(all(parts)) < 1.6 * static_cast<double>(all(whole)));  // whole blocks, of small tensors
}

TEST_CASE("impossible fragments and delays are refused", "[parallel][diloco]") {
  CHECK(contains(sentence_of([] { train(1, {.period = 4, .fragments = 5}, codec{}, 1); }),
                 "diloco: .fragments = 5 with .period = 4; set the number of parts from 1 to the period"));
  CHECK(contains(sentence_of([] { train(1, {.period = 4, .delay = 4}, codec{}, 1); }),
                 "diloco: .delay = 4 with .period = 4; set a number of steps from 0, less than the period"));
}
