// Trireme 0.1.0: trireme/nn/onnx.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: c83695abd6581a7c80800ab285ca49deb23090d45fde3b6bb5b826b5da81afee
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/gguf.hpp"
#include "trireme/formats/onnx.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/convnet.hpp"
#include "trireme/nn/convnet_files.hpp"
#include "trireme/nn/deepseek.hpp"
#include "trireme/nn/deepseek_files.hpp"
#include "trireme/nn/onnx_dialect.hpp"
#include "trireme/nn/onnx_images.hpp"
#include "trireme/nn/onnx_layers.hpp"
#include "trireme/nn/pretrained.hpp"
#include "trireme/nn/vit.hpp"
#include "trireme/nn/vit_files.hpp"

// ---- trireme/nn/onnx.hpp
#include <cstdint>
#include <functional>
#include <span>
#include <string>

/// Models as graphs of ONNX (formats/onnx.hpp), for onnxruntime and its like, with the names of inputs and outputs that
/// Hugging Face's optimum and transformers.js use.
namespace trireme::nn {

struct onnx_options {
  bool past = true;  ///< of a decoder: takes past_key_values.N.key and .value, gives present.N.key and .value
  onnx_dialect dialect = onnx_dialect::portable;
  std::uint64_t most_inline = std::uint64_t{1} << 30;  ///< bytes of weights beyond which they are a file of their own
  /// Of onnx_dialect::ort: weights of products are stored in 4 bits, blocks of 32 inputs with a scale, as GGUF's Q4_0.
  bool four_bits = false;
};

/// The graph of a model. Its weights have the names and the order of numbers of the model's parameters.
///
/// A decoder (GPT, LLaMA, DeepSeek) takes `input_ids`, `attention_mask` and with a past `position_ids` and the keys and
/// values of earlier positions, of which there may be none; it gives `logits` of all positions. A position behind the
/// last one of the model's context is an error of the runtime. DeepSeek's keys and values are those of each head, of
/// different widths; its modules for multi-token prediction are left out.
/// BERT takes `input_ids`, `attention_mask` and `token_type_ids`, and gives `logits`: of words, or with classes of
/// classes.
/// Models of images take `pixel_values` (batch, channels, height, width), and give `logits` of classes.
///
/// With onnx_dialect::ort LLaMA takes no `position_ids`: positions are those of the tensor, padding is hidden.
/// With `four_bits` embeddings, experts and weights whose inputs are not whole blocks stay F32.
/// Errors   config_error with onnx_dialect::ort for heads whose width is not a multiple of 8, or of 16 with rotary
///          positions; for `four_bits` with another dialect.
[[nodiscard]] formats::onnx::graph in_onnx(gpt const& model, onnx_options const& options = {});
[[nodiscard]] formats::onnx::graph in_onnx(llama const& model, onnx_options const& options = {});
[[nodiscard]] formats::onnx::graph in_onnx(deepseek const& model, onnx_options const& options = {});
[[nodiscard]] formats::onnx::graph in_onnx(bert const& model, onnx_options const& options = {});
[[nodiscard]] formats::onnx::graph in_onnx(vit const& model, onnx_options const& options = {});
[[nodiscard]] formats::onnx::graph in_onnx(convnet const& model, onnx_options const& options = {});
[[nodiscard]] formats::onnx::graph in_onnx(synchronised_convnet const& model, onnx_options const& options = {});

/// Gives numbers of a parameter, which has a name and a shape, from element `first` on, in its order.
using onnx_numbers =
    std::function<void(formats::onnx::weight const& which, std::int64_t first, std::span<float> numbers)>;

/// Writes a graph and its weights, which are asked for in pieces, in their order; those of 4 bits whole. train/onnx.hpp
/// does it for a trainer.
/// @returns the bytes of the files.
std::uint64_t write_onnx(formats::onnx::graph const& graph, onnx_numbers const& numbers, std::string const& path,
                         onnx_options const& options = {}, formats::file_system& files = formats::real_files());

/// Writes the model that lies in a directory of Hugging Face's files as ONNX, in F32. The file, or both where weights
/// lie in PATH.safetensors, appear whole or not at all.
///
/// Bytes    memory is a piece of 256 KiB, the graph, and where rows turn (rotary positions) their table; with
/// `four_bits`
///          the largest weight.
/// Errors   io_error; format_error for files that are not a model's, and for a model that has no graph; config_error
///          as in_onnx().
/// @returns the bytes of the files.
std::uint64_t write_onnx(std::string const& directory, std::string const& path, onnx_options const& options = {},
                         formats::file_system& files = formats::real_files());

/// The same as a directory that runtimes take as it is: `model.onnx`, beside it config.json and the tokenizer's files,
/// and for a decoder `generation_config.json` and `genai_config.json`, which onnxruntime-genai begins with. The last is
/// left out where that has no such models: without a past, and for keys and values of different widths.
///
/// Errors   as write_onnx(). Each file appears whole or not at all, the model first.
/// @returns the bytes of the model's files.
std::uint64_t write_onnx_directory(std::string const& directory, std::string const& to,
                                   onnx_options const& options = {},
                                   formats::file_system& files = formats::real_files());

}  // namespace trireme::nn

#ifndef TRIREME_NN_ONNX_IPP_INCLUDED
#define TRIREME_NN_ONNX_IPP_INCLUDED

// ---- trireme/nn/onnx.ipp
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::nn {

namespace detail {

template <class Model>
onnx_walk walk_of(Model const& model, onnx_options const& options, bool past) {
  model.validate();
  if (options.four_bits && options.dialect != onnx_dialect::ort) {
    throw config_error(
        text("trireme::nn::in_onnx: weights of 4 bits are onnxruntime's own (MatMulNBits); use the ", "dialect ort"));
  }
  return onnx_walk(past, options.dialect, options.four_bits);
}

/// Writes blocks of 4 bits, and behind them their scales: numbers and scales of GGUF's Q4_0, neighbours in a byte.
TRIREME_BODY void write_blocks(formats::onnx::writer& to, formats::onnx::weight const& which,
                               onnx_numbers const& numbers) {
  namespace gguf = formats::gguf;
  constexpr std::int64_t block = 32;
  auto const outputs = which.extents[0], inputs = which.extents[1] * block;
  auto const extents = which.turned ? shape{inputs, outputs} : shape{outputs, inputs};
  std::vector<float> whole(static_cast<std::size_t>(inputs * outputs)), row(static_cast<std::size_t>(inputs)), scales;
  numbers({which.source, extents}, 0, std::span(whole));
  std::vector<std::byte> stored(static_cast<std::size_t>(inputs / block * gguf::block_bytes(gguf::kind::q4_0)));
  std::vector<std::byte> blocks(static_cast<std::size_t>(inputs / 2));
  scales.reserve(static_cast<std::size_t>(outputs * inputs / block));
  for (std::int64_t i = 0; i < outputs; ++i) {
    for (std::int64_t j = 0; j < inputs; ++j)
      row[static_cast<std::size_t>(j)] =
          whole[static_cast<std::size_t>(which.turned ? j * outputs + i : i * inputs + j)];
    gguf::quantize(gguf::kind::q4_0, row, stored);
    auto from = stored.begin();
    auto next = blocks.begin();
    while (from != stored.end()) {
      float16 scale;
      scale.bits =
          static_cast<std::uint16_t>(std::to_integer<unsigned>(from[0]) | std::to_integer<unsigned>(from[1]) << 8);
      scales.push_back(static_cast<float>(scale));
      from += 2;
      auto const at = [&](std::ptrdiff_t k) { return k < 16 ? from[k] & std::byte{15} : from[k - 16] >> 4; };
      for (std::ptrdiff_t k = 0; k < block; k += 2) *next++ = at(k) | at(k + 1) << 4;
      from += 16;
    }
    to.write(std::span<std::byte const>(blocks));
  }
  to.write(std::span<float const>(scales));
}

template <class Model>
formats::onnx::graph graph_of_words(Model const& model, char const* name, onnx_options const& options,
                                    bool rows = true) {
  auto at = walk_of(model, options, options.past);
  at.graph.name = name;
  at.context = model.context;
  at.tokens();
  at.mask();
  auto const logits = onnx_nodes_of_units(at, model);
  formats::onnx::value_info output{"logits", formats::onnx::element::f32, {std::string("batch_size")}};
  if (rows) output.extents.emplace_back(std::string("sequence_length"));
  output.extents.emplace_back(at.width);
  at.finish(logits, std::move(output));
  return std::move(at.graph);
}

template <class Model>
formats::onnx::graph graph_of_images(Model const& model, char const* name, onnx_options const& options) {
  auto at = walk_of(model, options, false);
  at.graph.name = name;
  at.image = model.images;
  at.planes = true;
  auto const logits = onnx_nodes_of_units(at, model);
  at.finish(logits, {"logits", formats::onnx::element::f32, {std::string("batch_size"), model.classes}});
  return std::move(at.graph);
}

/// Writes a model whose description is read.
template <class Model>
std::uint64_t write_onnx_of(Model const& model, std::string const& directory, std::string const& path,
                            onnx_options const& options, formats::file_system& files) {
  pretrained_reader const from(model.in_files(), directory, files);
  auto const numbers = [&](formats::onnx::weight const& which, std::int64_t first, std::span<float> to) {
    from.read({which.name, which.extents}, first, to);
  };
  return write_onnx(in_onnx(model, options), numbers, path, options, files);
}

/// What onnxruntime-genai is to know of a decoder.
struct genai_sizes {
  std::int64_t heads = 0, key_heads = 0, head_width = 0;
  std::int64_t value_width = 0;  ///< the same, or it cannot run the model
};
[[nodiscard]] inline genai_sizes genai_sizes_of(gpt const& model) {
  return {model.heads, model.heads, model.channels / model.heads, model.channels / model.heads};
}
[[nodiscard]] inline genai_sizes genai_sizes_of(llama const& model) {
  return {model.heads, model.keys(), model.width(), model.width()};
}
[[nodiscard]] inline genai_sizes genai_sizes_of(deepseek const& model) {
  return {model.heads, model.heads, model.plain + model.rotary_width, model.values};
}

/// @param positions  whether the graph takes them.
/// @param known      the numbers of special tokens that the model's files name.
template <class Model>
[[nodiscard]] formats::json::value genai_config(Model const& model, std::string const& type, bool positions,
                                                std::vector<formats::json::member> const& known) {
  namespace json = formats::json;
  auto const sizes = genai_sizes_of(model);
  auto inputs = json::value::make({{"input_ids", "input_ids"},
                                   {"attention_mask", "attention_mask"},
                                   {"past_key_names", "past_key_values.%d.key"},
                                   {"past_value_names", "past_key_values.%d.value"}});
  if (positions) inputs.set("position_ids", "position_ids");
  auto const outputs = json::value::make(
      {{"logits", "logits"}, {"present_key_names", "present.%d.key"}, {"present_value_names", "present.%d.value"}});
  auto const session =
      json::value::make({{"log_id", "onnxruntime-genai"}, {"provider_options", json::value(json::array{})}});
  auto const decoder = json::value::make({{"session_options", session},
                                          {"filename", "model.onnx"},
                                          {"head_size", sizes.head_width},
                                          {"hidden_size", model.channels},
                                          {"inputs", inputs},
                                          {"outputs", outputs},
                                          {"num_attention_heads", sizes.heads},
                                          {"num_hidden_layers", model.layers},
                                          {"num_key_value_heads", sizes.key_heads}});
  bool const own = type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3";
  auto of_model = json::value::make({{"type", own ? type : "decoder"},
                                     {"context_length", model.context},
                                     {"vocab_size", model.vocabulary},
                                     {"decoder", decoder}});
  for (auto const& each : known) of_model.set(each.key, each.content);
  auto const search = json::value::make({{"do_sample", false},
                                         {"early_stopping", true},
                                         {"max_length", model.context},
                                         {"min_length", 0},
                                         {"num_beams", 1},
                                         {"num_return_sequences", 1},
                                         {"past_present_share_buffer", false},
                                         {"repetition_penalty", 1.0},
                                         {"temperature", 1.0},
                                         {"top_k", 1},
                                         {"top_p", 1.0}});
  return json::value::make({{"model", of_model}, {"search", search}});
}

/// The numbers of special tokens by generation_config.json, or else config.json; for padding those of the end.
[[nodiscard]] TRIREME_BODY std::vector<formats::json::member> special_tokens(
    std::vector<formats::model_file> const& files) {
  std::vector<formats::json::member> out;
  for (auto const* const key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    for (auto const name : {generation_config_file, formats::config_file}) {
      auto const* const file = formats::find(files, name);
      if (file == nullptr) continue;
      auto const said = formats::json::parse(file->content, name);
      auto const* const found = said.find(key);
      if (found == nullptr || found->is_null() || (!found->is_array() && found->as_int64() < 0)) continue;
      out.push_back({key, *found});
      break;
    }
  }
  auto const ends = end_tokens(files);
  bool const padded = !out.empty() && out.back().key == "pad_token_id";
  if (!padded && !ends.empty()) out.push_back({"pad_token_id", ends.front()});
  return out;
}

/// Calls f(description, type) with the description of the model that lies in a directory.
template <class F>
std::uint64_t with_onnx_model(std::string const& directory, formats::file_system& files, F&& f) {
  auto const type = model_type_in(directory, files);
  if (type.starts_with("gpt")) return f(read_description<gpt>(directory, files), type);
  if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3")
    return f(read_description<llama>(directory, files), type);
  if (type == "deepseek_v3") return f(read_description<deepseek>(directory, files), type);
  if (type == "bert") return f(read_description<bert>(directory, files), type);
  if (type == "vit") return f(read_description<vit>(directory, files), type);
  if (type == convnet_type) return f(read_description<convnet>(directory, files), type);
  throw format_error(text(directory, "/", formats::config_file), 0,
                     text("a model of type \"", type.substr(0, 80),
                          "\" is not written as ONNX; gpt2, llama, mistral, qwen2, qwen3, deepseek_v3, bert, vit and ",
                          convnet_type, " are"));
}

}  // namespace detail

TRIREME_BODY formats::onnx::graph in_onnx(gpt const& model, onnx_options const& options) {
  return detail::graph_of_words(model, "gpt2", options);
}
TRIREME_BODY formats::onnx::graph in_onnx(llama const& model, onnx_options const& options) {
  return detail::graph_of_words(model, "llama", options);
}
TRIREME_BODY formats::onnx::graph in_onnx(deepseek const& model, onnx_options const& options) {
  return detail::graph_of_words(model, "deepseek_v3", options);
}
TRIREME_BODY formats::onnx::graph in_onnx(bert const& model, onnx_options const& options) {
  auto of_bert = options;
  of_bert.past = false;
  return detail::graph_of_words(model, "bert", of_bert, model.classes == 0);
}
TRIREME_BODY formats::onnx::graph in_onnx(vit const& model, onnx_options const& options) {
  return detail::graph_of_images(model, "vit", options);
}
TRIREME_BODY formats::onnx::graph in_onnx(convnet const& model, onnx_options const& options) {
  return detail::graph_of_images(model, "convnet", options);
}
TRIREME_BODY formats::onnx::graph in_onnx(synchronised_convnet const& model, onnx_options const& options) {
  return detail::graph_of_images(model, "convnet", options);
}

TRIREME_BODY std::uint64_t write_onnx(formats::onnx::graph const& graph, onnx_numbers const& numbers,
                                      std::string const& path, onnx_options const& options,
                                      formats::file_system& files) {
  formats::onnx::writer to(path, graph, {.most_inline = options.most_inline}, files);
  std::vector<float> some;
  for (auto const& each : graph.weights) {
    if (!each.source.empty()) {
      if (each.type == formats::onnx::element::u8) detail::write_blocks(to, each, numbers);
      continue;
    }
    constexpr std::int64_t most = std::int64_t{1} << 16;
    for (std::int64_t first = 0; first < each.extents.size(); first += most) {
      some.resize(static_cast<std::size_t>(std::min(most, each.extents.size() - first)));
      numbers(each, first, std::span(some));
      to.write(some);
    }
  }
  to.finish();
  return to.file_bytes();
}

TRIREME_BODY std::uint64_t write_onnx(std::string const& directory, std::string const& path,
                                      onnx_options const& options, formats::file_system& files) {
  return detail::with_onnx_model(directory, files, [&](auto const& model, std::string const&) {
    return detail::write_onnx_of(model, directory, path, options, files);
  });
}

TRIREME_BODY std::uint64_t write_onnx_directory(std::string const& directory, std::string const& to,
                                                onnx_options const& options, formats::file_system& files) {
  return detail::with_onnx_model(directory, files, [&](auto const& model, std::string const& type) {
    auto const known = formats::read_model_files(directory, files);
    formats::make_directories(to, files);
    auto const bytes = detail::write_onnx_of(model, directory, text(to, "/model.onnx"), options, files);
    formats::directory const in(to, files);
    formats::file_set beside;
    auto const add = [&](std::string_view name, formats::json::value const& content) {
      beside.add(in, std::string(name), to_string(content, 2) + "\n");
    };
    for (auto const& each : known) {
      if (each.name == formats::config_file || matches_any(formats::tokenizer_file_names, each.name))
        formats::add_model_file(beside, in, each);
    }
    if constexpr (requires { detail::genai_sizes_of(model); }) {
      auto const tokens = detail::special_tokens(known);
      if (auto const* const said = formats::find(known, generation_config_file)) {
        formats::add_model_file(beside, in, *said);
      } else {
        auto made = formats::json::value::make({{"_from_model_config", true}});
        for (auto const& each : tokens) made.set(each.key, each.content);
        add(generation_config_file, made);
      }
      auto const sizes = detail::genai_sizes_of(model);
      if (options.past && sizes.head_width == sizes.value_width) {
        auto const graph = in_onnx(model, options);
        bool const positions = std::any_of(graph.inputs.begin(), graph.inputs.end(),
                                           [](auto const& each) { return each.name == "position_ids"; });
        add("genai_config.json", detail::genai_config(model, type, positions, tokens));
      }
    }
    beside.appear();
    return bytes;
  });
}

}  // namespace trireme::nn

#endif  // TRIREME_NN_ONNX_IPP_INCLUDED
