// Descriptions that are refused when a trainer or an exchange is made, and the rate of each step.
#include "trireme/core/expect.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/train/make_exchange.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;

namespace {

using any_optimizer = optim::any<environment<precision::fp32>>;
constexpr double no_number = std::numeric_limits<double>::quiet_NaN();
nn::mlp const model{.inputs = 1, .hidden = {4}};

std::string refusal(any_optimizer const& optimizer, parallel::data const& strategy = {}) {
  comm::self_world alone;
  return sentence_of<config_error>([&] { static_cast<void>(make_trainer(model, optimizer, alone, strategy)); });
}

}  // namespace

TEST_CASE("impossible numbers of optimizers, schedules and strategies are refused by name", "[train]") {
  CHECK(refusal(optim::adamw{.beta2 = 1.5}) == "trireme::optim::adamw: .beta2 is 1.5; it must be in [0, 1)");
  CHECK(refusal(optim::adamw{.epsilon = -1}) ==
        "trireme::optim::adamw: .epsilon is -1; it must be at least 0, and finite");
  CHECK(contains(refusal(optim::sgd{.learning_rate = no_number}), "optim::sgd: .learning_rate is nan"));
  CHECK(contains(refusal(optim::lamb{.clip = no_number}), "optim::lamb: .clip is nan"));
  CHECK(contains(refusal(optim::sgd{.clip = -1}), "optim::sgd: .clip is -1"));
  CHECK(contains(refusal(optim::muon{.rest = {.beta1 = 1}}), "optim::adamw: .beta1 is 1"));
  CHECK(contains(refusal(optim::adafactor{.decay_power = 0.8}), "at most 0"));
  CHECK(contains(refusal(optim::groups{optim::sgd{}, {{.names = "*", .learning_rate = -2}}}), "optim::group: "));
  CHECK(contains(refusal(optim::sgd{.schedule = optim::cosine{.peak = 1}}), "optim::cosine: .total is 0"));
  CHECK(contains(refusal(optim::sgd{.schedule = optim::linear{.peak = 1, .warmup = 5, .total = 4}}), ".warmup is 5"));
  CHECK(contains(refusal(optim::sgd{.schedule = optim::cosine{.peak = 1, .total = 9, .floor = 2}}), ".floor is 2"));
  CHECK(contains(refusal(optim::sgd{}, {.bucket_bytes = 0}), "parallel::data: .bucket_bytes is 0"));
  CHECK(refusal(optim::sgd{.clip = std::numeric_limits<double>::infinity()}).empty());
}

TEST_CASE("a pattern that matches nothing is refused, with the most similar names", "[train]") {
  CHECK(refusal(optim::groups{optim::sgd{}, {{.names = "layer.0.*", .frozen = true}}}) ==
        "trireme::optim::groups: .names: nothing in the model matches \"layer.0.*\"; the nearest names are "
        "\"layers.0.bias\", "
        "\"layers.0.weight\", \"layers.1.bias\"");
  CHECK(contains(refusal(optim::groups{optim::sgd{}, {{.names = "*.bias *.weigth"}}}), "matches \"*.weigth\""));
  CHECK(contains(refusal(optim::muon{.others = "*emb*"}), "optim::muon: .others: nothing in the model"));
  CHECK(refusal(optim::groups{optim::muon{}, {{.names = " *.bias  layers.?.weight "}}}).empty());
}

TEST_CASE("refusing a pattern takes the same number of collectives on any number of ranks, and considers all names",
          "[train]") {
  watchdog const watch("refused patterns");
  for (int const ranks : {2, 5, 16}) {
    std::vector<std::uint64_t> calls(static_cast<std::size_t>(ranks));
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto counted = comm::decorate(world, comm::counted{});
      std::vector<std::string> names{"everywhere", ""};  // an empty name is a name, too
      if (world.rank() == ranks - 1) names.push_back("last.weight");
      CHECK(sentence_of<config_error>([&] {
              parallel::expect_patterns(counted, optim::groups{optim::sgd{}, {{.names = "last.weigth"}}}, names);
            }).find("the nearest names are \"last.weight\", \"everywhere\"") != std::string::npos);
      for (auto const& each : counted.counts().by_operation)
        calls[static_cast<std::size_t>(world.rank())] += each.calls;
    });
    for (auto const each : calls) CHECK(each == 4);  // the matches, and three for the names
  }
}

TEST_CASE("an exchange in the caller's loop refuses the same, in each step", "[train]") {
  comm::self_world alone;
  std::vector<float> value{1}, gradient{1};
  std::vector<foreign_parameter<float>> const mine{{"w", tensor_view{value}, tensor_view{gradient}}};
  optim::groups const wrong{optim::sgd{}, {{.names = "v", .frozen = true}}};
  CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(make_exchange(mine, alone, wrong)); }),
                 "nothing in the model matches \"v\"; the nearest names are \"w\""));
  auto exchange = make_exchange(mine, alone);
  exchange.begin();
  exchange.ready("w");
  CHECK(contains(sentence_of<config_error>([&] { exchange.step(optim::sgd{.learning_rate = no_number}); }), "is nan"));
}

TEST_CASE("schedules count skipped steps too, so the reported rate is the one applied and the end is reached",
          "[train]") {
  comm::self_world alone;
  any_optimizer const optimizer =
      optim::sgd{.schedule = optim::linear{.peak = 0.1, .total = 4, .floor = 0.02}, .momentum = 0};
  auto trainer = make_trainer(nn::mlp{.inputs = 1}, optimizer, alone);
  float x = 0, y = 1;
  auto const bias = [&] {
    double out = 0;
    trainer.for_each_parameter([&](std::string const& name, auto const&, auto values) {
      if (contains(name, "bias")) out = static_cast<double>(values[0]);
    });
    return out;
  };
  for (int step = 0; step < 5; ++step) {
    x = step == 1 || step == 2 ? std::numeric_limits<float>::quiet_NaN() : 0;
    auto const before = bias();
    auto const done = trainer.step(tensor_view<float const>(&x, {1, 1}), tensor_view<float const>(&y, {1, 1}));
    CHECK(done.skipped == (step == 1 || step == 2));
    CHECK(done.learning_rate == Approx(0.1 - 0.02 * step));
    if (!done.skipped) CHECK((bias() - before) / done.norm == Approx(done.learning_rate).epsilon(1e-4));
  }

  std::vector<float> value{0}, gradient{0};
  std::vector<foreign_parameter<float>> const mine{{"w", tensor_view{value}, tensor_view{gradient}}};
  auto exchange = make_exchange(mine, alone);
  for (int step = 0; step < 4; ++step) {
    auto const before = value[0];
    gradient[0] = step == 1 ? std::numeric_limits<float>::quiet_NaN() : 1;
    exchange.begin();
    exchange.ready("w");
    exchange.step(optimizer);
    CHECK(static_cast<double>(before - value[0]) == Approx(step == 1 ? 0 : 0.1 - 0.02 * step).margin(1e-6));
  }
}
