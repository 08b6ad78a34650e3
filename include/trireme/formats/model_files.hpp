#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/file_system.hpp"

namespace trireme::formats {

/// A complete file that belongs to a model.
struct model_file {
  std::string name;  ///< in the model's directory; chat templates may be in a subdirectory
  std::string content;
  friend bool operator==(model_file const&, model_file const&) = default;
};

/// The files of a model's directory that belong to the model, besides config.json and the weights: generation settings,
/// the tokenizer's files, and Python sources that config.json may name. Licences and READMEs are not among them.
inline constexpr std::string_view model_file_names =
    "generation_config.json preprocessor_config.json tokenizer.json tokenizer_config.json special_tokens_map.json "
    "added_tokens.json vocab.json vocab.txt merges.txt *.model *.tiktoken chat_template.jinja chat_template.json "
    "configuration_*.py modeling_*.py tokenization_*.py";
/// The tokenizer's files among them.
inline constexpr std::string_view tokenizer_file_names =
    "tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json vocab.txt merges.txt "
    "*.model *.tiktoken chat_template.* additional_chat_templates/* tokenization_*.py";

/// Reads config.json and these files of a directory, sorted by name.
///
/// Bytes    the sum of the files; mostly the tokenizer's, some MB.
/// Errors   io_error if one cannot be read or has more than 256 MiB.
[[nodiscard]] std::vector<model_file> read_model_files(std::string const& directory, file_system& files = real_files());

/// The file of that name, or nullptr.
[[nodiscard]] inline model_file const* find(std::vector<model_file> const& in, std::string_view name) noexcept {
  for (auto const& each : in) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

/// Adds a file of a model to the files that will be written, unless a file with this content exists.
void add_model_file(file_set& to, directory const& in, model_file const& what);

/// Creates a directory if it does not exist, and checks that files can be created in it. Call it before a training, so
/// that the error does not come after it.
///
/// Errors   io_error with the reason: a file has that name, say, or the directory is not writable.
void expect_writable(std::string const& directory, file_system& files = real_files());

}  // namespace trireme::formats

#ifndef TRIREME_COMPILED
#include "trireme/formats/model_files.ipp"
#endif
