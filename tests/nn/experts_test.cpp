// A GPT with experts, in serial form: its gradients, and what it does with odd descriptions.
#include "trireme/nn/experts.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/precision/precision.hpp"
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
    engine.invalidate();
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

TEST_CASE("without the balance loss evaluating and training say the same loss", "[nn][experts]") {
  nn::gpt model{.vocabulary = 11, .context = 7, .layers = 1, .heads = 2, .channels = 6, .experts = 3};
  mixture plain(model);
  model.balance = 1;
  mixture balanced(model);
  auto const cross_entropy = plain.engine.evaluate(plain.batch).mean();
  CHECK(plain.loss() == Approx(cross_entropy).epsilon(1e-14));
  CHECK(balanced.engine.evaluate(balanced.batch).mean() == Approx(cross_entropy).epsilon(1e-14));
  CHECK(balanced.loss() > cross_entropy + 0.9);  // the least a layer's balance loss can be is about 1
}

TEST_CASE("a GPT of one expert that is always chosen is a GPT of one mlp", "[nn][experts]") {
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

TEST_CASE("a GPT with experts names what is wrong with its description", "[nn][experts]") {
  CHECK_THROWS_WITH((nn::gpt{.experts = 4, .top_k = 5}.validate()),
                    "trireme::nn::gpt: 5 experts a token of 4; a token chooses at least one, and at most all of them");
  CHECK_THROWS_WITH((nn::gpt{.experts = 4, .balance = -1}.validate()), "trireme::nn::gpt: balance -1 is below 0");
  CHECK_THROWS_WITH((nn::experts::instance<env>({.channels = 4, .hidden = 8, .count = 3}, "m", {0, 4})),
                    "trireme::nn::experts: 3 experts cannot be dealt out to 4 ranks; an expert group has at most as "
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
    emit(nn::block{"first", 6, 0, first});
    emit(nn::block{"second", 6, 0, nn::chain(nn::residual(second))});
    emit(nn::block{"last", 6, 0, nn::chain(last, nn::loss::cross_entropy{})});
  }
};

}  // namespace

TEST_CASE("layers name what is wrong with the sizes that they are given", "[nn]") {
  auto const sentence = [](described const& model) {
    return sentence_of<config_error>([&] { staged_engine<env> engine{model}; });
  };
  CHECK(sentence({}) == "");
  CHECK(sentence({.second = {.channels = 6, .hidden = 8, .count = 2}}) == "");
  CHECK(sentence({.second = {.channels = 4, .hidden = 8, .count = 2}}) ==
        "trireme::nn::experts second: rows of 6 numbers come in where 4 channels are said; leave channels out");
  CHECK(sentence({.last = {}}) ==
        "trireme::nn::unembedding: last.weight has shape (0, 6) (words, channels); both must be at least 1");
  CHECK(sentence({.first = {.outputs = 6}}) ==
        "trireme::nn::embedding: first.weight has shape (0, 6) (words, channels); both must be at least 1");
}

TEST_CASE("perceptrons with different losses have different descriptions", "[nn]") {
  CHECK(to_string(nn::mlp{.hidden = {8}}) ==
        "nn::mlp{.inputs = 1, .hidden = {8}, .outputs = 1, .act = ops::activation::tanh}");
  CHECK(to_string(nn::mlp_with<nn::loss::cross_entropy>{.outputs = 3}) ==
        "nn::mlp_with<cross_entropy>{.inputs = 1, .hidden = {}, .outputs = 3, .act = ops::activation::tanh}");
}
