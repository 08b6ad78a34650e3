#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/compiled.hpp"
#include "trireme/formats/file_system.hpp"
#include "trireme/formats/gguf.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/llama.hpp"

/// Models in files of llama.cpp, read: the way back of nn/gguf.hpp.
namespace trireme::nn {

/// Sets a description to what a GGUF file says: `gpt2`; `llama`, `qwen2` and `qwen3`. Llama 3's rule of angles is in a
/// file as the factors that it makes, and read if they are those with the numbers that all Llamas have.
///
/// Errors   format_error that names the key, for another architecture, for a key that is missing or of another type,
///          for a size out of range, and for what the model cannot be (other factors of angles, say).
void read_gguf_description(formats::gguf::reader const& from, gpt& to);
void read_gguf_description(formats::gguf::reader const& from, llama& to);

/// Writes the model in a GGUF file as a directory of Hugging Face's files: config.json, model.safetensors in F32,
/// tokenizer.json, tokenizer_config.json and generation_config.json. write_gguf() with gguf_options::like writes the
/// same file again, but for metadata.
///
/// The tokenizer is byte pairs of bytes, with the pre-tokenizer of GPT-2, SmolLM, Llama 3 or Qwen 2; files that say
/// `none` get none.
///
/// Bytes    memory is one tensor, as floats, and the tokenizer.
/// Errors   io_error; format_error as read_gguf_description(), and for a missing tensor, one of another shape, and
///          another tokenizer. All files appear, or none.
/// @returns the bytes of model.safetensors.
std::uint64_t write_pretrained_of_gguf(std::string const& path, std::string const& directory,
                                       formats::file_system& files = formats::real_files());

}  // namespace trireme::nn

#ifndef TRIREME_COMPILED
#include "trireme/nn/gguf_reader.ipp"
#endif
