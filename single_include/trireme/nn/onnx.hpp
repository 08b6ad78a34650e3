// Trireme 0.1.0: trireme/nn/onnx.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: a55a0498f2c3e72c6e074d59a1d230c3c1164afd4d05469c07f7b1aa93c9d661
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/onnx.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/onnx_layers.hpp"
#include "trireme/nn/pretrained.hpp"

// ---- trireme/nn/onnx.hpp
#include <cstdint>
#include <string>

/// Models as graphs of ONNX (formats/onnx.hpp), for onnxruntime and its like, with the names of inputs and outputs that
/// Hugging Face's optimum and transformers.js use.
namespace trireme::nn {

struct onnx_options {
  bool past = true;  ///< of a decoder: takes past_key_values.N.key and .value, gives present.N.key and .value
  std::uint64_t most_inline = std::uint64_t{1} << 30;  ///< bytes of weights beyond which they are a file of their own
};

/// The graph of a model: opset 18, standard operators only. Its weights have the names and the order of numbers of the
/// model's parameters.
///
/// A decoder (GPT, LLaMA) takes `input_ids`, `attention_mask` and with a past `position_ids` and the keys and values of
/// earlier positions, of which there may be none; it gives `logits` of all positions. A position behind the last one of
/// the model's context is an error of the runtime.
/// BERT takes `input_ids`, `attention_mask` and `token_type_ids`, and gives `logits`: of words, or with classes of
/// classes.
///
/// Errors   config_error for a GPT with experts.
[[nodiscard]] formats::onnx::graph in_onnx(gpt const& model, onnx_options const& options = {});
[[nodiscard]] formats::onnx::graph in_onnx(llama const& model, onnx_options const& options = {});
[[nodiscard]] formats::onnx::graph in_onnx(bert const& model, onnx_options const& options = {});

/// Writes the model that lies in a directory of Hugging Face's files as ONNX, in F32. The file, or both where weights
/// lie in PATH.data, appear whole or not at all.
///
/// Bytes    memory is a piece of 256 KiB, the graph, and where rows turn (rotary positions) their table.
/// Errors   io_error; format_error for files that are not a model's, and for a model that has no graph; config_error
///          as in_onnx().
/// @returns the bytes of the files.
std::uint64_t write_onnx(std::string const& directory, std::string const& path, onnx_options const& options = {},
                         formats::file_system& files = formats::real_files());

}  // namespace trireme::nn

#ifndef TRIREME_NN_ONNX_IPP_INCLUDED
#define TRIREME_NN_ONNX_IPP_INCLUDED

// ---- trireme/nn/onnx.ipp
#include <algorithm>
#include <utility>
#include <vector>

namespace trireme::nn {

namespace detail {

template <class Model>
formats::onnx::graph graph_of_words(Model const& model, char const* name, bool past, bool rows = true) {
  model.validate();
  onnx_walk at(past);
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

/// Writes a model whose description is read.
template <class Model>
std::uint64_t write_onnx_of(Model const& model, std::string const& directory, std::string const& path,
                            onnx_options const& options, formats::file_system& files) {
  auto const graph = in_onnx(model, options);
  pretrained_reader const from(model.in_files(), directory, files);
  formats::onnx::writer to(path, graph, {.most_inline = options.most_inline}, files);
  std::vector<float> numbers;
  for (auto const& each : graph.weights) {
    constexpr std::int64_t most = std::int64_t{1} << 16;
    parameter_info const whole{each.name, each.extents};
    for (std::int64_t first = 0; first < each.extents.size(); first += most) {
      numbers.resize(static_cast<std::size_t>(std::min(most, each.extents.size() - first)));
      from.read(whole, first, std::span(numbers));
      to.write(numbers);
    }
  }
  to.finish();
  return to.file_bytes();
}

}  // namespace detail

TRIREME_BODY formats::onnx::graph in_onnx(gpt const& model, onnx_options const& options) {
  return detail::graph_of_words(model, "gpt2", options.past);
}
TRIREME_BODY formats::onnx::graph in_onnx(llama const& model, onnx_options const& options) {
  return detail::graph_of_words(model, "llama", options.past);
}
TRIREME_BODY formats::onnx::graph in_onnx(bert const& model, onnx_options const&) {
  return detail::graph_of_words(model, "bert", false, model.classes == 0);
}

TRIREME_BODY std::uint64_t write_onnx(std::string const& directory, std::string const& path,
                                      onnx_options const& options, formats::file_system& files) {
  auto const type = model_type_in(directory, files);
  if (type.starts_with("gpt"))
    return detail::write_onnx_of(read_description<gpt>(directory, files), directory, path, options, files);
  if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3")
    return detail::write_onnx_of(read_description<llama>(directory, files), directory, path, options, files);
  if (type == "bert")
    return detail::write_onnx_of(read_description<bert>(directory, files), directory, path, options, files);
  throw format_error(text(directory, "/", formats::config_file), 0,
                     text("a model of type \"", type.substr(0, 80),
                          "\" is not written as ONNX; gpt2, llama, mistral, qwen2, qwen3 and bert are"));
}

}  // namespace trireme::nn

#endif  // TRIREME_NN_ONNX_IPP_INCLUDED
