#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/formats/file_system.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/safetensors.hpp"

namespace trireme::formats {

/// The names of a model's files in Hugging Face's format.
inline constexpr std::string_view config_file = "config.json";
inline constexpr std::string_view weight_file = "model.safetensors";
inline constexpr std::string_view weight_index_file = "model.safetensors.index.json";

/// The file that contains a tensor, according to an index.
struct indexed_tensor {
  std::string name;
  std::string file;
  friend bool operator==(indexed_tensor const&, indexed_tensor const&) = default;
};

/// More files in an index are refused.
inline constexpr std::size_t most_weight_files = 1000;

/// Parses the `weight_map` of an index; accesses only its arguments, so that it can be fuzzed.
///
/// Checks: names of files are plain (no slash, not ".", not ".."), and there are at most 1000 of them.
///
/// Errors   format_error(path, byte, reason).
///
/// @returns sorted by file, and within each in the order of the text.
[[nodiscard]] std::vector<indexed_tensor> parse_weight_index(std::string_view text, std::string const& path);

/// Reads a JSON file of a model's directory, of at most `most` bytes.
[[nodiscard]] json::value read_json(std::string const& path, std::uint64_t most, file_system& files = real_files());

/// The tensors of a model's directory: all in model.safetensors or, if it does not exist, in the files that
/// model.safetensors.index.json names. Opens all files and reads their headers.
///
/// Threads  as safetensors::reader.
/// Errors   io_error; format_error for an invalid file or index, and if the index and a file disagree on the tensors.
///          Symbolic links are followed, since downloads are often stored with them.
class weight_files {
 public:
  struct tensor {
    safetensors::reader const* file;
    safetensors::entry const* what;
  };

  explicit weight_files(std::string directory, file_system& files = real_files());

  [[nodiscard]] std::string const& directory() const noexcept { return directory_; }
  /// Sorted by name.
  [[nodiscard]] std::vector<tensor> const& tensors() const noexcept { return tensors_; }
  /// The tensor of that name, or nullptr.
  [[nodiscard]] tensor const* find(std::string_view name) const noexcept;
  /// The file or the index that holds the tensors, for messages.
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

 private:
  void add_indexed(std::string const& index, file_system& files);

  std::string directory_;
  std::string path_;
  std::vector<std::unique_ptr<safetensors::reader>> readers_;
  std::vector<tensor> tensors_;
};

}  // namespace trireme::formats

#ifndef TRIREME_COMPILED
#include "trireme/formats/weight_files.ipp"
#endif
