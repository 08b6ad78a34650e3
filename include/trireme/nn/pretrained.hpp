#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/core/compiled.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/model_files.hpp"
#include "trireme/formats/weight_files.hpp"
#include "trireme/nn/file_mapping.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/llama.hpp"

/// Models in Hugging Face's files: config.json is the description, model.safetensors (or several such files and an
/// index) the parameters. train/pretrained.hpp brings them into a trainer and out of it.
///
/// A model of one's own takes part with three functions: in_files() (nn/file_mapping.hpp), read_config() and
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

/// A longer config.json is refused.
inline constexpr std::uint64_t most_config_bytes = 1'000'000;

/// How a model generates, in Hugging Face's files; not every model has it.
inline constexpr std::string_view generation_config_file = "generation_config.json";

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
/// Only the numbers that are asked for are read, in pieces of at most 256 KiB; and those of tensors that files have
/// twice, to compare them.
///
/// Numerics  F64, F32, BF16 and F16 in files, each tensor as it likes; rounded to nearest where float is asked for.
/// Threads   read() may be called from several threads at once.
/// Errors    of the constructor: as formats::weight_files; format_error that names file and tensor if one is missing,
///           has another shape or type, is one that the model does not have, or differs from the one that it should be
///           a copy of. read(): io_error; config_error for a parameter that the layout does not have.
class pretrained_reader {
 public:
  /// @param compared  which part of copies is compared here: where several ranks read, each takes its own.
  pretrained_reader(file_mapping const& layout, std::string const& directory,
                    formats::file_system& files = formats::real_files(), group_rank compared = {});

  /// Fills `to` with elements from `first` on of this part of a parameter.
  void read(parameter_info const& part, std::int64_t first, std::span<float> to) const;
  void read(parameter_info const& part, std::int64_t first, std::span<double> to) const;
  /// Fills `to` with elements from `first` on of a tensor of the layout, by its name and in its order there.
  void read_tensor(std::string_view name, std::int64_t first, std::span<float> to) const;

  /// What pretrained_writer is to know of these files: in which type each tensor was stored, and which the model has no
  /// use for.
  [[nodiscard]] formats::model_file notes() const;

 private:
  struct source {
    file_tensor how;
    formats::weight_files::tensor from;
  };
  void expect_copy(file_mapping::copy const& what, formats::weight_files::tensor const& twice,
                   formats::weight_files::tensor const& of, group_rank compared) const;
  template <class T>
  void fill(parameter_info const& part, std::int64_t first, std::span<T> to) const;

  formats::weight_files files_;
  std::map<std::string, std::vector<source>, std::less<>> sources_;            // by the parameter's name
  std::map<std::string, formats::weight_files::tensor, std::less<>> tensors_;  // by the layout's name
  std::map<std::string, dtype, std::less<>> types_;                            // of the layout's tensors
  std::vector<std::string> left_out_;
};

/// What pretrained_reader::notes() is called among a model's files. It is kept with them, and never written beside
/// them.
inline constexpr std::string_view tensor_notes = ".tensors.json";

/// The config.json of a model that was read from files. Members of their config.json that the model still agrees with
/// are kept, and so are members about other things (tokens that begin and end a text, for instance).
///
/// @param origin  formats::read_model_files() of them; without one, `now`.
/// @param before  config_of() what was read from their config.json.   @param now  config_of() the model.
[[nodiscard]] formats::json::value config_to_write(std::vector<formats::model_file> const& origin,
                                                   formats::json::value before, formats::json::value const& now);

/// The names of tensors that the files had, and the model has not.
[[nodiscard]] std::vector<std::string> left_out(std::vector<formats::model_file> const& origin);

/// The tokens that end a text of a model, by its files: `eos_token_id`, one number or several, of
/// generation_config.json, or of config.json where that file is missing or names none. transformers stops at the same.
///
/// @param files    formats::read_model_files(), or a trainer's model_files().
/// @returns in the order of the file; none where no file names any.
/// Errors   format_error that points at the member, for what is not a token's number or a list of such numbers.
[[nodiscard]] std::vector<std::int32_t> end_tokens(std::vector<formats::model_file> const& files);

/// The same for the model that lies in a directory. Only those two files are read.
///
/// @example auto const ends = nn::end_tokens_in(directory);
///          generate(trainer, tokens, 200, context, {}, [&](std::int32_t token) {
///            return std::find(ends.begin(), ends.end(), token) == ends.end();
///          });
[[nodiscard]] std::vector<std::int32_t> end_tokens_in(std::string const& directory,
                                                      formats::file_system& files = formats::real_files());

/// Puts parameters, whole and in any order, into the files of a model.
///
/// Bytes    holds all of them until they are written, in the type that they are stored in.
/// Errors   config_error for a parameter that the layout does not have, or has with another size, and if one is missing
///          when they are written; io_error.
class pretrained_writer {
 public:
  /// @param stored  f32, bf16 or f16; without it each tensor is stored as it was in the files that the model was read
  ///                from (of F64, F32), or as f32.
  /// @param origin  those files' notes, among others.
  explicit pretrained_writer(file_mapping layout, std::optional<dtype> stored = std::nullopt,
                             std::vector<formats::model_file> const& origin = {});

  void add(std::string_view parameter, std::span<float const> values);

  /// Writes the files, and those `model_files` them but its config.json and notes: first all of them under temporary
  /// names, then they take the places of earlier ones, config.json last (formats::file_set). More than `most_bytes`
  /// become several files and an index. An index, or a model.safetensors, that would contradict them is then removed
  /// with its files if this class has written it; else it is kept as NAME.replaced. A config that says what that of the
  /// origin says has its bytes.
  void write(formats::directory const& in, formats::json::value config,
             std::uint64_t most_bytes = std::uint64_t{5'000'000'000},
             std::vector<formats::model_file> const& model_files = {}) const;

 private:
  file_mapping layout_;
  std::vector<dtype> types_;  // of the layout's tensors
  dtype usual_ = dtype::f32;
  bool as_before_ = false;                        // all types are those of the files that were read
  std::string config_before_;                     // the text of their config.json
  std::vector<std::vector<std::byte>> contents_;  // of the layout's tensors
};

}  // namespace trireme::nn

#ifndef TRIREME_COMPILED
#include "trireme/nn/pretrained.ipp"
#endif
