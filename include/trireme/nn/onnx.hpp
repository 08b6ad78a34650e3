#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "trireme/core/compiled.hpp"
#include "trireme/formats/file_system.hpp"
#include "trireme/formats/onnx.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/convnet.hpp"
#include "trireme/nn/deepseek.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/llama.hpp"
#include "trireme/nn/onnx_dialect.hpp"
#include "trireme/nn/vit.hpp"

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

#ifndef TRIREME_COMPILED
#include "trireme/nn/onnx.ipp"
#endif
