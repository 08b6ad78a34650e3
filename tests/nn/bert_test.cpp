// test-sanitize: none
#include "trireme/nn/bert.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "../support/golden_step.hpp"
#include "../support/planned_activations.hpp"
#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/schedules/schedules.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/testing/gradient_check.hpp"

using namespace trireme;

namespace {

nn::bert const small{.vocabulary = 53,
                     .context = 16,
                     .layers = 2,
                     .heads = 3,
                     .channels = 24,
                     .hidden = 40,
                     .padding = 0,
                     .separator = 3};

void compare(nn::bert const& model, std::string const& kind) {
  auto const file = golden::open("bert.safetensors");
  auto const tokens = golden::read<std::int32_t>(file, "tokens");
  auto const targets = golden::read<std::int32_t>(file, kind + "/targets");
  auto const of_sample = static_cast<std::int64_t>(targets.size() / 4);
  data::in_memory<std::int32_t, std::int32_t> const data(
      tensor_view<std::int32_t const>(tokens.data(), {4, 13}),
      tensor_view<std::int32_t const>(targets.data(), of_sample == 1 ? shape{4} : shape{4, of_sample}));
  golden::compare_step(model, data, 4, 2, file, kind + "/");
}

/// Pairs of sentences and single ones, of all lengths, with a target for some words, or for each sample.
struct pairs {
  std::vector<std::int32_t> words = std::vector<std::int32_t>(24 * 13), asked = words, kinds;
  pairs() {
    for (std::int32_t sample = 0; sample < 24; ++sample) {
      auto const first = 1 + sample % 5, second = sample % 3 == 0 ? 0 : 1 + sample % 4;
      auto const behind = first + 2 + (second > 0 ? second + 1 : 0);
      for (std::int32_t t = 0; t < 13; ++t) {
        bool const ends = t == first + 1 || t == behind - 1;
        auto const at = static_cast<std::size_t>(13 * sample + t);
        words[at] = t >= behind ? 0 : t == 0 ? 2 : ends ? 3 : 4 + (sample * sample + 7 * t) % 49;
        asked[at] = t > 0 && t < behind && (t + sample) % 3 == 0 ? words[at] : -100;
      }
      kinds.push_back(sample % 3);
    }
  }
  [[nodiscard]] data::in_memory<std::int32_t, std::int32_t> masked() const {
    return {tensor_view<std::int32_t const>(words.data(), {24, 13}),
            tensor_view<std::int32_t const>(asked.data(), {24, 13})};
  }
  [[nodiscard]] data::in_memory<std::int32_t, std::int32_t> labelled() const {
    return {tensor_view<std::int32_t const>(words.data(), {24, 13}),
            tensor_view<std::int32_t const>(kinds.data(), {24})};
  }
};

template <class Data>
void trains_alike(nn::bert const& model, Data data) {
  toy::training<nn::bert, Data> const one{model, std::move(data), {.steps = 3, .batch = 6, .micro_batches = 3}};
  auto const serial = one.alone(toy::steady, precision::fp64{});
  auto const compare = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-9);
  };
  compare(3, parallel::data{});
  compare(2, parallel::zero<3>{});
  compare(3, parallel::mesh{parallel::tensor{.ways = 3}, parallel::sequence{}});
  compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::tensor{.ways = 2}});
}

}  // namespace

TEST_CASE("a BERT fills in words with the loss and the gradients of transformers", "[nn][golden]") {
  compare(small, "masked");
}

TEST_CASE("a BERT classifies with the loss and the gradients of transformers", "[nn][golden]") {
  auto model = small;
  model.classes = 3;
  compare(model, "classifier");
}

TEST_CASE("gradients of a BERT with dropout agree with central differences", "[nn]") {
  auto model = small;
  model.dropout = 0.2;
  model.layers = 1;
  pairs const some;
  tensor_view<std::int32_t const> const words(some.words.data(), {3, 13});
  auto report = testing::check_gradients(
      model, make_samples(words, tensor_view<std::int32_t const>(some.asked.data(), {3, 13})), {.most = 12});
  INFO(to_string(report));
  CHECK(report);
  model.classes = 3;
  report = testing::check_gradients(model, make_samples(words, tensor_view<std::int32_t const>(some.kinds.data(), {3})),
                                    {.most = 12});
  INFO(to_string(report));
  CHECK(report);
}

TEST_CASE("a BERT trains under data, zero, tensor and pipeline as on one rank", "[nn]") {
  watchdog dog("bert");
  auto model = small;
  model.dropout = 0.1;
  trains_alike(model, pairs{}.masked());
  model.classes = 3;
  trains_alike(model, pairs{}.labelled());
}

TEST_CASE("a plan of a BERT equals its training", "[nn]") {
  watchdog dog("plan");
  auto const data = pairs{}.masked();
  check_planned_activations(small, data);
}

TEST_CASE("a BERT with impossible sizes is refused", "[nn]") {
  auto const sentence = [](nn::bert const& model) { return sentence_of<config_error>([&] { model.validate(); }); };
  CHECK(sentence({.heads = 5}) == "trireme::nn::bert: 768 channels are not divisible by 5 heads");
  CHECK(sentence({.classes = -1}) == "trireme::nn::bert: .classes is -1; it must be at least 0");
  CHECK(sentence({.dropout = 1}) == "trireme::nn::bert: .dropout is 1; it must be in [0, 1)");
  CHECK(sentence(small) == "");
  CHECK(to_string(small).starts_with("nn::bert{.vocabulary = 53, .context = 16,"));
}
