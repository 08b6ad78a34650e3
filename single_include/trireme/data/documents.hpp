// Trireme 0.1.0: trireme/data/documents.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 9c642538eafd158c026cb56fc552e88bc340f10c4dc40256842482164cfade68
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/file_list.hpp"
#include "trireme/formats/byte_stream.hpp"

// ---- trireme/data/documents.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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
/// other files are text in UTF-8. Compressed files (.jsonl.gz, .txt.zst, ...) are read by the decompressors that a
/// function is given; others (.gz, .zst, .bz2, .xz) are refused. Places in them are counted in decompressed bytes.
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

inline constexpr std::string_view endings_of_compressed[] = {".gz", ".zst", ".bz2", ".xz"};

/// Also of compressed JSON lines.
[[nodiscard]] inline bool is_json_lines(std::string_view path) {
  for (auto const ending : endings_of_compressed) {
    if (path.ends_with(ending)) path.remove_suffix(ending.size());
  }
  return path.ends_with(".jsonl");
}

using decompressors = std::vector<formats::decompressor>;

[[nodiscard]] inline formats::decompressor const* decompressor_of(std::string_view path, decompressors const& all) {
  for (auto const& each : all) {
    if (path.ends_with(each.ending)) return &each;
  }
  return nullptr;
}

/// The names of the files.
/// Errors   config_error for compressed files that none of `can_read` reads, and those of file_list.
[[nodiscard]] inline std::vector<std::string> names_of(document_files const& from, std::string const& who,
                                                       decompressors const& can_read = {}) {
  auto names = from.files.names(who, {".txt", ".jsonl", ".txt.gz", ".jsonl.gz", ".txt.zst", ".jsonl.zst"});
  for (auto const& name : names) {
    for (auto const ending : endings_of_compressed) {
      if (name.ends_with(ending) && decompressor_of(name, can_read) == nullptr) {
        throw config_error(text(who, ": ", name,
                                " is compressed in a way that is not read here; decompress it and name the file "
                                "without ",
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
  document_reader(document_files const& from, std::string who, document_place at = {}, decompressors can_read = {})
      : kind_(from.documents),
        who_(std::move(who)),
        can_read_(std::move(can_read)),
        names_(names_of(from, who_, can_read_)),
        at_(at) {}
  document_reader(document_reader const&) = delete;  // its stream has its address
  document_reader& operator=(document_reader const&) = delete;

  [[nodiscard]] std::vector<std::string> const& names() const noexcept { return names_; }
  /// Where the next block begins.
  [[nodiscard]] document_place place() const noexcept { return at_; }

  /// Returns false at the end of the last file.
  [[nodiscard]] bool next(document_block& to) {
    while (at_.file < static_cast<std::int64_t>(names_.size())) {
      auto const& name = names_[static_cast<std::size_t>(at_.file)];
      if (!open_) open(name);
      if (!ends()) {
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

  void open(std::string const& name) {
    open_ = std::make_unique<stable_file>(name, who_);
    stream_.reset();
    ahead_.clear();
    auto const* const kind = decompressor_of(name, can_read_);
    if (kind == nullptr) return;
    stream_ = kind->open(name, [this, at = std::int64_t{0}](std::span<unsigned char> piece) mutable {
      auto const count = std::min(static_cast<std::int64_t>(piece.size()), open_->size() - at);
      if (count > 0) open_->read(at, piece.first(static_cast<std::size_t>(count)));
      at += count;
      return static_cast<std::size_t>(count);
    });
    for (auto left = at_.offset; left > 0;) {  // to where an earlier call ended
      fill_ahead(std::min(left, block_bytes));
      if (ahead_.empty()) throw io_error(name, text(who_, ": the file has less text than before"));
      auto const some = std::min(static_cast<std::size_t>(left), ahead_.size());
      left -= static_cast<std::int64_t>(some);
      ahead_.erase(0, some);
    }
  }
  /// Reads until so many bytes of the stream are ahead, or all that are left.
  void fill_ahead(std::int64_t count) {
    auto const wanted = static_cast<std::size_t>(count);
    for (auto have = ahead_.size(); have < wanted;) {
      ahead_.resize(wanted);
      auto const got = stream_->read({reinterpret_cast<unsigned char*>(ahead_.data()) + have, wanted - have});
      have += got;
      ahead_.resize(have);
      if (got == 0) return;
    }
  }
  [[nodiscard]] bool ends() {
    if (!stream_) return at_.offset >= open_->size();
    fill_ahead(1);
    return ahead_.empty();
  }
  /// The next bytes, `want` or all that are left. @returns whether these are the last ones.
  bool look(std::int64_t want, std::string& bytes) {
    if (stream_) {
      fill_ahead(want + 1);
      bytes.assign(ahead_, 0, static_cast<std::size_t>(want));
      return ahead_.size() == bytes.size();
    }
    auto const left = open_->size() - at_.offset;
    bytes.resize(static_cast<std::size_t>(std::min(want, left)));
    open_->read(at_.offset, {reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()});
    return want >= left;
  }

  void fill(std::string const& name, std::string& bytes) {
    bool const json = is_json_lines(name);
    bool const whole = kind_ == document_kind::file && !json;
    auto const end = std::string_view(kind_ == document_kind::paragraph && !json ? "\n\n" : "\n");
    for (auto want = block_bytes;; want *= 2) {
      if (want > most_bytes) {
        throw format_error(name, static_cast<std::uint64_t>(at_.offset),
                           text(who_, ": a document of more than ", most_bytes, " bytes begins here; divide it"));
      }
      bool const last_bytes = look(want, bytes);
      // From the left, as documents are divided: of three line ends the first two end a paragraph.
      std::size_t last = last_bytes ? bytes.size() : 0;
      for (auto found = last_bytes || whole ? std::string::npos : bytes.find(end); found != std::string::npos;
           found = bytes.find(end, last)) {
        last = found + end.size();
      }
      if (last == 0) continue;
      bytes.resize(last);
      if (stream_) ahead_.erase(0, last);
      return;
    }
  }

  document_kind kind_;
  std::string who_;
  decompressors can_read_;
  std::vector<std::string> names_;
  document_place at_;
  std::unique_ptr<stable_file> open_;
  std::unique_ptr<formats::byte_stream> stream_;  // of a compressed file
  std::string ahead_;                             // of its content, from the place on
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
