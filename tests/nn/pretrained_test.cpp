#include "trireme/nn/pretrained.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/memory_files.hpp"
#include "../support/sentence.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/one_of.hpp"

using namespace trireme;
namespace json = formats::json;
namespace safetensors = formats::safetensors;

namespace {

std::string golden(std::string const& kind) {
  auto const* const folder = std::getenv("TRIREME_TEST_DATA");  // ctest says where tests/ is
  return std::string(folder == nullptr ? "tests" : folder) + "/golden/pretrained/" + kind;
}

/// What is said of a description's config.json in which members are other ones.
template <class Model>
std::string refused(Model const& model, json::object const& others) {
  auto config = config_of(model);
  for (auto const& [key, content] : others) config.set(key, content);
  return sentence_of<format_error>([&] {
    auto read = json::parse(json::to_string(config), "config.json");
    Model to;
    nn::read_config(read, to);
  });
}

nn::llama const small{
    .vocabulary = 11, .context = 8, .layers = 1, .heads = 4, .key_heads = 2, .channels = 8, .hidden = 6, .tied = true};

/// Files of `small` in which tensors may be left out, changed, or added.
class damaged {
 public:
  damaged() {
    for (auto const& each : small.in_files().tensors) entries.push_back({each.name, dtype::f32, each.extents});
    files.add_directory("m");
  }
  std::vector<safetensors::entry> entries;
  std::string changed;  // a tensor that is not all zeros

  safetensors::entry& at(std::string const& name) {
    return *std::ranges::find_if(entries, [&](auto const& each) { return each.name == name; });
  }
  std::string said() {
    write("model.safetensors", entries);
    return sentence_of<format_error>([&] { nn::pretrained_reader const reader(small.in_files(), "m", files); });
  }
  void write(std::string const& name, std::vector<safetensors::entry> const& tensors) {
    safetensors::writer writer(formats::directory("m", files), name, tensors);
    auto const bytes = std::accumulate(writer.entries().begin(), writer.entries().end(), std::size_t{0},
                                       [](std::size_t sum, auto const& each) { return sum + each.bytes; });
    std::vector<std::byte> content(bytes);
    std::size_t at = 0;
    for (auto const& each : writer.entries()) {
      if (each.name == changed) content[at + each.bytes - 2] = std::byte{0x3f};  // of its last number
      at += each.bytes;
    }
    writer.write(content);
    writer.finish();
  }
  memory_files files;
};

}  // namespace

TEST_CASE("descriptions are read from files of transformers", "[nn][pretrained]") {
  nn::llama const llama{.vocabulary = 37,
                        .context = 16,
                        .layers = 2,
                        .heads = 4,
                        .key_heads = 2,
                        .channels = 16,
                        .hidden = 12,
                        .rotary = 100};
  CHECK(nn::read_description<nn::llama>(golden("llama")) == llama);
  auto qwen = llama;
  qwen.rotary = 10000;
  auto mistral = qwen;
  mistral.window = 4096;
  CHECK(nn::read_description<nn::llama>(golden("mistral")) == mistral);
  mistral.window = 5;
  CHECK(nn::read_description<nn::llama>(golden("mistral_window")) == mistral);
  auto three = llama;
  three.scaling = {.factor = 8, .original = 9, .low = 0.5, .high = 2};
  CHECK(nn::read_description<nn::llama>(golden("llama3")) == three);
  three = qwen;
  three.head_width = 6, three.tied = three.head_norms = true;
  CHECK(nn::read_description<nn::llama>(golden("qwen3")) == three);
  qwen.tied = qwen.biased = true;
  CHECK(nn::read_description<nn::llama>(golden("qwen2")) == qwen);
  nn::gpt const gpt{.vocabulary = 37, .context = 16, .layers = 2, .heads = 2, .channels = 16};
  CHECK(nn::read_description<nn::gpt>(golden("gpt2")) == gpt);
  CHECK(nn::read_description<nn::gpt>(golden("gpt2_base")) == gpt);
  CHECK(nn::model_type_in(golden("gpt2")) == "gpt2");
  nn::bert bert{.vocabulary = 37, .context = 16, .layers = 2, .heads = 2, .channels = 16, .hidden = 24};
  CHECK(nn::read_description<nn::bert>(golden("bert_masked")) == bert);
  CHECK(nn::read_description<nn::bert>(golden("bert_encoder")) == bert);
  bert.classes = 3;
  CHECK(nn::read_description<nn::bert>(golden("bert_classifier")) == bert);
}

TEST_CASE("a description is read back from its config.json", "[nn][pretrained]") {
  auto const again = [](auto const& model) {
    std::remove_cvref_t<decltype(model)> out;
    nn::read_config(json::parse(json::to_string(nn::config_of(model)), "config.json"), out);
    return out;
  };
  nn::gpt const gpt{.dropout = 0.1, .experts = 4, .top_k = 3};
  CHECK(again(gpt) == gpt);
  CHECK(again(nn::gpt{}) == nn::gpt{});
  CHECK(to_string(again(small)) == to_string(small));
  for (auto const& each :
       {nn::bert{}, nn::bert{.hidden = 7, .segments = 1, .padding = -1, .dropout = 0.1}, nn::bert{.classes = 2},
        nn::bert{.classes = 5, .padding = 4, .separator = -1, .epsilon = 1e-6}}) {
    CHECK(to_string(again(each)) == to_string(each));
  }
  nn::llama const biased{.rotary = 5e5, .epsilon = 1e-6, .biased = true};
  CHECK(to_string(again(biased)) == to_string(biased));
  for (auto const& each : {nn::llama{.scaling = {.factor = 4}}, nn::llama{.window = 7},
                           nn::llama{.scaling = {.factor = 8, .original = 64, .low = 2, .high = 8}, .window = 7},
                           nn::llama{.window = 7, .biased = true}, nn::llama{.window = 7, .head_norms = true},
                           nn::llama{.head_width = 128, .head_norms = true}}) {
    CHECK(to_string(again(each)) == to_string(each));
  }
}

TEST_CASE("a model chosen at run time has the files and the description of the chosen one", "[nn][pretrained]") {
  nn::one_of<nn::gpt, nn::llama> either{small};
  CHECK(to_string(either) == to_string(small));
  CHECK(config_of(either) == nn::config_of(small));
  CHECK(either.in_files().tensors == small.in_files().tensors);
  CHECK(either.unit_costs() == small.unit_costs());
  either.chosen = nn::gpt{.heads = 7};
  CHECK(contains(sentence_of<config_error>([&] { either.validate(); }), "not divisible by 7 heads"));
}

TEST_CASE("configurations of transformers 4 are read", "[nn][pretrained]") {
  nn::llama out;
  nn::read_config(json::parse(R"({"model_type": "llama", "vocab_size": 9, "max_position_embeddings": 8,
      "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "rope_scaling": null,
      "rope_theta": 500, "rope_interleaved": false, "sliding_window": null, "pretraining_tp": 1})",
                              "config.json"),
                  out);
  CHECK(out.rotary == 500);
  CHECK(out.key_heads == 2);
  CHECK(out.epsilon == 1e-6);
  CHECK_FALSE(out.tied);
}

TEST_CASE("unsupported settings of a model are refused in one sentence", "[nn][pretrained]") {
  nn::gpt const gpt{};
  CHECK(contains(refused(gpt, {{"activation_function", "relu"}}),
                 "\"activation_function\" is \"relu\", which nn::gpt cannot be; it takes \"gelu_new\" or "));
  CHECK(contains(refused(gpt, {{"n_inner", 7}}), "\"n_inner\" is 7, which nn::gpt cannot be; it takes 1536"));
  CHECK(contains(refused(gpt, {{"tie_word_embeddings", false}}), "it takes true"));
  CHECK(contains(refused(gpt, {{"layer_norm_epsilon", 1e-6}}), "it takes 1e-05"));
  CHECK(contains(refused(gpt, {{"embd_pdrop", 0.5}}), "it takes 0"));
  CHECK(contains(refused(gpt, {{"n_layer", 0}}), "\"n_layer\" is 0; it is from 1 to 16777216"));
  CHECK(contains(refused(gpt, {{"n_embd", 1 << 25}}), "\"n_embd\" is 33554432; it is from 1 to 16777216"));
  CHECK(contains(refused(gpt, {{"n_head", nullptr}}), "expected an integer"));
  CHECK(contains(refused(gpt, {{"model_type", "llama"}}), "nn::gpt is \"gpt2\", not \"llama\""));
  CHECK(contains(refused(gpt, {{"quantization_config", json::object{}}}), "it takes none"));

  nn::llama const llama{};
  CHECK(contains(refused(llama, {{"hidden_act", "gelu"}}), "which nn::llama cannot be; it takes \"silu\""));
  CHECK(contains(refused(llama, {{"attention_bias", true}}), "it takes false"));
  CHECK(contains(refused(llama, {{"head_dim", 0}}), "\"head_dim\" is 0; it is from 1 to "));
  CHECK(contains(refused(llama, {{"head_dim", 1 << 24}}), "6 heads of 16777216 numbers are too many"));
  CHECK(contains(refused(llama, {{"model_type", "gemma"}}), "not \"gemma\""));
  auto const rule = [&](json::object const& numbers) { return refused(llama, {{"rope_parameters", numbers}}); };
  CHECK(contains(rule({{"rope_type", "yarn"}, {"factor", 2}}), "rotary positions of type \"yarn\" are not known"));
  CHECK(contains(rule({{"rope_type", "linear"}}), "\"factor\""));
  CHECK(contains(rule({{"rope_type", "linear"}, {"factor", 2}, {"low_freq_factor", 2}}), "nothing is known of"));
  CHECK(contains(rule({{"rope_type", "llama3"}, {"factor", 2}}), "\"original_max_position_embeddings\""));
  CHECK(
      contains(rule({{"rope_type", "llama3"}, {"factor", 2}, {"original_max_position_embeddings", 0}}), "at least 1"));
  CHECK(contains(refused(llama, {{"rope_parameters", json::value::make({{"rope_theta", 1e4}, {"factor", 2}})}}),
                 "nothing is known of \"factor\""));
  CHECK(contains(refused(llama, {{"rope_interleave", true}}), "nothing is known of \"rope_interleave\""));
  CHECK(contains(refused(llama, {{"use_sliding_window", true}}), "it takes false"));
  CHECK(contains(refused(llama, {{"layer_types", json::array{"sliding_attention"}}}), "all \"full_attention\""));
  json::object const qwen{{"model_type", "qwen2"}, {"use_sliding_window", true}, {"sliding_window", 9}};
  CHECK(refused(llama, qwen) == "");  // from layer 28 on: none
  auto some = qwen;
  some.push_back({"max_window_layers", 3});
  CHECK(contains(refused(llama, some), "the first 3 of 6 layers have no window and the others have one"));
  some.back() = {"layer_types", json::array{"sliding_attention", "full_attention"}};
  CHECK(contains(refused(llama, some), "all \"sliding_attention\""));
  CHECK(refused(llama, {{"model_type", "mistral"}, {"sliding_window", 256}}) == "");
  CHECK(refused(llama, {{"model_type", "mistral"}, {"sliding_window", nullptr}}) == "");

  nn::bert const bert{.classes = 3};
  CHECK(contains(refused(bert, {{"hidden_act", "gelu_new"}}), "which nn::bert cannot be; it takes \"gelu\""));
  CHECK(contains(refused(bert, {{"position_embedding_type", "relative_key"}}), "it takes \"absolute\""));
  CHECK(contains(refused(bert, {{"is_decoder", true}}), "it takes false"));
  CHECK(contains(refused(bert, {{"problem_type", "regression"}}), "it takes \"single_label_classification\""));
  CHECK(contains(refused(bert, {{"classifier_dropout", 0.5}}), "it takes 0"));
  CHECK(contains(refused(bert, {{"num_labels", 1}}), "a classifier of 1 class; nn::bert is read with 2 or more"));
  CHECK(contains(refused(bert, {{"pad_token_id", -1}}), "\"pad_token_id\" is -1; it is from 0 to 16777215"));
  CHECK(contains(refused(bert, {{"model_type", "roberta"}}), "nn::bert is \"bert\", not \"roberta\""));
  CHECK(contains(refused(bert, {{"architectures", 3}}), "expected an array"));

  memory_files files;
  files.add_directory("m");
  files["m/config.json"] = R"({"model_type": "gpt2", "vocab_size": 9, "n_positions": 8, "n_embd": 10, "n_layer": 1,
                              "n_head": 3})";
  CHECK(sentence_of<format_error>([&] { static_cast<void>(nn::read_description<nn::gpt>("m", files)); }) ==
        "m/config.json: byte 0: trireme::nn::gpt: 10 channels are not divisible by 3 heads");
}

TEST_CASE("tensors that are missing, superfluous or of another shape are named", "[nn][pretrained]") {
  CHECK(damaged().said() == "");
  {
    damaged files;
    files.entries.pop_back();
    CHECK(files.said() == "m/model.safetensors: byte 0: it has no tensor \"model.norm.weight\", which the model needs");
  }
  {
    damaged files;
    files.at("model.norm.weight").extents = {9};
    CHECK(contains(files.said(), "the tensor \"model.norm.weight\" has the shape (9), but that of the model has (8)"));
  }
  {
    damaged files;
    files.at("model.layers.0.self_attn.k_proj.weight").extents = {8, 8};  // as many keys as queries
    CHECK(contains(files.said(), "k_proj.weight\" has the shape (8, 8), but that of the model has (4, 8)"));
  }
  {
    damaged files;
    files.at("model.norm.weight").type = *safetensors::stored_type::named("I8");
    CHECK(contains(files.said(), "is of type I8; F64, F32, BF16 and F16 are read"));
  }
  {
    damaged files;
    files.entries.push_back({"model.layers.1.input_layernorm.weight", dtype::f32, {8}});
    CHECK(contains(files.said(), "it has a tensor \"model.layers.1.input_layernorm.weight\", which the model "));
  }
  {
    damaged files;  // what older files also have
    files.entries.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", dtype::f32, {1}});
    files.entries.push_back({"lm_head.weight", dtype::f32, {11, 8}});
    CHECK(files.said() == "");
  }
}

TEST_CASE("a tensor that files contain twice must have equal values, or is refused by name", "[nn][pretrained]") {
  auto const twice = [](auto const& what, std::string const& name, std::string const& of, auto const& type) {
    auto const layout = what.in_files();
    auto const said = [&](std::string const& changed, bool once, shape const& extents) {
      damaged files;
      files.entries.clear();
      for (auto const& each : layout.tensors) {
        if (!once || each.name != of) files.entries.push_back({each.name, dtype::f32, each.extents});
      }
      files.entries.push_back({name, type, extents});
      files.changed = changed;
      files.write("model.safetensors", files.entries);
      return sentence_of<format_error>([&] { nn::pretrained_reader const reader(layout, "m", files.files); });
    };
    auto const& extents =
        std::ranges::find_if(layout.tensors, [&](auto const& each) { return each.name == of; })->extents;
    INFO(name << " of " << of);
    CHECK(said("", false, extents) == "");
    CHECK(said("", true, extents) == "");  // some writers keep only this one
    auto const sentence = said(name, false, extents);
    CHECK(contains(sentence, "the tensor \"" + name + "\" is not \"" + of + "\" once more (element "));
    CHECK(contains(sentence, "this model has one for both; "));
    CHECK(said(of, false, extents) != "");
    CHECK(contains(said("", false, {3}), "(3) in place of"));
  };
  twice(small, "lm_head.weight", "model.embed_tokens.weight", dtype::f32);
  twice(small, "lm_head.weight", "model.embed_tokens.weight", dtype::bf16);
  nn::gpt const gpt{.vocabulary = 7, .context = 4, .layers = 1, .heads = 1, .channels = 4};
  twice(gpt, "lm_head.weight", "transformer.wte.weight", dtype::f32);
  nn::bert const bert{.vocabulary = 7, .context = 4, .layers = 1, .heads = 1, .channels = 4};
  twice(bert, "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", dtype::f32);
  twice(bert, "cls.predictions.decoder.bias", "cls.predictions.bias", dtype::f16);
}

TEST_CASE("an index and its files agree, and stay in their directory", "[nn][pretrained]") {
  damaged files;
  auto const said = [&] {
    return sentence_of([&] { nn::pretrained_reader const reader(small.in_files(), "m", files.files); });
  };
  CHECK(said() == "m: there is neither model.safetensors nor model.safetensors.index.json in it");
  auto const split = files.entries.begin() + 3;
  json::value map = json::object{};
  for (auto each = files.entries.begin(); each != files.entries.end(); ++each)
    map.set(each->name, each < split ? "a" : "b");
  auto const index = [&](json::value const& weights) {
    files.files["m/model.safetensors.index.json"] = json::to_string(json::value::make({{"weight_map", weights}}));
  };
  index(map);
  files.write("a", {files.entries.begin(), split});
  CHECK(contains(said(), "m/b: cannot open"));
  files.write("b", {split, files.entries.end()});
  CHECK(said() == "");
  files.write("b", {split + 1, files.entries.end()});
  CHECK(contains(said(), "m/b: byte 0: it has no tensor \"model.layers.0.self_attn.k_proj.weight\", which the index"));
  files.write("b", {split - 1, files.entries.end()});
  CHECK(contains(said(), "m/b: byte 0: it has 9 tensors, but the index lists 8"));
  for (auto const* name : {"../a", "", "..", "x/y"}) {
    map.set("lm_head.weight", name);
    index(map);
    CHECK(contains(said(), "is not the name of a file in the index's directory"));
  }
}

TEST_CASE("any part of a parameter is read with the values of the whole", "[nn][pretrained]") {
  auto const layout = small.in_files();
  std::int64_t most = 0;
  std::vector<std::pair<std::string, std::vector<float>>> whole;
  for (auto const& each : layout.tensors) {
    std::vector<float> values(static_cast<std::size_t>(each.inputs * each.columns));
    std::iota(values.begin(), values.end(), static_cast<float>(most));
    most += each.inputs * each.columns;
    bool const known = std::ranges::any_of(whole, [&](auto const& other) { return other.first == each.parameter; });
    if (!known) whole.emplace_back(each.parameter, std::move(values));
  }
  auto const most_bytes = GENERATE(std::uint64_t{400}, std::uint64_t{1} << 30);
  memory_files files;
  files.add_directory("m");
  nn::pretrained_writer out(layout);
  for (auto const& [name, values] : whole) out.add(name, values);
  out.write(formats::directory("m", files), nn::config_of(small), most_bytes);
  nn::pretrained_reader const in(layout, "m", files);
  for (auto const& [name, values] : whole) {
    INFO(name);
    auto const each = std::ranges::find_if(layout.tensors, [&, n = name](auto const& t) { return t.parameter == n; });
    parameter_info const all{name, each->inputs == 1 ? shape{each->columns} : shape{each->inputs, each->columns}};
    std::vector<parameter_info> parts{all};
    for (int axis = 0; axis < all.extents.rank(); ++axis) {
      for (int rank = 0; rank < 3; ++rank)
        parts.push_back(shard_of(all, axis, group_rank{rank, 3}.of(all.extents[axis])));
    }
    for (auto const& part : parts) {
      for (std::int64_t first = 0; first < part.extents.size(); first += 5) {
        auto const count = std::min<std::int64_t>(part.extents.size() - first, 13);
        std::vector<float> got(static_cast<std::size_t>(count)), wanted;
        in.read(part, first, std::span(got));
        for_each_run(part, first, count, [&, v = std::cref(values)](std::int64_t at, std::int64_t, std::int64_t n) {
          wanted.insert(wanted.end(), v.get().begin() + at, v.get().begin() + at + n);
        });
        REQUIRE(got == wanted);
      }
    }
  }
}

TEST_CASE("norms of BERTs have other names in older files", "[nn][pretrained]") {
  nn::bert const bert{.vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .channels = 2, .hidden = 3, .classes = 2};
  auto const layout = bert.in_files();
  auto old = layout;
  for (auto& each : old.tensors) {
    for (auto const& [now, then] : layout.older) {
      if (each.name.ends_with(now)) each.name.replace(each.name.size() - now.size(), now.size(), then);
    }
  }
  memory_files files;
  files.add_directory("m");
  nn::pretrained_writer out(old);
  for (auto const& each : old.tensors)
    out.add(each.parameter, std::vector<float>(static_cast<std::size_t>(each.size()), 7));
  out.write(formats::directory("m", files), nn::config_of(bert));
  nn::pretrained_reader const in(layout, "m", files);
  std::vector<float> norm(2);
  in.read({"bert.encoder.layer.0.output.LayerNorm.weight", {2}}, 0, std::span(norm));
  CHECK(norm == std::vector<float>{7, 7});
  CHECK(old.tensors[3].name == "bert.embeddings.LayerNorm.gamma");
}

TEST_CASE("a text ends at the tokens of generation_config.json, or else of config.json", "[nn][pretrained]") {
  memory_files files;
  files.add_directory("m");
  using ends = std::vector<std::int32_t>;
  auto const read = [&] { return nn::end_tokens_in("m", files); };
  CHECK(read().empty());
  files["m/config.json"] = R"({"eos_token_id": null})";
  CHECK(read().empty());
  files["m/config.json"] = R"({"eos_token_id": 2})";
  CHECK(read() == ends{2});
  files["m/config.json"] = R"({"eos_token_id": [128001, 128008]})";
  CHECK(read() == ends{128001, 128008});
  files["m/generation_config.json"] = R"({"temperature": 0.6})";
  CHECK(read() == ends{128001, 128008});
  files["m/generation_config.json"] = R"({"eos_token_id": [7, -1, 0]})";
  CHECK(read() == ends{7, 0});
  CHECK(nn::end_tokens({{"config.json", R"({"eos_token_id": 3})"}}) == ends{3});
  for (auto const* const bad : {R"("</s>")", "3000000000", "1.5", "[[1]]"}) {
    files["m/generation_config.json"] = text(R"({"eos_token_id": )", bad, "}");
    CHECK(contains(sentence_of<format_error>([&] { read(); }), "generation_config.json: byte "));
  }
}
