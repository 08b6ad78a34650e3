// test-sanitize: none
#include "trireme/nn/onnx.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
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

/// Trains a model a little, so that no parameter is as it starts, and writes it in Hugging Face's format.
template <class Model>
void train(Model const& model, std::string const& folder) {
  auto const words = drawn(8 * 12, 41), next = drawn(8 * 12, 40);
  data::in_memory<std::int32_t, std::int32_t> const data(tensor_view<std::int32_t const>(words.data(), {8, 12}),
                                                         tensor_view<std::int32_t const>(next.data(), {8, 12}));
  launch(comm::threads{.ranks = 1}, [&](auto& world) {
    auto trainer = make_trainer(model, optim::adamw{.schedule = optim::constant{0.03}}, world);
    trainer.fit(data, {.steps = 6, .batch = 8});
    save_pretrained(trainer, folder);
  });
}

formats::json::value json_in(std::string const& path) { return formats::read_json(path, 1'000'000); }

}  // namespace

TEST_CASE("onnxruntime computes our logits in every dialect", "[nn][onnx]") {
  scratch dir;
  logits_of_beginnings ours;
  for (auto const name : nn::onnx_dialects) std::filesystem::create_directory(dir / std::string(name));
  auto const written = [&](std::string const& kind, std::string const& folder, nn::onnx_options const& how,
                           std::string const& end = "") {
    auto const place = std::string(nn::onnx_dialects[static_cast<std::size_t>(how.dialect)]);
    CHECK(nn::write_onnx(folder, dir / text(place, "/", kind, end, ".onnx"), how) > 0);
  };
  auto const all = [&]<class Model>(std::string const& kind, std::string const& folder, Model const&, bool by_groups) {
    ours.add<Model>(kind, folder);
    for (auto const dialect : {nn::onnx_dialect::portable, nn::onnx_dialect::native, nn::onnx_dialect::ort}) {
      if (dialect == nn::onnx_dialect::ort && !by_groups) continue;
      written(kind, folder, {.dialect = dialect});
      if (kind != "gpt16" && kind != "mistral16" && kind != "qwen16" && kind != "llama" && kind != "deepseek") continue;
      written(kind, folder, {.past = false, .dialect = dialect}, ".alone");
      written(kind, folder, {.dialect = dialect, .most_inline = 0}, ".apart");
    }
  };
  for (auto const* kind : {"gpt2", "gpt2_base"}) all(kind, golden(kind), nn::gpt{}, false);
  for (auto const* kind : {"llama", "llama3", "mistral_window", "qwen2", "qwen3"})
    all(kind, golden(kind), nn::llama{}, false);
  for (auto const* kind : {"bert_masked", "bert_classifier"}) all(kind, golden(kind), nn::bert{}, true);
  all("deepseek", golden("../deepseek"), nn::deepseek{}, true);
  // Experts, and heads as wide as GroupQueryAttention takes them.
  auto const trained = [&](std::string const& kind, auto const& model, bool by_groups) {
    scratch folder;
    train(model, folder.path());
    all(kind, folder.path(), model, by_groups);
    if (!by_groups) return;
    written(kind, folder.path(), {.dialect = nn::onnx_dialect::ort, .four_bits = true}, ".q4_0");
    for (auto const dialect : nn::onnx_dialects)
      nn::write_onnx_directory(folder.path(), dir / text(dialect, "/", kind, ".genai"),
                               {.dialect = *nn::onnx_dialect_named(dialect)});
  };
  nn::gpt const small{.vocabulary = 41, .context = 16, .layers = 2, .heads = 2, .channels = 12, .experts = 5};
  auto of_one = small, plain = small;
  of_one.top_k = 1;
  plain.experts = 0;
  plain.channels = 16;
  trained("gpt_experts", small, false);
  trained("gpt_expert", of_one, false);
  trained("gpt16", plain, true);
  nn::llama const wide{.vocabulary = 41,
                       .context = 16,
                       .layers = 2,
                       .heads = 4,
                       .key_heads = 2,
                       .channels = 32,
                       .hidden = 20,
                       .head_width = 16};
  auto mistral = wide, qwen = wide;
  mistral.window = 5;
  qwen.head_norms = true;
  qwen.tied = true;
  trained("mistral16", mistral, true);
  trained("qwen16", qwen, true);
  ours.write(dir / "ours.safetensors");
  python_ran("check_onnx.py", dir.path());
}

TEST_CASE("a directory has what runtimes look for", "[nn][onnx]") {
  scratch dir, to;
  for (auto const& each : std::filesystem::directory_iterator(golden("llama")))
    std::filesystem::copy(each.path(), dir / each.path().filename().string());
  std::ofstream(dir / "tokenizer.json") << "{}";
  std::ofstream(dir / "generation_config.json") << R"({"eos_token_id": [36, 35], "top_p": 0.9})";
  auto const bytes = nn::write_onnx_directory(dir.path(), to / "made");
  CHECK(bytes == std::filesystem::file_size(to / "made/model.onnx"));
  CHECK(formats::read_text(to / "made/tokenizer.json", 100) == "{}");
  CHECK(json_in(to / "made/generation_config.json").at("top_p").as_double() == 0.9);
  CHECK(json_in(to / "made/config.json").at("model_type").as_string() == "llama");
  auto const genai = json_in(to / "made/genai_config.json");
  auto const& model = genai.at("model");
  CHECK(model.at("type").as_string() == "llama");
  CHECK(model.at("eos_token_id").as_array().size() == 2);
  CHECK(model.at("pad_token_id").as_int64() == 36);
  CHECK(model.at("decoder").at("head_size").as_int64() == 4);
  CHECK(model.at("decoder").at("num_key_value_heads").as_int64() == 2);
  CHECK(genai.at("search").at("max_length").as_int64() == 16);

  nn::write_onnx_directory(golden("gpt2"), to / "gpt2");  // which has no generation_config.json
  CHECK(json_in(to / "gpt2/generation_config.json").at("_from_model_config").as_bool());
  CHECK(json_in(to / "gpt2/genai_config.json").at("model").at("type").as_string() == "decoder");
  for (auto const& [kind, how] :
       {std::pair{"gpt2", nn::onnx_options{.past = false}}, std::pair{"bert_masked", nn::onnx_options{}},
        std::pair{"../deepseek", nn::onnx_options{}}}) {
    nn::write_onnx_directory(golden(kind), to / "without", how);
    CHECK(std::filesystem::exists(to / "without/model.onnx"));
    CHECK_FALSE(std::filesystem::exists(to / "without/genai_config.json"));
  }
}

TEST_CASE("heads of another width have no GroupQueryAttention", "[nn][onnx]") {
  CHECK(sentence_of<config_error>([&] {
          static_cast<void>(nn::in_onnx(nn::llama{.heads = 12, .channels = 96}, {.dialect = nn::onnx_dialect::ort}));
        }) ==
        "trireme::nn::attend model.layers.0.self_attn: onnxruntime's GroupQueryAttention takes heads whose width is a "
        "multiple of 16 with rotary positions, and these are 8 wide; use the dialect native or portable");
  CHECK(sentence_of<config_error>([&] { static_cast<void>(nn::in_onnx(nn::llama{}, {.four_bits = true})); }) ==
        "trireme::nn::in_onnx: weights of 4 bits are onnxruntime's own (MatMulNBits); use the dialect ort");
  CHECK(nn::onnx_dialect_named("ort") == nn::onnx_dialect::ort);
  CHECK_FALSE(nn::onnx_dialect_named("other"));
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
