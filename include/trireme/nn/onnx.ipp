#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/deepseek_files.hpp"
#include "trireme/nn/onnx.hpp"
#include "trireme/nn/onnx_images.hpp"
#include "trireme/nn/onnx_layers.hpp"
#include "trireme/nn/pretrained.hpp"

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

template <class Model>
formats::onnx::graph graph_of_images(Model const& model, char const* name) {
  model.validate();
  onnx_walk at(false);
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

}  // namespace detail

TRIREME_BODY formats::onnx::graph in_onnx(gpt const& model, onnx_options const& options) {
  return detail::graph_of_words(model, "gpt2", options.past);
}
TRIREME_BODY formats::onnx::graph in_onnx(llama const& model, onnx_options const& options) {
  return detail::graph_of_words(model, "llama", options.past);
}
TRIREME_BODY formats::onnx::graph in_onnx(deepseek const& model, onnx_options const& options) {
  return detail::graph_of_words(model, "deepseek_v3", options.past);
}
TRIREME_BODY formats::onnx::graph in_onnx(bert const& model, onnx_options const&) {
  return detail::graph_of_words(model, "bert", false, model.classes == 0);
}
TRIREME_BODY formats::onnx::graph in_onnx(vit const& model, onnx_options const&) {
  return detail::graph_of_images(model, "vit");
}
TRIREME_BODY formats::onnx::graph in_onnx(convnet const& model, onnx_options const&) {
  return detail::graph_of_images(model, "convnet");
}
TRIREME_BODY formats::onnx::graph in_onnx(synchronised_convnet const& model, onnx_options const&) {
  return detail::graph_of_images(model, "convnet");
}

TRIREME_BODY std::uint64_t write_onnx(formats::onnx::graph const& graph, onnx_numbers const& numbers,
                                      std::string const& path, onnx_options const& options,
                                      formats::file_system& files) {
  formats::onnx::writer to(path, graph, {.most_inline = options.most_inline}, files);
  std::vector<float> some;
  for (auto const& each : graph.weights) {
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
  auto const type = model_type_in(directory, files);
  if (type.starts_with("gpt"))
    return detail::write_onnx_of(read_description<gpt>(directory, files), directory, path, options, files);
  if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3")
    return detail::write_onnx_of(read_description<llama>(directory, files), directory, path, options, files);
  if (type == "deepseek_v3")
    return detail::write_onnx_of(read_description<deepseek>(directory, files), directory, path, options, files);
  if (type == "bert")
    return detail::write_onnx_of(read_description<bert>(directory, files), directory, path, options, files);
  throw format_error(text(directory, "/", formats::config_file), 0,
                     text("a model of type \"", type.substr(0, 80),
                          "\" is not written as ONNX; gpt2, llama, mistral, qwen2, qwen3, deepseek_v3 and bert are"));
}

}  // namespace trireme::nn
