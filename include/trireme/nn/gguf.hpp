#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/formats/file_system.hpp"
#include "trireme/formats/gguf.hpp"
#include "trireme/formats/model_files.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/deepseek.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/llama.hpp"

/// Models in files of llama.cpp (formats/gguf.hpp), written from a directory of Hugging Face's files.
namespace trireme::nn {

/// A tensor of a GGUF file, and where its numbers come from.
struct gguf_tensor {
  enum class order {
    same,        ///< as in Hugging Face's files
    transposed,  ///< rows are columns there
    paired,      ///< of each head of `rows` rows, row i is followed by row i + rows / 2: llama.cpp rotates neighbours
    keys,        ///< of each head of `rows` rows there, the first ones, transposed
    values,      ///< of each head of `rows` rows there, the others
    stacked      ///< `source` has several tensors, one for each first index, whose numbers go where it has a '#'
  };
  std::string name;
  shape extents;
  std::string source;  ///< the tensor in Hugging Face's files; empty: `numbers`
  order how = order::same;
  std::int64_t rows = 0;  ///< of a head
  std::vector<float> numbers{};
};

/// What a GGUF file has for a model: `architecture` is llama.cpp's name, and the keys of `notes` begin with it.
struct gguf_model {
  std::string architecture;
  formats::gguf::metadata notes;
  std::vector<gguf_tensor> tensors;
};

/// GPT-2 is `gpt2`; LLaMA is `llama`, with `biased` `qwen2`, with `head_norms` `qwen3`. llama.cpp has no window for
/// these three: with one, the context is written to be no longer than the window, up to which both compute the same.
///
/// Errors   config_error for models that llama.cpp does not have: a GPT with experts, and a Qwen whose angles are
///          scaled by Llama 3's rule.
[[nodiscard]] gguf_model in_gguf(gpt const& model);
[[nodiscard]] gguf_model in_gguf(llama const& model);
/// DeepSeek V3 is `deepseek2`, without modules for multi-token prediction.
///
/// Errors   config_error for an epsilon other than 1e-6: llama.cpp has one for all norms.
[[nodiscard]] gguf_model in_gguf(deepseek const& model);
/// The encoder alone, `bert`, for embeddings: llama.cpp has no place for the heads, which are left out.
[[nodiscard]] gguf_model in_gguf(bert const& model);

/// The metadata `tokenizer.*` of a model.
///
/// A tokenizer.json has byte pairs of bytes (with the pre-tokenizer of GPT-2, SmolLM, Llama 3, Qwen 2 or DeepSeek V3),
/// byte pairs of characters (sentencepiece's, as in Llama 2 and Mistral), word pieces (`bert`) or unigrams (`t5`).
/// Without this file sentencepiece's own is read (tokenizer.model, spiece.model); without it too a vocabulary of 256 is
/// bytes, and for another one the metadata says `none`: llama.cpp takes token ids only. llama.cpp needs an end token:
/// for bytes it is byte 0.
///
/// Errors   format_error that points at the member, for what llama.cpp does not have: another expression of a
///          pre-tokenizer, or a normalizer of byte pairs other than NFC.
///
/// @param files       formats::read_model_files().
/// @param vocabulary  the model's; ids without a token become unused tokens.
[[nodiscard]] formats::gguf::metadata gguf_tokenizer(std::vector<formats::model_file> const& files,
                                                     std::int64_t vocabulary);

struct gguf_options {
  formats::gguf::kind type = formats::gguf::kind::f16;
  std::string name;  ///< `general.name`; empty: that of the directory
  /// A GGUF file of the same tensors: each has its type and its place there, and `type` is that of others.
  std::string like;
};

/// Writes the model that lies in a directory of Hugging Face's files to a GGUF file, which appears whole or not at all.
///
/// Tensors with one extent, norms and position tables are stored as F32, and rows that are not whole blocks as F16, as
/// llama.cpp's converter has it; all others in the type.
///
/// Bytes    memory is the largest tensor, as floats.
/// Errors   io_error; format_error for files that are not a model's; config_error for a model that llama.cpp does not
///          have.
/// @returns the bytes of the file.
std::uint64_t write_gguf(std::string const& directory, std::string const& path, gguf_options const& options = {},
                         formats::file_system& files = formats::real_files());

}  // namespace trireme::nn

#ifndef TRIREME_COMPILED
#include "trireme/nn/gguf.ipp"
#endif
