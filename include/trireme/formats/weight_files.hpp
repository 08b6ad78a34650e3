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

/// The names that Hugging Face gives the files of a model.
inline constexpr std::string_view config_file = "config.json";
inline constexpr std::string_view weight_file = "model.safetensors";
inline constexpr std::string_view weight_index_file = "model.safetensors.index.json";

/// Which file has a tensor, as an index says.
struct indexed_tensor {
  std::string name;
  std::string file;
  friend bool operator==(indexed_tensor const&, indexed_tensor const&) = default;
};

inline constexpr std::size_t most_weight_files = 1000;

/// Reads the `weight_map` of an index; touches nothing but its arguments, so that it can be fuzzed.
///
/// Enforced: names of files are plain (no slash, not ".", not ".."), and there are at most 1000 of them.
///
/// Errors   format_error(path, byte, reason).
///
/// @returns sorted by file, in each by the order of the text.
[[nodiscard]] std::vector<indexed_tensor> parse_weight_index(std::string_view text, std::string const& path);

/// A JSON text of a model's directory, of at most `most` bytes.
[[nodiscard]] json::value read_json(std::string const& path, std::uint64_t most, file_system& files = real_files());

/// The tensors of a model's directory: all in model.safetensors, or, where that is missing, in the files that
/// model.safetensors.index.json names. Opens all files and reads their headers.
///
/// Threads  as safetensors::reader.
/// Errors   io_error; format_error for a file or an index that is not what it should be, and where the index and a file
///          do not agree on which tensors there are. Symbolic links are followed: downloads are often kept so.
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
  /// What holds the tensors, for messages: the file, or the index.
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
