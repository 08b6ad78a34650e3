#include "trireme/nn/llama.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/golden.hpp"
#include "../support/sentence.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/staged_engine.hpp"

using namespace trireme;
namespace safetensors = formats::safetensors;

namespace {

using env = environment<precision::fp64>;
using numbers = std::map<std::string, std::vector<double>>;

/// What transformers computes, and what this does, by the names of ours.
struct outcome {
  double loss = 0;
  numbers gradients;
};

outcome transformers(safetensors::reader const& file, nn::llama const& model, std::string const& kind) {
  outcome out{golden::read<double>(file, kind + "/loss")[0], {}};
  for (auto const& tensor : model.in_files().tensors) {
    CHECK(file.at(kind + "/gradient/" + tensor.name).extents == tensor.extents);
    auto const theirs = golden::read<double>(file, kind + "/gradient/" + tensor.name);
    auto& all = out.gradients[tensor.parameter];
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      auto const at = static_cast<std::size_t>(tensor.place(static_cast<std::int64_t>(i)));
      if (all.size() <= at) all.resize(at + 1, std::nan(""));
      all[at] = theirs[i];
    }
  }
  return out;
}

outcome computed(safetensors::reader const& file, nn::llama const& model, std::string const& kind) {
  auto const tokens = golden::read<std::int32_t>(file, "tokens"), targets = golden::read<std::int32_t>(file, "targets");
  auto const batch = make_samples(tensor_view<std::int32_t const>(tokens.data(), shape{3, 11}),
                                  tensor_view<std::int32_t const>(targets.data(), shape{3, 11}));
  comm::self_world world;
  staged_engine<env> engine(model);
  basic_exchange<env, comm::self_world, parallel::data, compression::none> exchange(
      engine.uses(), world, parallel::data{.bucket_bytes = 4096}, compression::none{});
  for (auto const& tensor : model.in_files().tensors) {
    auto const theirs = golden::read<double>(file, kind + "/parameter/" + tensor.name);
    for (auto const& entry : exchange.plan().entries()) {
      if (entry.info.name != tensor.parameter) continue;
      auto const values = exchange.parameter_values(entry).span();
      for (std::size_t i = 0; i < theirs.size(); ++i)
        values[static_cast<std::size_t>(tensor.place(static_cast<std::int64_t>(i)))] = theirs[i];
    }
  }
  auto const counted = std::count_if(targets.begin(), targets.end(), [](int target) { return target >= 0; });
  exchange.begin();
  outcome out{
      engine.train(batch, 11.0 / static_cast<double>(counted), {}, [&](int use) { exchange.ready(use); }).mean(), {}};
  static_cast<void>(exchange.finish());
  for (auto const& segment : exchange.segments()) {
    auto const from = segment.gradient.terms[0].span();
    out.gradients[segment.info->name].assign(from.begin(), from.end());
  }
  return out;
}

void compare(nn::llama const& model, std::string const& kind) {
  auto const file = golden::open("llama.safetensors");
  auto const theirs = transformers(file, model, kind), ours = computed(file, model, kind);
  CHECK(std::abs(ours.loss - theirs.loss) < 1e-12 * theirs.loss);
  REQUIRE(ours.gradients.size() == theirs.gradients.size());
  for (auto const& [name, gradient] : ours.gradients) {
    INFO(name);
    auto const& wanted = theirs.gradients.at(name);
    REQUIRE(wanted.size() == gradient.size());
    double most = 0, largest = 1e-12;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      REQUIRE(!std::isnan(wanted[i]));  // each number of ours is one of theirs
      most = std::max(most, std::abs(gradient[i] - wanted[i]));
      largest = std::max(largest, std::abs(wanted[i]));
    }
    CHECK(most / largest < 1e-10);
  }
}

nn::llama const small{.vocabulary = 61,
                      .context = 16,
                      .layers = 2,
                      .heads = 6,
                      .key_heads = 2,
                      .channels = 24,
                      .hidden = 20,
                      .rotary = 100};

}  // namespace

TEST_CASE("a Llama has the loss and the gradients of transformers", "[nn][golden]") { compare(small, "llama"); }

TEST_CASE("a Llama with biases and a tied head is Qwen 2", "[nn][golden]") {
  auto qwen = small;
  qwen.heads = 4;
  qwen.key_heads = 0;
  qwen.rotary = 10000;
  qwen.tied = qwen.biased = true;
  compare(qwen, "qwen");
}

TEST_CASE("Llama 3's and linear scalings, Qwen 3 and Mistral have those of transformers", "[nn][golden]") {
  auto const with = [](auto const& change) {
    auto model = small;
    model.heads = 4;
    change(model);
    return model;
  };
  compare(with([](auto& it) {
            it.heads = 2, it.key_heads = 1, it.rotary = 50;
            it.scaling = {.factor = 8, .original = 9, .low = 0.5, .high = 2};
          }),
          "llama3");
  compare(with([](auto& it) { it.key_heads = 0, it.tied = true, it.scaling = {.factor = 3}; }), "linear");
  compare(with([](auto& it) { it.head_width = 10, it.rotary = 1000, it.tied = it.head_norms = true; }), "qwen3");
  compare(with([](auto& it) { it.rotary = 10000, it.window = 4; }), "mistral");
}

TEST_CASE("a Llama refuses sizes that do not fit, in one sentence", "[nn]") {
  auto const sentence = [](nn::llama const& model) { return sentence_of<config_error>([&] { model.validate(); }); };
  CHECK(sentence({.layers = 0}) == "trireme::nn::llama: .layers is 0; it must be at least 1");
  CHECK(sentence({.heads = 6, .key_heads = 4}) ==
        "trireme::nn::llama: 6 heads, 4 key heads, 0 hidden, a window of 0; heads are a multiple of key heads, and "
        "nothing is below 0");
  CHECK(contains(sentence({.window = -1}), "a window of -1"));
  CHECK(contains(sentence({.head_width = 5}), "a head is 5 numbers wide"));
  CHECK(contains(sentence({.scaling = {.factor = 0}}), "the factor is above 0"));
  CHECK(contains(sentence({.biased = true, .head_norms = true}), "leave one of them out"));
  CHECK(sentence({.heads = 6, .channels = 18}) == "trireme::nn::llama: 18 channels are not 6 heads of one even width");
  CHECK(sentence({.rotary = 0}) == "trireme::nn::llama: .rotary is 0; it must be above 0, and finite");
  CHECK(sentence({}) == "");
  CHECK(to_string(small) ==
        "nn::llama{.vocabulary = 61, .context = 16, .layers = 2, .heads = 6, .key_heads = 2, .channels = 24, .hidden = "
        "20, .rotary = 100, .epsilon = 1e-05}");
  CHECK(contains(to_string(nn::llama{.head_width = 128, .scaling = {.factor = 8}, .window = 7, .head_norms = true}),
                 ".head_width = 128, .rotary = 10000, .scaling = {.factor = 8, .original = 0, .low = 1, .high = 4}, "
                 ".window = 7, .epsilon = 1e-05, .head_norms = true}"));
}
