// Trireme 0.1.0: trireme/data/documents.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: e2d4549ca9f148bf2ef29b434609d6c8ccadb9eaca68d96322df3ed2ae89c45d
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/file_list.hpp"

// ---- trireme/data/documents.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

/// What a document is in a text file.
enum class document_kind {
  line,       ///< each line, without the "\n" or "\r\n" at its end
  paragraph,  ///< what stands between two empty lines ("\n\n")
  file,       ///< the whole file
};

[[nodiscard]] constexpr std::string_view name_of(document_kind kind) noexcept {
  constexpr std::string_view names[] = {"line", "paragraph", "file"};
  return names[static_cast<std::size_t>(kind)];
}

/// Documents in text files and in JSON lines.
///
/// A file whose name ends in .jsonl holds a JSON object in each line, and the document is the string `.key` of it. All
/// other files are text in UTF-8. Compressed files (.gz, .zst, .bz2, .xz) are refused.
struct document_files {
  file_list files{};
  document_kind documents = document_kind::line;  ///< of text files
  std::string key = "text";                       ///< of JSON lines
  friend bool operator==(document_files const&, document_files const&) = default;
};

/// "trireme::data::document_files{.files = "a.jsonl", ...}"
[[nodiscard]] inline std::string to_string(document_files const& from) {
  return text("trireme::data::document_files{.files = ", to_string(from.files),
              ", .documents = trireme::data::document_kind::", name_of(from.documents), ", .key = \"", from.key, "\"}");
}

namespace detail {

/// A place between two documents.
struct document_place {
  std::int64_t file = 0;    ///< its number in the list
  std::int64_t offset = 0;  ///< in bytes
  friend bool operator==(document_place const&, document_place const&) = default;
};

/// Complete documents of one file, as its bytes.
struct document_block {
  document_place begin;
  std::string bytes;
};

[[nodiscard]] inline bool is_json_lines(std::string_view path) { return path.ends_with(".jsonl"); }

/// The names of the files.
/// Errors   config_error for compressed files, and those of file_list.
[[nodiscard]] inline std::vector<std::string> names_of(document_files const& from, std::string const& who) {
  auto names = from.files.names(who, {".txt", ".jsonl"});
  for (auto const& name : names) {
    for (std::string_view const ending : {".gz", ".zst", ".bz2", ".xz"}) {
      if (name.ends_with(ending)) {
        throw config_error(text(who, ": ", name,
                                " is compressed, and compressed files are not read; decompress it "
                                "and name the file without ",
                                ending));
      }
    }
  }
  return names;
}

/// Reads files in blocks of complete documents, about a MiB each. The blocks depend only on the files and on the place
/// where reading begins.
///
/// Bytes    the caller's block: about a MiB, or the longest document.
/// Threads  one caller.
/// Errors   io_error as stable_file; format_error for a document of more than 1 GiB.
class document_reader {
 public:
  document_reader(document_files const& from, std::string who, document_place at = {})
      : kind_(from.documents), who_(std::move(who)), names_(names_of(from, who_)), at_(at) {}

  [[nodiscard]] std::vector<std::string> const& names() const noexcept { return names_; }
  /// Where the next block begins.
  [[nodiscard]] document_place place() const noexcept { return at_; }

  /// Returns false at the end of the last file.
  [[nodiscard]] bool next(document_block& to) {
    while (at_.file < static_cast<std::int64_t>(names_.size())) {
      auto const& name = names_[static_cast<std::size_t>(at_.file)];
      if (!open_) open_ = std::make_unique<stable_file>(name, who_);
      if (at_.offset < open_->size()) {
        to.begin = at_;
        fill(name, to.bytes);
        at_.offset += static_cast<std::int64_t>(to.bytes.size());
        return true;
      }
      at_ = {at_.file + 1, 0};
      open_.reset();
    }
    return false;
  }

 private:
  static constexpr std::int64_t block_bytes = 1 << 20, most_bytes = 1 << 30;

  void fill(std::string const& name, std::string& bytes) const {
    auto const left = open_->size() - at_.offset;
    bool const json = is_json_lines(name);
    bool const whole = kind_ == document_kind::file && !json;
    auto const end = std::string_view(kind_ == document_kind::paragraph && !json ? "\n\n" : "\n");
    for (auto want = whole ? left : block_bytes;; want *= 2) {
      auto const take = std::min(want, left);
      if (take > most_bytes) {
        throw format_error(name, static_cast<std::uint64_t>(at_.offset),
                           text(who_, ": a document of more than ", most_bytes, " bytes begins here; divide it"));
      }
      bytes.resize(static_cast<std::size_t>(take));
      open_->read(at_.offset, {reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()});
      if (take == left) return;
      // From the left, as documents are divided: of three line ends the first two end a paragraph.
      std::size_t last = 0;
      for (auto found = bytes.find(end); found != std::string::npos; found = bytes.find(end, last)) {
        last = found + end.size();
      }
      if (last > 0) return bytes.resize(last);
    }
  }

  document_kind kind_;
  std::string who_;
  std::vector<std::string> names_;
  document_place at_;
  std::unique_ptr<stable_file> open_;
};

/// Why a format_error was thrown, without its place.
[[nodiscard]] inline std::string reason_of(format_error const& error) {
  std::string const all = error.what(), place = text(error.path(), ": byte ", error.offset(), ": ");
  return all.starts_with(place) ? all.substr(place.size()) : all;
}

/// Calls take(read(value), offset) for each line of a block of JSON lines; lines of spaces alone are not values. What
/// read() throws at a place in its line becomes an error at that place in the file.
/// Errors   format_error.
template <class Read, class Take>
void for_each_json_line(document_block const& block, std::string const& name, Read const& read, Take const& take) {
  formats::json::limits const most{.string_bytes = std::size_t{1} << 30};
  std::string_view left = block.bytes;
  for (auto at = static_cast<std::uint64_t>(block.begin.offset); !left.empty();) {
    auto const line = left.substr(0, left.find('\n'));
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      take(
          [&] {
            try {
              return read(formats::json::parse(line, name, most));
            } catch (format_error const& error) {
              if (error.path() != name) throw;
              throw format_error(name, at + error.offset(), reason_of(error));
            }
          }(),
          at);
    }
    auto const used = std::min(left.size(), line.size() + 1);
    at += used;
    left.remove_prefix(used);
  }
}

/// Calls each(document, offset) for each document of a block, also for empty ones.
/// Errors   format_error with the place in the file, for JSON lines that are not valid or have no string `key`.
template <class Each>
void for_each_document(document_files const& from, document_block const& block, std::string const& name,
                       Each const& each) {
  if (is_json_lines(name)) {
    struct found {
      std::string text;
      std::uint64_t offset;  // in the line
    };
    auto const read = [&](formats::json::value const& line) {
      auto const* const text_of = line.find(from.key);
      if (text_of == nullptr) line.fail(text("the object has no \"", from.key, "\"; name its text by the key"));
      return found{text_of->as_string(), text_of->offset()};
    };
    return for_each_json_line(block, name, read, [&](found const& document, std::uint64_t at) {
      each(std::string_view(document.text), at + document.offset);
    });
  }
  std::string_view left = block.bytes;
  if (from.documents == document_kind::file) return each(left, static_cast<std::uint64_t>(block.begin.offset));
  auto const end = std::string_view(from.documents == document_kind::paragraph ? "\n\n" : "\n");
  for (auto at = static_cast<std::uint64_t>(block.begin.offset); !left.empty();) {
    auto const found = left.find(end);
    auto document = left.substr(0, found);
    auto const used = found == std::string_view::npos ? left.size() : found + end.size();
    if (from.documents == document_kind::line && document.ends_with('\r')) document.remove_suffix(1);
    each(document, at);
    at += used;
    left.remove_prefix(used);
  }
}

}  // namespace detail

}  // namespace trireme::data
