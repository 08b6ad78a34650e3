// test-timeout: 300
// test-sanitize: none
// Optimizers of whole tensors, groups and frozen parameters under the strategies. All of them as optim::any, so that
// one trainer is compiled for each strategy.
#include "trireme/train/optimizer_state.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../support/small_gpt.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/make_exchange.hpp"
#include "trireme/train/make_trainer.hpp"
#include "trireme/train/plan.hpp"

using namespace trireme;

namespace {

using any_optimizer = optim::any<environment<precision::fp32>>;

nn::mlp const model{.inputs = 3, .hidden = {20, 50}, .outputs = 2};

struct points {
  std::vector<float> inputs, targets;
  static constexpr std::int64_t count = 24;
  points() {
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < 3; ++j) inputs.push_back(std::sin(static_cast<float>(3 * i + j)));
      targets.push_back(inputs[static_cast<std::size_t>(3 * i)] * 0.7F);
      targets.push_back(std::cos(static_cast<float>(i)));
    }
  }
  [[nodiscard]] auto data() const {
    return data::in_memory(tensor_view<float const>(inputs.data(), {count, 3}),
                           tensor_view<float const>(targets.data(), {count, 2}));
  }
};

enum class strategy_choice { data, zero1, zero2, zero3 };
constexpr strategy_choice all_strategies[] = {strategy_choice::data, strategy_choice::zero1, strategy_choice::zero2,
                                              strategy_choice::zero3};

struct plan_of_run {
  strategy_choice strategy = strategy_choice::data;
  int ranks = 1;
  bool reproducible = true;
  std::int64_t first = 0, steps = 6;  // from the checkpoint in `load`, if there is one
  std::string load{}, save{};
};
struct outcome {
  std::uint64_t hash = 0;
  double loss = 0;  // over all samples, at the end
  std::vector<float> values;
  std::int64_t moments = 0, gradients = 0;  // bytes over all ranks
  std::uint64_t sent = 0;                   // by rank 0 in the last step
};

template <class Strategy>
outcome run_with(Strategy strategy, any_optimizer const& optimizer, plan_of_run const& how) {
  strategy.bucket_bytes = 1 << 12;
  strategy.reproducible = how.reproducible;
  points const samples;
  outcome out;
  watchdog const watch("whole tensors");
  launch(comm::threads{.ranks = how.ranks}, [&](auto& world) {
    auto trainer = make_trainer(model, optimizer, world, strategy);
    trainer.initialise(3);
    if (!how.load.empty()) trainer.load(how.load);
    std::uint64_t before = 0, after = 0;
    trainer.on_step([&](step_report const&) {
      before = after;
      after = world.traffic().bytes_sent;
    });
    trainer.fit(samples.data(), {.steps = 12, .batch = 8, .micro_batches = 8, .stop_after = how.steps});
    if (!how.save.empty()) trainer.save(how.save);
    auto const hash = trainer.state_hash();
    std::int64_t bytes[] = {trainer.moment_bytes(), trainer.exchange().memory().gradients};
    world.all_reduce(tensor_view<std::int64_t>(bytes, shape{2}), reduction::sum{});
    auto const loss = trainer.evaluate(samples.data());
    auto const predicted = trainer.predict(tensor_view<float const>(samples.inputs.data(), {points::count, 3}));
    if (world.rank() > 0) return;
    out.hash = hash;
    out.loss = loss;
    out.values.assign(predicted.span().begin(), predicted.span().end());
    out.moments = bytes[0];
    out.gradients = bytes[1];
    out.sent = after - before;
  });
  return out;
}
outcome run(any_optimizer const& optimizer, plan_of_run const& how) {
  switch (how.strategy) {
    case strategy_choice::data:
      return run_with(parallel::data{}, optimizer, how);
    case strategy_choice::zero1:
      return run_with(parallel::zero<1>{}, optimizer, how);
    case strategy_choice::zero2:
      return run_with(parallel::zero<2>{}, optimizer, how);
    default:
      return run_with(parallel::zero<3>{}, optimizer, how);
  }
}

struct named {
  char const* name;
  any_optimizer optimizer;
};
std::vector<named> const optimizers{
    {"adamw", optim::adamw{.learning_rate = 1e-2, .clip = 0.1}},
    {"lamb", optim::lamb{.learning_rate = 2e-2, .clip = 0.1}},
    {"muon", optim::muon{.clip = 0.1}},
    {"adafactor", optim::adafactor{.learning_rate = 5e-2, .momentum = 0.9}},
    {"muon in groups",
     optim::groups{optim::muon{}, {{.names = "layers.1.*", .frozen = true}, {.names = "*.bias", .learning_rate = 2}}}},
    {"adamw in groups",
     optim::groups{optim::adamw{.learning_rate = 1e-2},
                   {{.names = "layers.1.weight", .frozen = true}, {.names = "*.bias", .weight_decay = 0.1}}}}};

}  // namespace

TEST_CASE("with pairwise sums each optimizer has the same bits under all strategies on 1, 2 and 4 ranks", "[train]") {
  for (auto const& [name, optimizer] : optimizers) {
    auto const serial = run(optimizer, {});
    for (auto const strategy : all_strategies) {
      for (int const ranks : {2, 4}) {
        INFO(name << ", strategy " << static_cast<int>(strategy) << " on " << ranks << " ranks");
        auto const found = run(optimizer, {.strategy = strategy, .ranks = ranks});
        CHECK(found.hash == serial.hash);
        CHECK(found.values == serial.values);
        CHECK(found.loss == Approx(serial.loss).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("with ordinary sums each optimizer on 3 ranks is close to serial training", "[train]") {
  for (auto const& [name, optimizer] : optimizers) {
    auto const serial = run(optimizer, {.reproducible = false});
    auto const start = run(optimizer, {.reproducible = false, .steps = 1});
    CHECK(serial.loss < start.loss);
    for (auto const strategy : all_strategies) {
      INFO(name << ", strategy " << static_cast<int>(strategy));
      auto const found = run(optimizer, {.strategy = strategy, .ranks = 3, .reproducible = false});
      CHECK(found.loss == Approx(serial.loss).epsilon(1e-4));
      for (std::size_t i = 0; i < serial.values.size(); ++i)
        CHECK(found.values[i] == Approx(serial.values[i]).margin(2e-4));
    }
  }
}

TEST_CASE("a run resumes under another strategy and number of ranks as if it had never stopped", "[train]") {
  struct move {
    strategy_choice from;
    int from_ranks;
    strategy_choice to;
    int to_ranks;
  };
  move const moves[] = {{strategy_choice::data, 4, strategy_choice::zero1, 2},
                        {strategy_choice::zero1, 2, strategy_choice::zero3, 4},
                        {strategy_choice::zero3, 4, strategy_choice::data, 1},
                        {strategy_choice::zero2, 2, strategy_choice::zero1, 4}};
  for (auto const& [name, optimizer] : optimizers) {
    auto const straight = run(optimizer, {});
    for (auto const& [from, from_ranks, to, to_ranks] : moves) {
      INFO(name << ", from " << static_cast<int>(from) << " to " << static_cast<int>(to));
      scratch const folder;
      run(optimizer, {.strategy = from, .ranks = from_ranks, .steps = 3, .save = folder.path()});
      CHECK(run(optimizer, {.strategy = to, .ranks = to_ranks, .load = folder.path()}).hash == straight.hash);
    }
  }
  // Three ranks have no tree: their checkpoint is loaded unchanged.
  for (auto const& [name, optimizer] : optimizers) {
    INFO(name);
    scratch const folder;
    auto const saved = run(optimizer, {.ranks = 3, .reproducible = false, .steps = 3, .save = folder.path()});
    auto const loaded =
        run(optimizer, {.strategy = strategy_choice::zero1, .ranks = 2, .steps = 3, .load = folder.path()});
    CHECK(loaded.hash == saved.hash);
  }
}

TEST_CASE("each moment of a whole tensor is on one rank only where optimizer state is sharded", "[train]") {
  auto const numbers = 3 * 20 + 20 + 20 * 50 + 50 + 50 * 2 + 2;
  auto const lamb = optim::lamb{};
  for (auto const strategy : {strategy_choice::zero1, strategy_choice::zero3})
    CHECK(run(lamb, {.strategy = strategy, .ranks = 4}).moments == 2 * 4 * numbers);
  CHECK(run(lamb, {.ranks = 4}).moments == 4 * 2 * 4 * numbers);
}

TEST_CASE("frozen parameters have no gradients and no moments, and are not sent", "[train]") {
  optim::groups const unfrozen{optim::adamw{}, {}};
  optim::groups const frozen{optim::adamw{}, {{.names = "layers.1.*", .frozen = true}}};
  for (auto const strategy : all_strategies) {
    plan_of_run const how{.strategy = strategy, .ranks = 4};
    auto const all = run(unfrozen, how);
    auto const some = run(frozen, how);
    INFO("strategy " << static_cast<int>(strategy) << ": moments " << all.moments << " and " << some.moments
                     << " bytes, gradients " << all.gradients << " and " << some.gradients << ", sent " << all.sent
                     << " and " << some.sent);
    CHECK(some.moments < all.moments);
    CHECK(some.gradients <= all.gradients);
    CHECK(some.sent + 4 * 1050 < all.sent);  // the numbers of layers.1, at least once
    CHECK(some.values != all.values);
  }
}

TEST_CASE("frozen parameters do not change, also if all are frozen", "[train]") {
  optim::groups const frozen{optim::muon{}, {{.names = "*", .frozen = true}}};
  auto const start = run(frozen, {.steps = 1});
  for (auto const strategy : all_strategies) {
    INFO("strategy " << static_cast<int>(strategy));
    auto const found = run(frozen, {.strategy = strategy, .ranks = 2});
    CHECK(found.values == start.values);
    CHECK(found.moments == 0);
  }
}

TEST_CASE("ranks do not send values of frozen parameters to each other", "[train]") {
  auto const sent = [](optim::groups<optim::adamw> const& optimizer) {
    return plan_for({.samples = 8, .ranks = 4}, model, optimizer, parallel::zero<1>{.bucket_bytes = 4096}).bytes_sent();
  };
  auto const all = sent({optim::adamw{}, {}});
  auto const some = sent({optim::adamw{}, {{.names = "layers.1.*", .frozen = true}}});
  // Gradients and values of layers.1: 1050 numbers, in slices of 1024 each; a rank sends three of four slices.
  CHECK(all - some >= 2 * 3 * 4 * 1024 / 4);
  CHECK(all - some <= 2 * 3 * 4 * 1024 * 2);
}

namespace {

nn::gpt const small{.vocabulary = 29, .context = 6, .layers = 1, .heads = 2, .channels = 8};

/// The loss of a tiny GPT after training, and the differences between its plan and the counters.
std::pair<double, std::string> run_gpt(int ranks) {
  auto const data = toy::text_for(small, 8);
  std::pair<double, std::string> out;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(small, optim::muon{.rest = {.learning_rate = 1e-2}}, world,
                                parallel::zero<2>{.bucket_bytes = 4096});
    trainer.fit(data, {.steps = 8, .batch = 12, .micro_batches = ranks});
    auto const loss = trainer.evaluate(data);
    if (world.rank() > 0) return;
    out.first = loss;
    auto const planned = plan(trainer, {.samples = 12, .micro_batches = ranks}).memory;
    auto const found = memory_of(trainer);
    if (planned.optimizer != found.optimizer)
      out.second += text("optimizer: planned ", planned.optimizer, ", found ", found.optimizer, "\n");
    if (planned.gradients != found.gradients || planned.parameters != found.parameters ||
        planned.buffers != found.buffers)
      out.second += "parameters, gradients or buffers\n";
  });
  return out;
}

}  // namespace

TEST_CASE("muon trains a GPT on 1 to 4 ranks as on one, with the memory of its plan", "[train]") {
  auto const serial = run_gpt(1);
  CHECK(serial.first < 3.2);
  CHECK(serial.second == "");
  for (int const ranks : {2, 3, 4}) {
    auto const found = run_gpt(ranks);
    INFO(ranks << " ranks");
    CHECK(found.first == Approx(serial.first).epsilon(1e-3));
    CHECK(found.second == "");
  }
}

TEST_CASE("optimizers of whole tensors refuse parts of tensors, and an exchange made without them", "[train]") {
  using env = environment<precision::fp32>;
  comm::self_world alone;
  std::vector<parameter<env>> parts(1);
  parts[0].info = shard_of({"w", {8, 4}}, 0, {4, 4});
  basic_exchange<env, comm::self_world, parallel::data, compression::none> cut(
      std::vector<parameter<env>*>{&parts[0]}, alone, parallel::data{}, compression::none{});
  CHECK_THROWS_WITH(
      (optimizer_state<env, optim::lamb>(cut)),
      "trireme::trainer: the optimizer needs whole tensors, but each rank holds only a part of \"w\"; use "
      "one that works element by element, such as optim::adamw, or leave parallel::tensor out");

  watchdog const watch("an exchange of one's own");
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    std::vector<float> value(2000, 1.0F), gradient(2000);
    std::vector<foreign_parameter<float>> const mine{
        {"w", tensor_view<float>(value.data(), {50, 40}), tensor_view<float>(gradient.data(), {50, 40})}};
    {
      auto exchange = make_exchange(mine, world, parallel::zero<1>{});
      auto const sentence =
          sentence_of<config_error>([&] { optimizer_state<env, optim::lamb> const moments(exchange); });
      if (world.rank() == 0) {
        CHECK(sentence ==
              "trireme::optimizer_state: the optimizer needs whole tensors, but the exchange cuts \"w\" between ranks; "
              "pass the optimizer to make_exchange as well");
      }
    }
    optim::lamb const lamb{.learning_rate = 0.1, .weight_decay = 0};
    auto exchange = make_exchange(mine, world, parallel::zero<1>{}, lamb);
    optimizer_state<env, optim::lamb> moments(exchange, lamb);
    exchange.begin();
    for (auto& each : gradient) each = static_cast<float>(world.rank()) - 3;
    exchange.ready("w");
    exchange.finish();
    moments.update(exchange, lamb, 0, 1);
    exchange.publish();
    if (world.rank() == 0) {
      CHECK(value[0] == Approx(1.1));
      CHECK(value[1999] == Approx(1.1));
    }
  });
}
