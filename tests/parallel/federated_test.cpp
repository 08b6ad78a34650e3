// test-sanitize: none
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/federated.hpp"
#include "trireme/train/make_exchange.hpp"

// Federated averaging: each round beside the same clients trained one after the other.

using namespace trireme;
using policy_cases::on_mlp;

namespace {

using codec = compression::one_of<compression::none, compression::error_feedback<compression::top_k>>;
using inner_optimizer = optim::any<environment<precision::fp32>>;

constexpr int clients = 5;
constexpr std::int64_t width = 3, period = 6;

/// Clients have steps of different sizes, and different numbers of them in a round; nobody has as many as it has.
std::int64_t batch_of(int client) { return 3 + client % 2; }
std::int64_t steps_of(int client) { return 1 + client; }
std::int64_t samples_of(int client) { return batch_of(client) * steps_of(client); }
float number(int client, std::int64_t i) {
  return unit_float(random_block({7, static_cast<std::uint64_t>(client)}, 1, static_cast<std::uint64_t>(i), 0)[0]) -
         0.5F;
}
/// A client's samples: y is a sum of x, and an offset of its own.
struct client_data {
  std::vector<float> x, y;
  explicit client_data(int client) {
    for (std::int64_t i = 0; i < samples_of(client); ++i) {
      float sum = 0.2F * static_cast<float>(client);
      for (std::int64_t k = 0; k < width; ++k) {
        x.push_back(number(client, i * width + k));
        sum += x.back();
      }
      y.push_back(sum);
    }
  }
  /// Of one step of a round: none after the client's last one.
  [[nodiscard]] std::vector<samples> at(std::int64_t step, int client) const {
    auto const batch = batch_of(client), first = step % period * batch;
    if (first >= samples_of(client)) return {};
    return {samples{erase_type(tensor_view<float const>(x.data() + first * width, {batch, width})),
                    erase_type(tensor_view<float const>(y.data() + first, {batch, 1})),
                    {}}};
  }
};

nn::mlp const model{.inputs = width, .hidden = {8}, .outputs = 1};

std::vector<float> weights_of(auto& trainer) {
  std::vector<float> out;
  trainer.for_each_parameter([&](std::string const&, shape const&, std::span<float const> values) {
    out.insert(out.end(), values.begin(), values.end());
  });
  return out;
}

/// Rounds on one rank: the chosen clients train one after the other from the same weights.
std::vector<double> reference(parallel::federated const& how, double rate, std::int64_t rounds) {
  std::vector<double> global;
  launch(comm::threads{.ranks = 1}, [&](auto& world) {
    auto trainer = make_trainer(model, world, optim::sgd{.learning_rate = rate, .momentum = 0});
    auto const start = weights_of(trainer);
    global.assign(start.begin(), start.end());
    for (std::int64_t round = 0; round < rounds; ++round) {
      std::vector<double> sum(global.size());
      double all = 0;
      for (int c = 0; c < clients; ++c) {
        if (!how.chooses(round, c, clients)) continue;
        client_data const data(c);
        auto const put = [&](auto const& from) {
          std::size_t at = 0;
          trainer.change_parameters([&](std::string const&, shape const&, std::span<float> values) {
            for (auto& value : values) value = static_cast<float>(from(at++));
          });
        };
        put([&](std::size_t i) { return global[i]; });
        for (std::int64_t step = 0; step < period; ++step) {
          auto const here = data.at(step, c);
          if (here.empty()) break;
          auto const before = weights_of(trainer);
          trainer.step(here);
          auto const after = weights_of(trainer);
          put([&](std::size_t i) { return after[i] - rate * how.proximal * (before[i] - global[i]); });
        }
        auto const w = weights_of(trainer);
        for (std::size_t i = 0; i < w.size(); ++i) sum[i] += static_cast<double>(samples_of(c)) * w[i];
        all += static_cast<double>(samples_of(c));
      }
      for (std::size_t i = 0; i < sum.size(); ++i) global[i] = sum[i] / all;
    }
  });
  return global;
}

/// The same by ranks. @returns the largest difference to the reference, over all ranks.
double difference(parallel::federated const& how, std::int64_t rounds) {
  double const rate = 0.1;
  auto const expected = reference(how, rate, rounds);
  double most = 0;
  std::mutex one;
  launch(comm::threads{.ranks = clients}, [&](auto& world) {
    auto trainer = make_trainer(model, world, optim::sgd{.learning_rate = rate, .momentum = 0}, how);
    client_data const data(world.rank());
    for (std::int64_t step = 0; step < rounds * period; ++step) {
      bool const in = how.chooses(step / period, world.rank(), clients);
      trainer.step(in ? data.at(step, world.rank()) : std::vector<samples>{});
    }
    auto const found = weights_of(trainer);
    std::lock_guard const alone(one);
    for (std::size_t i = 0; i < found.size(); ++i) most = std::max(most, std::abs(found[i] - expected[i]));
  });
  return most;
}

}  // namespace

TEST_CASE("federated: rounds equal clients trained one after the other, averaged by their samples", "[parallel]") {
  watchdog const guard("federated rounds");
  CHECK(difference({.period = period}, 3) < 1e-6);
  CHECK(difference({.period = period, .chosen = 2, .seed = 3}, 6) < 1e-6);
  CHECK(difference({.period = period, .chosen = 3, .proximal = 0.5}, 4) < 1e-6);
}

TEST_CASE("federated: each set of clients is chosen equally often", "[parallel]") {
  parallel::federated const how{.chosen = 2, .seed = 11};
  std::vector<int> seen(10);
  for (std::int64_t round = 0; round < 20'000; ++round) {
    int set = 0, count = 0;
    for (int c = 0, bit = 1; c < 5; ++c, bit *= 2) {
      if (!how.chooses(round, c, 5)) continue;
      set += bit;
      ++count;
    }
    REQUIRE(count == 2);
    int const sets[] = {3, 5, 6, 9, 10, 12, 17, 18, 20, 24};
    ++seen[static_cast<std::size_t>(std::find(std::begin(sets), std::end(sets), set) - sets)];
  }
  for (int const each : seen) CHECK(std::abs(each - 2000) < 200);  // 4.7 standard deviations
  CHECK(parallel::federated{}.chooses(0, 4, 5));
}

TEST_CASE("federated: an own loop, momentum and weight decay leave a client without samples as it is", "[parallel]") {
  watchdog const guard("federated own loop");
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    std::vector<float> w(10, 1), g(10, 1);
    std::vector<foreign_parameter<float>> list{{"w", tensor_view<float>(w), tensor_view<float>(g)}};
    auto exchange = make_exchange(list, world, parallel::federated{.period = 3});
    optim::sgd const how{.learning_rate = 0.5, .momentum = 0.9, .weight_decay = 0.1};
    bool const first = world.rank() == 0;
    auto const step = [&](std::int64_t samples) {
      exchange.begin(samples);
      if (samples > 0) exchange.ready("w");
      exchange.step(how);
    };
    step(first ? 3 : 1);
    auto const after_one = w[0];
    if (after_one != 0.5F) throw error(text("a step alone gives ", after_one));
    step(first ? 0 : 1);
    if (first && w[0] != after_one) throw error("a step without samples changed the values");
    auto const before = w[0];
    step(0);  // no update anywhere, and the round ends
    float values[] = {before, before};
    world.broadcast(tensor_view<float>(values, {1}), 0);
    world.broadcast(tensor_view<float>(values + 1, {1}), 1);
    auto const mean = (3 * values[0] + 2 * values[1]) / 5;
    if (std::abs(w[0] - mean) > 1e-6F) throw error(text("the mean is ", mean, ", not ", w[0]));
  });
}

TEST_CASE("federated: learns with and without a compressor, resumes bit for bit and sends what is planned",
          "[parallel]") {
  watchdog guard("federated trainings", std::chrono::seconds(240));
  inner_optimizer const adaptive{optim::adamw{.learning_rate = 1e-2, .clip = 0.5}};
  parallel::federated const plain{.period = 4, .bucket_bytes = 2048};
  parallel::federated const with_term{.period = 5, .chosen = 2, .proximal = 0.01, .bucket_bytes = 2048};
  codec const sparse{compression::error_feedback<compression::top_k>{.inner = {.ratio = 0.2F}}};
  for (int const ranks : {1, 2, 3}) {
    INFO(ranks << " ranks");
    CHECK(on_mlp.holds_by_threads(ranks, 0.95, adaptive, plain, codec{compression::none{}}) == "");
    if (ranks > 1) CHECK(on_mlp.holds_by_threads(ranks, 0.95, adaptive, with_term, sparse) == "");
  }
  CHECK(contains(on_mlp.moves({2, 3}, adaptive, plain, codec{compression::none{}}),
                 "is of 2 learners, and this run has 3"));
}

TEST_CASE("federated: a client may be a mesh of ranks", "[parallel]") {
  watchdog const guard("federated meshes");
  auto const run = [](int ranks, auto const& how) {
    std::vector<float> out;
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(model, world, optim::sgd{.learning_rate = 0.1, .momentum = 0}, how);
      int const client = world.rank() * 2 / ranks;
      auto const of_client = ranks / 2;  // ranks, which divide each of its steps
      std::vector<float> x, y;
      for (std::int64_t i = 0; i < 24; ++i) {
        for (std::int64_t k = 0; k < width; ++k) x.push_back(number(client, i * width + k));
        y.push_back(x.back() + 0.1F * static_cast<float>(client));
      }
      for (std::int64_t step = 0; step < 8; ++step) {
        std::int64_t const n = (client == 0 ? 4 : 2) / of_client,
                           first = 4 * (step % 4) + n * (world.rank() % of_client);
        trainer.step(samples{erase_type(tensor_view<float const>(x.data() + first * width, {n, width})),
                             erase_type(tensor_view<float const>(y.data() + first, {n, 1})),
                             {}});
      }
      auto const found = weights_of(trainer);
      if (world.rank() == 0) out = found;
    });
    return out;
  };
  parallel::federated const how{.period = 4, .ways = 2};
  auto const alone = run(2, how);
  auto const far = [&](std::vector<float> const& other) {
    float most = 0;
    for (std::size_t i = 0; i < alone.size(); ++i) most = std::max(most, std::abs(alone[i] - other.at(i)));
    return most;
  };
  CHECK(far(run(4, parallel::mesh{how, parallel::zero<1>{.ways = 2}})) < 1e-6F);
  CHECK(contains(sentence_of([&] {
                   static_cast<void>(run(4, parallel::mesh{how, parallel::data{.ways = 2}}));
                 }),
                 "use parallel::zero within a learner"));
}

TEST_CASE("federated: what cannot be is one sentence", "[parallel]") {
  CHECK(contains(sentence_of([] { parallel::federated{.period = 0}.validate(); }), "federated: .period is 0"));
  CHECK(contains(sentence_of([] { parallel::federated{.proximal = -1}.validate(); }), "federated: .proximal is -1"));
  CHECK(contains(sentence_of([] {
                   static_cast<void>(
                       on_mlp.state_by_threads(2, optim::sgd{.momentum = 0}, parallel::federated{.chosen = 3}));
                 }),
                 ".chosen = 3 of 2 clients; choose at most as many as there are"));
}
