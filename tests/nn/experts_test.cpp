// Experts: their gradients, what they do with odd descriptions, and the bias that balances them.
#include "trireme/nn/experts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/schedules/schedules.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/testing/gradient_check.hpp"
#include "trireme/train/staged_engine.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp64>;

/// One micro-batch of a small model in doubles.
struct mixture {
  nn::gpt model;
  comm::self_world world;
  staged_engine<env> engine{model};
  basic_exchange<env, comm::self_world, parallel::data, compression::none> exchange{
      engine.uses(), world, parallel::data{.bucket_bytes = 4096}, compression::none{}};
  std::vector<std::int32_t> tokens, targets;
  std::vector<std::int64_t> ids{3, 8};
  samples batch;

  explicit mixture(nn::gpt const& what) : model(what) {
    for (std::int32_t i = 0; i < 14; ++i) {
      tokens.push_back((i * i + 3) % 11);
      targets.push_back((i * 5 + 1) % 11);
    }
    batch = make_samples(tensor_view<std::int32_t const>(tokens.data(), shape{2, 7}),
                         tensor_view<std::int32_t const>(targets.data(), shape{2, 7}));
    batch.ids = ids;
    exchange.initialise(4);
    // Far from zero: at the start all experts are nearly alike, and a router of small weights is near every tie.
    for (auto const& entry : exchange.plan().entries())
      for (auto& each : exchange.parameter_values(entry).span()) each *= 5;
  }
  double loss() {
    exchange.begin();
    auto const sum = engine.train(batch, 0.5, {7, 1}, [](int) {});
    exchange.abandon();  // gradients are looked at, not exchanged
    return sum.mean();
  }
};

}  // namespace

TEST_CASE("gradients of a GPT with experts agree with central differences", "[nn][experts]") {
  nn::gpt model{.vocabulary = 11, .context = 7, .layers = 2, .heads = 2, .channels = 6, .dropout = 0.1, .experts = 4};
  SECTION("of two experts a token") {}
  SECTION("of one expert a token") { model.top_k = 1; }
  SECTION("with the balance loss") { model.balance = 0.3; }
  SECTION("of checkpointed blocks") {
    model.checkpointed = true;
    model.balance = 0.1;
  }
  mixture it(model);
  static_cast<void>(it.loss());
  std::vector<std::vector<double>> gradients;
  for (auto* const use : it.engine.uses()) {
    auto const all = use->gradient.span();
    gradients.emplace_back(all.begin(), all.end());
  }
  for (std::size_t u = 0; u < gradients.size(); ++u) {
    auto const& info = it.engine.uses()[u]->info;
    if (info.name.find("wte") != std::string::npos) continue;  // two uses of one tensor: each is a part of the slope
    INFO(info.name);
    auto const values = it.engine.uses()[u]->value.span();
    std::size_t const stride = values.size() > 60 ? 13 : 1;  // some elements of large tensors, or it takes long
    double difference = 0;
    double norm = 1e-14;  // a gradient of zero (the bias of attention's keys) is rounding on both sides
    for (std::size_t i = 0; i < values.size(); i += stride) {
      auto const middle = values[i];
      auto const loss_at = [&](double value) {
        values[i] = value;
        return it.loss();
      };
      auto const slope = (loss_at(middle + 1e-5) - loss_at(middle - 1e-5)) / 2e-5;
      values[i] = middle;
      difference += (slope - gradients[u][i]) * (slope - gradients[u][i]);
      norm += slope * slope;
    }
    CHECK(std::sqrt(difference / norm) < 1e-6);
  }
}

TEST_CASE("without the balance loss evaluating and training give the same loss", "[nn][experts]") {
  nn::gpt model{.vocabulary = 11, .context = 7, .layers = 1, .heads = 2, .channels = 6, .experts = 3};
  mixture plain(model);
  model.balance = 1;
  mixture balanced(model);
  auto const cross_entropy = plain.engine.evaluate(plain.batch).mean();
  CHECK(plain.loss() == Approx(cross_entropy).epsilon(1e-14));
  CHECK(balanced.engine.evaluate(balanced.batch).mean() == Approx(cross_entropy).epsilon(1e-14));
  CHECK(balanced.loss() > cross_entropy + 0.9);  // the least a layer's balance loss can be is about 1
}

TEST_CASE("a GPT with one expert that is always chosen equals a GPT with one mlp", "[nn][experts]") {
  nn::gpt model{.vocabulary = 11, .context = 7, .layers = 2, .heads = 2, .channels = 6};
  mixture one(model);
  model.experts = model.top_k = 1;
  mixture chosen(model);
  for (auto const& entry : one.exchange.plan().entries()) {
    auto name = entry.info.name;
    if (auto const at = name.find("mlp."); at != name.npos) name.insert(at + 4, "experts.");
    for (auto const& other : chosen.exchange.plan().entries()) {
      if (other.info.name != name) continue;
      auto const from = one.exchange.parameter_values(entry).span();
      REQUIRE(other.size() == entry.size());
      std::copy(from.begin(), from.end(), chosen.exchange.parameter_values(other).span().begin());
    }
  }
  CHECK(chosen.loss() == Approx(one.loss()).epsilon(1e-14));
}

namespace {
/// The group of a rank that shares experts with three others, which are not there.
class first_of_four final : public expert_group<env> {
  using typename expert_group<env>::view;

 public:
  first_of_four() noexcept : expert_group<env>({0, 4}) {}

 private:
  void do_gather(std::span<std::int64_t>) override {}
  void do_all_to_all(view, std::span<std::int64_t const>, view, std::span<std::int64_t const>) override {}
};
}  // namespace

TEST_CASE("a GPT with experts names what is wrong with its description", "[nn][experts]") {
  CHECK_THROWS_WITH((nn::gpt{.experts = 4, .top_k = 5}.validate()),
                    "trireme::nn::gpt: 5 experts a token of 4; a token chooses at least one, and at most all of them");
  CHECK_THROWS_WITH((nn::gpt{.experts = 4, .balance = -1}.validate()),
                    "trireme::nn::gpt: .balance is -1; it must be at least 0, and finite");
  first_of_four group;
  rank_groups<env> groups;
  groups.offer(group);
  CHECK_THROWS_WITH(
      (nn::expression<env>{nn::block{"m", 4, nn::experts{.hidden = 8, .count = 3}}, groups}),
      "trireme::nn::experts: 3 experts cannot be distributed over 4 ranks; an expert group has at most as "
      "many ranks as a layer has experts");
  CHECK(to_string(nn::gpt{.experts = 4}) ==
        "nn::gpt{.vocabulary = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384, .dropout = 0, .experts = "
        "4, .top_k = 2}");
}

namespace {

/// A model of layers as a user may describe it: sizes that a layer before or behind gives may be said wrongly.
struct described {
  using policy_category = slot::model;
  nn::embedding first{.words = 5, .outputs = 6};
  nn::experts second{.hidden = 8, .count = 2};
  nn::unembedding last{.words = 5};

  void units(auto&& emit) const {
    emit(nn::block{"first", 6, first});
    emit(nn::block{"second", 6, nn::chain(nn::residual(second))});
    emit(nn::block{"last", 6, nn::chain(last, nn::loss::cross_entropy{})});
  }
};

}  // namespace

TEST_CASE("layers name what is wrong with the sizes that they are given", "[nn]") {
  auto const sentence = [](described const& model) {
    return sentence_of<config_error>([&] { staged_engine<env> engine{model}; });
  };
  CHECK(sentence({}) == "");
  CHECK(sentence({.last = {}}) ==
        "trireme::nn::unembedding: last.weight has shape (0, 6) (words, channels); both must be at least 1");
  CHECK(sentence({.first = {.outputs = 6}}) ==
        "trireme::nn::embedding: first.weight has shape (0, 6) (words, channels); both must be at least 1");
}

namespace {

/// Experts as DeepSeek has them, between an embedding and a head.
struct scored_model {
  using policy_category = slot::model;
  nn::experts mixture{
      .hidden = 5, .count = 6, .chosen = 3, .gated = true, .scored = true, .choice = {3, 2, 2.5}, .speed = 0.05};

  void units(auto&& emit) const {
    emit(nn::block{"first", 6, nn::embedding{.words = 11, .outputs = 6}});
    emit(nn::block{"second", 6, nn::chain(nn::residual(nn::rms_norm{}, mixture))});
    emit(nn::block{"last", 6, nn::chain(nn::unembedding{.words = 11}, nn::loss::cross_entropy{})});
  }
};
std::string to_string(scored_model const&) { return "scored_model"; }

}  // namespace

TEST_CASE("gradients of gated experts that are chosen by scores agree with central differences", "[nn][experts]") {
  std::vector<std::int32_t> tokens, targets;
  for (std::int32_t i = 0; i < 14; ++i) tokens.push_back((i * i + 3) % 11), targets.push_back((i * 5 + 1) % 11);
  auto const report = testing::check_gradients(
      scored_model{}, make_samples(tensor_view<std::int32_t const>(tokens.data(), shape{2, 7}),
                                   tensor_view<std::int32_t const>(targets.data(), shape{2, 7})));
  INFO(to_string(report));
  CHECK(report);
}

TEST_CASE("a bias moves by the sign of an expert's excess over the mean, equally on all ranks and meshes",
          "[nn][experts]") {
  watchdog dog("biases");
  toy::training<scored_model, toy::text> const training{
      {}, {.samples = 24, .vocabulary = 11, .context = 7}, {.steps = 5, .batch = 8, .micro_batches = 4}};
  auto const bias = [](toy::outcome const& of) { return of.state.at("value/second.router.bias"); };
  auto const serial = training.alone(toy::steady, precision::fp64{});
  auto const moved = bias(serial);
  for (auto const each : moved) {  // five steps up or down, and none where a load is the mean
    auto const steps = each / 0.05;
    CHECK(std::abs(steps - std::round(steps)) < 1e-9);
    CHECK(std::abs(steps) < 5.5);
  }
  CHECK(*std::ranges::max_element(moved) > 0);
  auto still = training;
  still.model.mixture.speed = 0;
  for (auto const each : bias(still.alone(toy::steady, precision::fp64{}))) CHECK(each == 0);
  auto const compare = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    auto const here = training.on(ranks, toy::steady, policy, precision::fp64{}).front();
    CHECK(bias(here) == moved);
    toy::check_near(here, serial, 1e-10);
  };
  compare(2, parallel::data{});
  compare(3, parallel::zero<3>{});
  compare(2, parallel::expert{});
  compare(2, parallel::mesh{parallel::tensor{.ways = 2}, parallel::sequence{}});
  compare(4, parallel::mesh{parallel::zero<1>{}, parallel::expert{.ways = 2}});
  compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::expert{.ways = 2}});
  CHECK(training.alone(toy::steady, parallel::data{.reproducible = true}).hash ==
        training.on(2, toy::steady, parallel::data{.reproducible = true}).front().hash);
}

TEST_CASE("scored experts refuse groups that do not fit, and a balance loss, in one sentence", "[nn][experts]") {
  auto const made = [](nn::experts const& what) { nn::expression<env>{nn::block{"m", 4, nn::chain(what)}}; };
  CHECK_THROWS_WITH(
      made({.hidden = 8, .count = 6, .chosen = 3, .scored = true, .choice = {.groups = 4}}),
      "trireme::nn::experts: 3 of 6 experts, of 1 of 4 groups, scale 1, speed 0.001, balance 0; groups are of equal "
      "sizes and have enough experts, the scale is above 0, speed is not below, and a bias balances in place of a "
      "loss");
  CHECK_THROWS_WITH(
      made({.hidden = 8, .count = 6, .balance = 1, .scored = true}),
      "trireme::nn::experts: 1 of 6 experts, of 1 of 1 group, scale 1, speed 0.001, balance 1; groups are of equal "
      "sizes and have enough experts, the scale is above 0, speed is not below, and a bias balances in place of a "
      "loss");
}

TEST_CASE("perceptrons with different losses have different descriptions", "[nn]") {
  CHECK(to_string(nn::mlp{.hidden = {8}}) ==
        "nn::mlp{.inputs = 1, .hidden = {8}, .outputs = 1, .act = ops::activation::tanh}");
  CHECK(to_string(nn::mlp_with<nn::loss::cross_entropy>{.outputs = 3}) ==
        "nn::mlp_with<cross_entropy>{.inputs = 1, .hidden = {}, .outputs = 3, .act = ops::activation::tanh}");
}
