#pragma once

#include <algorithm>
#include <cerrno>
#include <optional>

#include "trireme/core/plural.hpp"
#include "trireme/formats/weight_files.hpp"

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
  std::stable_sort(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.file < b.file; });
  std::size_t count = 0;
  for (std::size_t i = 0; i < all.size(); ++i) count += i == 0 || all[i].file != all[i - 1].file ? 1U : 0U;
  if (count > most_weight_files) {
    throw format_error(
        path, 0, trireme::text("it names ", how_many(count, "file"), "; at most ", most_weight_files, " are read"));
  }
  return all;
}

TRIREME_BODY json::value read_json(std::string const& path, std::uint64_t most, file_system& files) {
  return json::parse(read_text(path, most, files), path);
}

namespace detail {

/// The content of a file; empty if it does not exist.
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
  std::sort(tensors_.begin(), tensors_.end(), [](auto const& a, auto const& b) { return a.what->name < b.what->name; });
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
        throw format_error(file.path(), 0, text("it has no tensor \"", each->name, "\", which the index lists for it"));
      }
      tensors_.push_back({&file, found});
    }
    if (file.entries().size() != static_cast<std::size_t>(last - first)) {
      throw format_error(
          file.path(), 0,
          text("it has ", how_many(file.entries().size(), "tensor"), ", but the index lists ", last - first));
    }
    first = last;
  }
}

TRIREME_BODY weight_files::tensor const* weight_files::find(std::string_view name) const noexcept {
  auto const at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](tensor const& each, std::string_view key) { return each.what->name < key; });
  return at == tensors_.end() || at->what->name != name ? nullptr : &*at;
}

}  // namespace trireme::formats
