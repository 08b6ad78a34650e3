// test-sanitize: none
#include "trireme/nn/onnx.hpp"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/deepseek_files.hpp"
#include "trireme/nn/images.hpp"
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
  /// @param folder  where its files are.
  template <class Model>
  void add(std::string const& kind, std::string const& folder) {
    bool const encoder = kind.starts_with("bert");
    safetensors::reader const file(golden("golden.safetensors"));
    auto const& entry = file.at(encoder ? "bert/tokens" : "tokens");
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(entry.extents.size()));
    file.read(entry.name, 0, std::span(tokens));
    auto const samples = entry.extents[0], length = entry.extents[1];
    auto model = nn::read_description<Model>(folder);
    if constexpr (requires { model.separator; }) model.separator = 3;  // transformers does not write it
    launch(comm::threads{.ranks = 1}, [&](auto& world) {
      auto trainer = make_trainer(model, optim::sgd{}, world);
      load_pretrained(trainer, folder);
      for (std::int64_t t = 1; t <= length; ++t) {
        std::vector<std::int32_t> some;
        for (std::int64_t i = 0; i < samples; ++i) {
          for (std::int64_t j = 0; j < t; ++j) some.push_back(tokens[static_cast<std::size_t>(i * length + j)]);
        }
        keep(text(kind, "/", t), trainer.predict(tensor_view<std::int32_t const>(some.data(), {samples, t})).view());
      }
    });
  }
  template <class View>
  void keep(std::string const& name, View const& all) {
    entries.push_back({name, dtype::f32, all.extents()});
    for (auto const each : all.flat().span()) numbers.push_back(each);
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

/// Words without a pattern.
std::vector<std::int32_t> drawn(std::int64_t count, std::int64_t kinds) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < count; ++i) {
    auto const some = std::sin(1.7 * static_cast<double>(i * i + kinds));
    out.push_back(static_cast<std::int32_t>(std::abs(some) * static_cast<double>(kinds)));
  }
  return out;
}

}  // namespace

TEST_CASE("onnxruntime computes our logits", "[nn][onnx]") {
  scratch dir;
  logits_of_beginnings ours;
  int files = 1;
  auto const written = [&](std::string const& kind, std::string const& folder, nn::onnx_options const& how = {},
                           std::string const& end = "") {
    CHECK(nn::write_onnx(folder, dir / (kind + end + ".onnx"), how) > 0);
    ++files;
  };
  auto const both = [&]<class Model>(std::string const& kind, std::string const& folder, Model const&) {
    ours.add<Model>(kind, folder);
    written(kind, folder);
  };
  for (auto const* kind : {"gpt2", "gpt2_base"}) both(kind, golden(kind), nn::gpt{});
  for (auto const* kind : {"llama", "llama3", "mistral_window", "qwen2", "qwen3"})
    both(kind, golden(kind), nn::llama{});
  for (auto const* kind : {"bert_masked", "bert_classifier"}) both(kind, golden(kind), nn::bert{});
  both("deepseek", golden("../deepseek"), nn::deepseek{});
  for (auto const* kind : {"gpt2", "llama", "../deepseek"}) {  // without a past, and with weights in a second file
    std::string const name = std::string(kind).substr(std::string(kind).find_last_of('/') + 1);
    written(name, golden(kind), {.past = false}, ".alone");
    written(name, golden(kind), {.most_inline = 0}, ".apart");
    ++files;
  }
  for (std::int64_t const chosen : {1, 2}) {
    auto const kind = text("gpt_experts", chosen);
    nn::gpt const model{
        .vocabulary = 41, .context = 16, .layers = 2, .heads = 2, .channels = 12, .experts = 5, .top_k = chosen};
    scratch folder;
    auto const words = drawn(8 * 12, 41), next = drawn(8 * 12, 40);
    data::in_memory<std::int32_t, std::int32_t> const data(tensor_view<std::int32_t const>(words.data(), {8, 12}),
                                                           tensor_view<std::int32_t const>(next.data(), {8, 12}));
    launch(comm::threads{.ranks = 1}, [&](auto& world) {
      auto trainer = make_trainer(model, optim::adamw{.schedule = optim::constant{0.03}}, world);
      trainer.fit(data, {.steps = 6, .batch = 8});
      save_pretrained(trainer, folder.path());
    });
    both(kind, folder.path(), model);
  }
  ours.write(dir / "ours.safetensors");
  CHECK(dir.entries() == files);
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
  nn::onnx_walk at(false);
  at.width = 5;
  CHECK(sentence_of<config_error>([&] {
          onnx_nodes(at, nn::attend{.tokens = {.separator = 1}}, "x");
        }).find("a mask between documents has no nodes of ONNX") != std::string::npos);
  scratch dir;
  {
    std::ofstream(dir / "config.json") << R"({"model_type": "mamba"})";
    auto const said = sentence_of<format_error>([&] { nn::write_onnx(dir.path(), dir / "model.onnx"); });
    CHECK(said.find("\"mamba\" is not written as ONNX; gpt2, llama,") != std::string::npos);
  }
  CHECK(dir.entries() == 1);
}
