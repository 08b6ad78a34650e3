#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/core/compiled.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/weight_files.hpp"
#include "trireme/nn/file_layout.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/llama.hpp"

/// Models in Hugging Face's files: config.json is the description, model.safetensors (or several such files and an
/// index) the parameters. train/pretrained.hpp brings them into a trainer and out of it.
///
/// A model of one's own takes part with three functions: in_files() (nn/file_layout.hpp), read_config() and
/// config_of().
namespace trireme::nn {

/// Sets a description to what a config.json says.
///
/// GPT: GPT2LMHeadModel. LLaMA: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM, with
/// rotary positions that are scaled linearly or by Llama 3's rule, and a window that is the same in all layers.
///
/// Errors   format_error that points at the member, for what the model cannot be (another activation, another rule of
///          rotary positions, a window in some layers, ...), for sizes that are missing, and for those above 2^24.
void read_config(formats::json::value const& config, gpt& to);
void read_config(formats::json::value const& config, llama& to);

/// The config.json of a model; transformers 4 and 5 read it.
[[nodiscard]] formats::json::value config_of(gpt const& model);
[[nodiscard]] formats::json::value config_of(llama const& model);

/// What transformers calls the kind of model that lies in a directory: "gpt2", "llama".
[[nodiscard]] std::string model_type_in(std::string const& directory,
                                        formats::file_system& files = formats::real_files());

inline constexpr std::uint64_t most_config_bytes = 1'000'000;

/// The description of the model that lies in a directory.
///
/// Errors   io_error; format_error, see read_config().
/// @example auto model = nn::read_description<nn::llama>("SmolLM2-135M");
template <class Model>
[[nodiscard]] Model read_description(std::string const& directory,
                                     formats::file_system& files = formats::real_files()) {
  auto const path = text(directory, "/", formats::config_file);
  Model out;
  read_config(formats::read_json(path, most_config_bytes, files), out);
  try {
    out.validate();
  } catch (config_error const& problem) {
    throw format_error(path, 0, problem.what());
  }
  return out;
}

/// The parameters of a model in its files.
///
/// Only the numbers that are asked for are read, in pieces of at most 256 KiB.
///
/// Numerics  F64, F32, BF16 and F16 in files, each tensor as it likes; rounded to nearest where float is asked for.
/// Threads   read() may be called from several threads at once.
/// Errors    of the constructor: as formats::weight_files; format_error that names file and tensor if one is missing,
///           has another shape or type, or is one that the model does not have. read(): io_error; config_error for a
///           parameter that the layout does not have.
class pretrained_reader {
 public:
  pretrained_reader(file_layout const& layout, std::string const& directory,
                    formats::file_system& files = formats::real_files());

  /// Fills `to` with elements from `first` on of this part of a parameter.
  void read(parameter_info const& part, std::int64_t first, std::span<float> to) const;
  void read(parameter_info const& part, std::int64_t first, std::span<double> to) const;

 private:
  struct source {
    file_tensor how;
    formats::weight_files::tensor from;
  };
  template <class T>
  void fill(parameter_info const& part, std::int64_t first, std::span<T> to) const;

  formats::weight_files files_;
  std::map<std::string, std::vector<source>, std::less<>> sources_;  // by the parameter's name
};

/// Puts parameters, whole and in any order, into the files of a model.
///
/// Bytes    holds all of them until they are written, in the type that they are stored in.
/// Errors   config_error for a parameter that the layout does not have, or has with another size, and if one is missing
///          when they are written; io_error.
class pretrained_writer {
 public:
  /// @param stored  f32, bf16 or f16.
  explicit pretrained_writer(file_layout layout, dtype stored = dtype::f32);

  void add(std::string_view parameter, std::span<float const> values);

  /// Writes the files; each appears whole or not at all, config.json last. More than `most_bytes` become several files
  /// and an index. Whichever of index and model.safetensors is not written is removed.
  void write(formats::directory const& in, formats::json::value config,
             std::uint64_t most_bytes = std::uint64_t{5'000'000'000}) const;

 private:
  file_layout layout_;
  dtype stored_;
  std::vector<std::vector<std::byte>> contents_;  // of the layout's tensors
};

}  // namespace trireme::nn

#ifndef TRIREME_COMPILED
#include "trireme/nn/pretrained.ipp"
#endif
