// Trireme 0.1.0: trireme/formats/weight_files.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: d8b5c44ab21f49e3ec27ea6d94399270285fa321779fe6cb629f74ab364f14b2
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/weight_files.hpp
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

#ifndef TRIREME_FORMATS_WEIGHT_FILES_IPP_INCLUDED
#define TRIREME_FORMATS_WEIGHT_FILES_IPP_INCLUDED

// ---- trireme/formats/weight_files.ipp
#include <algorithm>
#include <cerrno>
#include <optional>

namespace trireme::formats {

TRIREME_BODY std::vector<indexed_tensor> parse_weight_index(std::string_view text, std::string const& path) {
  auto const index = json::parse(text, path);
  std::vector<indexed_tensor> all;
  for (auto const& [name, file] : index.at("weight_map").as_object()) {
    auto const& plain = file.as_string();
    bool const fits = !plain.empty() && plain != "." && plain != ".." && plain.size() <= 255 &&
                      plain.find('/') == plain.npos && plain.find('\0') == plain.npos;
    if (!fits) {
      file.fail(trireme::text("\"", plain.substr(0, 80), "\" is not the name of a file in the index's directory"));
    }
    all.push_back({name, plain});
  }
  std::ranges::stable_sort(all, {}, &indexed_tensor::file);
  std::size_t count = 0;
  for (std::size_t i = 0; i < all.size(); ++i) count += i == 0 || all[i].file != all[i - 1].file ? 1U : 0U;
  if (count > most_weight_files) {
    throw format_error(path, 0, trireme::text("it names ", count, " files; at most ", most_weight_files, " are read"));
  }
  return all;
}

TRIREME_BODY json::value read_json(std::string const& path, std::uint64_t most, file_system& files) {
  return json::parse(read_text(path, most, files), path);
}

namespace detail {

/// The content of a file, or nothing if there is no such file.
template <class Open>
auto if_there(Open&& open) -> std::optional<decltype(open())> {
  try {
    return open();
  } catch (io_error const& problem) {
    if (problem.number() != ENOENT) throw;
    return std::nullopt;
  }
}

}  // namespace detail

TRIREME_BODY weight_files::weight_files(std::string directory, file_system& files) : directory_(std::move(directory)) {
  path_ = text(directory_, "/", weight_file);
  if (auto one = detail::if_there([&] { return std::make_unique<safetensors::reader>(path_, files); })) {
    readers_.push_back(std::move(*one));
    for (auto const& each : readers_.front()->entries()) tensors_.push_back({readers_.front().get(), &each});
  } else {
    constexpr std::uint64_t most = 64'000'000;
    path_ = text(directory_, "/", weight_index_file);
    auto const index = detail::if_there([&] { return read_text(path_, most, files); });
    if (!index)
      throw io_error(directory_, text("there is neither ", weight_file, " nor ", weight_index_file, " in it"));
    add_indexed(*index, files);
  }
  std::ranges::sort(tensors_, {}, [](tensor const& each) -> std::string_view { return each.what->name; });
}

TRIREME_BODY void weight_files::add_indexed(std::string const& index, file_system& files) {
  auto const indexed = parse_weight_index(index, path_);
  for (auto first = indexed.begin(); first != indexed.end();) {
    auto const last = std::find_if(first, indexed.end(), [&](auto const& each) { return each.file != first->file; });
    auto const& file =
        *readers_.emplace_back(std::make_unique<safetensors::reader>(text(directory_, "/", first->file), files));
    for (auto each = first; each != last; ++each) {
      auto const* const found = file.find(each->name);
      if (found == nullptr) {
        throw format_error(file.path(), 0, text("it has no tensor \"", each->name, "\", which the index says it has"));
      }
      tensors_.push_back({&file, found});
    }
    if (file.entries().size() != static_cast<std::size_t>(last - first)) {
      throw format_error(file.path(), 0,
                         text("it has ", file.entries().size(), " tensors, but the index says ", last - first));
    }
    first = last;
  }
}

TRIREME_BODY weight_files::tensor const* weight_files::find(std::string_view name) const noexcept {
  auto const at = std::ranges::lower_bound(tensors_, name, {},
                                           [](tensor const& each) -> std::string_view { return each.what->name; });
  return at == tensors_.end() || at->what->name != name ? nullptr : &*at;
}

}  // namespace trireme::formats

#endif  // TRIREME_FORMATS_WEIGHT_FILES_IPP_INCLUDED
