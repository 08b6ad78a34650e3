#include "trireme/nn/gpt.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/golden.hpp"
#include "../support/sentence.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/optimizer_state.hpp"
#include "trireme/train/staged_engine.hpp"

using namespace trireme;

namespace {

/// The largest difference, relative to the largest number of the golden tensor.
double difference(std::span<double const> ours, std::vector<double> const& golden) {
  REQUIRE(ours.size() == golden.size());
  double most = 0;
  double largest = 1e-12;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    most = std::max(most, std::abs(ours[i] - golden[i]));
    largest = std::max(largest, std::abs(golden[i]));
  }
  return most / largest;
}

using env = environment<precision::fp64>;

/// A loop of one's own around the engine and the exchange, so that targets may be left out of the mean.
struct tiny_gpt {
  nn::gpt model{.vocabulary = 61, .context = 16, .layers = 2, .heads = 3, .channels = 12};
  comm::self_world world;
  staged_engine<env> engine{model};
  basic_exchange<env, comm::self_world, parallel::data, compression::none> exchange{
      engine.uses(), world, parallel::data{.bucket_bytes = 4096}, compression::none{}};
  formats::safetensors::reader golden = golden::open("gpt.safetensors");
  std::vector<std::int32_t> tokens = golden::read<std::int32_t>(golden, "tokens");
  std::vector<std::int32_t> targets = golden::read<std::int32_t>(golden, "targets");
  samples batch = make_samples(tensor_view<std::int32_t const>(tokens.data(), shape{3, 11}),
                               tensor_view<std::int32_t const>(targets.data(), shape{3, 11}));

  tiny_gpt() {
    for (auto const& entry : exchange.plan().entries()) {
      auto const values = golden::read<double>(golden, "parameter/" + entry.info.name);
      std::copy(values.begin(), values.end(), exchange.parameter_values(entry).span().begin());
    }
  }
  double weight() const {
    auto const counted = std::count_if(targets.begin(), targets.end(), [](int target) { return target >= 0; });
    return 11.0 / static_cast<double>(counted);
  }
  loss_sum backward() {
    exchange.begin();
    auto const loss = engine.train(batch, weight(), {}, [&](int use) { exchange.ready(use); });
    return loss;
  }
};

}  // namespace

TEST_CASE("a GPT has the loss, the gradients and the training of PyTorch", "[nn][golden]") {
  tiny_gpt gpt;
  auto const losses = golden::read<double>(gpt.golden, "loss");
  auto const norms = golden::read<double>(gpt.golden, "norm");
  optim::adamw const optimizer{
      .learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .clip = 1.0};
  optimizer_state<env, optim::adamw> moments(gpt.exchange);
  for (std::size_t step = 0; step < 3; ++step) {
    auto const loss = gpt.backward();
    auto const result = gpt.exchange.finish();
    CHECK(loss.mean() == Approx(losses[step]).epsilon(1e-10));
    CHECK(result.norm == Approx(norms[step]).epsilon(1e-10));
    CHECK(result.finite);
    if (step == 0) {
      for (auto const& segment : gpt.exchange.segments()) {
        auto const& name = segment.info->name;
        INFO(name);
        REQUIRE(segment.gradient.terms.size() == 1);
        CHECK(difference(segment.gradient.terms[0].span(), golden::read<double>(gpt.golden, "gradient/" + name)) <
              1e-10);
      }
    }
    moments.update(gpt.exchange, optimizer, static_cast<std::int64_t>(step), optimizer.clip / (result.norm + 1e-6));
    gpt.exchange.publish();
  }
  for (auto const& entry : gpt.exchange.plan().entries()) {
    INFO(entry.info.name);
    CHECK(difference(gpt.exchange.parameter_values(entry).span(),
                     golden::read<double>(gpt.golden, "after/" + entry.info.name)) < 1e-9);
  }
}

TEST_CASE("without the sum of its uses' gradients the tied table differs from PyTorch", "[nn][golden]") {
  tiny_gpt gpt;
  auto const loss = gpt.backward();
  static_cast<void>(loss);
  auto const& uses = gpt.engine.uses();
  REQUIRE(uses.front()->info.name == uses.back()->info.name);
  CHECK(uses.front()->value.address() == uses.back()->value.address());
  CHECK(uses.front()->gradient.address() != uses.back()->gradient.address());
  auto const golden = golden::read<double>(gpt.golden, "gradient/transformer.wte.weight");
  CHECK(difference(uses.front()->gradient.span(), golden) < 1e-10);  // the exchange has added the second use
  CHECK(difference(uses.back()->gradient.span(), golden) > 1e-2);    // which alone is far off
}

TEST_CASE("a GPT refuses sizes that do not fit, in one sentence", "[nn]") {
  auto const sentence = [](nn::gpt const& model) { return sentence_of<config_error>([&] { model.validate(); }); };
  CHECK(sentence({.heads = 5, .channels = 384}) == "trireme::nn::gpt: 384 channels are not divisible by 5 heads");
  CHECK(sentence({.layers = 0}) == "trireme::nn::gpt: .layers is 0; it must be at least 1");
  CHECK(sentence({.dropout = 1}) == "trireme::nn::gpt: .dropout is 1; it must be in [0, 1)");
  CHECK(sentence({}) == "");
}
