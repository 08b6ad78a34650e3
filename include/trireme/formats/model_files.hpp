#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/file_system.hpp"

namespace trireme::formats {

/// A file that belongs to a model, whole.
struct model_file {
  std::string name;  ///< in the model's directory; chat templates may lie in a folder there
  std::string content;
  friend bool operator==(model_file const&, model_file const&) = default;
};

/// Which files of a model's directory belong to the model, beside config.json and the weights: what says how to
/// generate, the tokenizer's, and Python sources that config.json may name. Licences and READMEs are not among them.
inline constexpr std::string_view model_file_names =
    "generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json "
    "vocab.txt merges.txt *.model *.tiktoken chat_template.jinja chat_template.json configuration_*.py modeling_*.py "
    "tokenization_*.py";
/// Those of them that are about tokens.
inline constexpr std::string_view tokenizer_file_names =
    "tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json vocab.txt merges.txt "
    "*.model *.tiktoken chat_template.* additional_chat_templates/* tokenization_*.py";

/// The config.json of a directory, and those files, by their names.
///
/// Bytes    all of them, a tokenizer's mostly: some MB.
/// Errors   io_error where one cannot be read or has more than 256 MiB.
[[nodiscard]] std::vector<model_file> read_model_files(std::string const& directory, file_system& files = real_files());

/// The file of that name, or nullptr.
[[nodiscard]] inline model_file const* find(std::vector<model_file> const& in, std::string_view name) noexcept {
  for (auto const& each : in) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

/// Adds a file of a model's directory to those that will appear there, unless it is there with this content.
void add_model_file(file_set& to, directory const& in, model_file const& what);

/// Makes a directory where it is missing, and expects that files can be made in it: for who wants to know it before a
/// training, not after it.
///
/// Errors   io_error that says why: a file has the name, say, or the directory may not be written to.
void expect_writable(std::string const& directory, file_system& files = real_files());

}  // namespace trireme::formats

#ifndef TRIREME_COMPILED
#include "trireme/formats/model_files.ipp"
#endif
