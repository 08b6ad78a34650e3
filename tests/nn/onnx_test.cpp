// test-sanitize: none
#include "trireme/nn/onnx.hpp"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/onnx_layers.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
namespace safetensors = formats::safetensors;

namespace {

std::string golden(std::string const& kind) {
  auto const* const folder = std::getenv("TRIREME_TEST_DATA");  // ctest says where tests/ is
  return std::string(folder == nullptr ? "tests" : folder) + "/golden/pretrained/" + kind;
}

/// Our logits behind the first 1, 2, 3, ... tokens of each sample, for a file.
class logits_of_beginnings {
 public:
  template <class Model>
  void add(std::string const& kind) {
    bool const encoder = kind.starts_with("bert");
    safetensors::reader const file(golden("golden.safetensors"));
    auto const& entry = file.at(encoder ? "bert/tokens" : "tokens");
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(entry.extents.size()));
    file.read(entry.name, 0, std::span(tokens));
    auto const samples = entry.extents[0], length = entry.extents[1];
    auto model = nn::read_description<Model>(golden(kind));
    if constexpr (requires { model.separator; }) model.separator = 3;  // transformers does not write it
    launch(comm::threads{.ranks = 1}, [&](auto& world) {
      auto trainer = make_trainer(model, optim::sgd{}, world);
      load_pretrained(trainer, golden(kind));
      for (std::int64_t t = 1; t <= length; ++t) {
        std::vector<std::int32_t> some;
        for (std::int64_t i = 0; i < samples; ++i) {
          for (std::int64_t j = 0; j < t; ++j) some.push_back(tokens[static_cast<std::size_t>(i * length + j)]);
        }
        auto const logits = trainer.predict(tensor_view<std::int32_t const>(some.data(), {samples, t}));
        auto const all = logits.view().flat();
        entries.push_back({text(kind, "/", t), dtype::f32, {samples, all.size() / samples}});
        for (std::int64_t i = 0; i < all.size(); ++i) numbers.push_back(all[i]);
      }
    });
  }
  void write(std::string const& path) const {
    safetensors::writer to(path, entries);
    to.write(std::as_bytes(std::span(numbers)));
    to.finish();
  }

 private:
  std::vector<safetensors::entry> entries;
  std::vector<float> numbers;
};

}  // namespace

TEST_CASE("onnxruntime computes our logits", "[nn][onnx]") {
  scratch dir;
  logits_of_beginnings ours;
  for (auto const* kind : {"gpt2", "gpt2_base"}) ours.add<nn::gpt>(kind);
  for (auto const* kind : {"llama", "llama3", "mistral_window", "qwen2", "qwen3"}) ours.add<nn::llama>(kind);
  for (auto const* kind : {"bert_masked", "bert_classifier"}) ours.add<nn::bert>(kind);
  ours.write(dir / "ours.safetensors");
  for (auto const* kind :
       {"gpt2", "gpt2_base", "llama", "llama3", "mistral_window", "qwen2", "qwen3", "bert_masked", "bert_classifier"})
    CHECK(nn::write_onnx(golden(kind), dir / (std::string(kind) + ".onnx")) > 0);
  for (auto const* kind : {"gpt2", "llama"}) {  // the same without a past, and with weights in a second file
    nn::write_onnx(golden(kind), dir / (std::string(kind) + ".alone.onnx"), {.past = false});
    nn::write_onnx(golden(kind), dir / (std::string(kind) + ".apart.onnx"), {.most_inline = 0});
  }
  CHECK(dir.entries() == 1 + 9 + 2 + 4);
  python_ran("check_onnx.py", dir.path());
}

TEST_CASE("composites of layers become nodes", "[nn][onnx]") {
  using namespace nn;
  onnx_walk at(false);
  at.width = 5;
  at.name = "all";
  linear const two{.outputs = 2, .bias = false};
  auto const y =
      onnx_nodes(at,
                 chain(repeat(2, residual(layer_norm{}, linear{.outputs = 5})),
                       concat(two, named("other", two), dropout{0.5}), product(silu(), relu()), checkpointed(tanh())),
                 "x");
  CHECK(at.width == 9);
  std::string operations;
  for (auto const& each : at.graph.nodes) operations += each.operation + " ";
  CHECK(operations ==
        "LayerNormalization MatMul Add Add LayerNormalization MatMul Add Add MatMul MatMul Concat Sigmoid Mul Relu Mul "
        "Tanh ");
  CHECK(at.graph.nodes.back().outputs == std::vector{y});
  std::string weights;
  for (auto const& each : at.graph.weights) weights += each.name + " ";
  CHECK(weights == "all.0.weight all.0.bias all.1.weight all.1.bias all.weight all.other.weight ");
}

TEST_CASE("models without a graph are refused, and leave no file", "[nn][onnx]") {
  CHECK(sentence_of<config_error>([] { static_cast<void>(nn::in_onnx(nn::gpt{.experts = 4})); }) ==
        "trireme::nn::experts transformer.h.0.mlp: experts have no nodes of ONNX; export a model without experts");
  scratch dir;
  auto const said = sentence_of<format_error>([&] { nn::write_onnx(golden("../deepseek"), dir / "deepseek.onnx"); });
  CHECK(said.find("deepseek_v3\" is not written as ONNX") != std::string::npos);
  CHECK(dir.entries() == 0);
}
