#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/data/detail/joined_arrays.hpp"
#include "trireme/data/detail/stable_file.hpp"
#include "trireme/data/file_list.hpp"
#include "trireme/formats/zip.hpp"

namespace trireme::data {

class npz_samples;

/// Samples in numpy's .npz files, as numpy.savez and numpy.savez_compressed write them: row s of one member and row s
/// of another are sample s.
///
///     data::npz_files{.files = "part_*.npz", .features = "x", .targets = "y"}.open()
///
/// Several files follow each other along the first axis. Members of numpy.savez are not loaded: rows are read by
/// position when they are needed. Members of numpy.savez_compressed need a decompressor, formats::inflate
/// (formats/inflate.hpp, which needs zlib), and are kept in memory as a whole.
///
/// Errors   open() throws config_error if nothing matches, if a file has no member of that name, or two, if a member is
///          compressed and there is no decompressor, and as array_files; format_error and io_error, with the file, the
///          member and the byte, for a damaged file.
struct npz_files {
  file_list files{};
  std::string features{};  ///< a member's name, with or without ".npy"
  std::string targets{};
  std::optional<dtype> features_as{};  ///< f32 or i32: convert the numbers; else they are what the files hold
  std::optional<dtype> targets_as{};
  bool check = true;  ///< whether open() reads members that are not compressed once, to compare their checksums
  [[nodiscard]] npz_samples open(formats::zip::decompressor const& decompress = {}) const;
  friend bool operator==(npz_files const&, npz_files const&) = default;
};

/// "trireme::data::npz_files{.files = "a.npz", .features = "x", .targets = "y"}"
[[nodiscard]] inline std::string to_string(npz_files const& from) {
  return text("trireme::data::npz_files{.files = ", to_string(from.files), ", .features = \"", from.features,
              "\", .targets = \"", from.targets, "\"", detail::conversion_field("features_as", from.features_as),
              detail::conversion_field("targets_as", from.targets_as), from.check ? "" : ", .check = false", "}");
}

namespace detail {

inline constexpr char const* npz_files_name = "trireme::data::npz_files";

/// Reads a part of a file, for formats::zip.
struct file_reader {
  stable_file const* file;
  void operator()(std::uint64_t at, std::span<std::byte> to) const {
    file->read(static_cast<std::int64_t>(at), {reinterpret_cast<unsigned char*>(to.data()), to.size()});
  }
};

/// One archive, of which members are opened.
class npz_archive {
 public:
  explicit npz_archive(std::string path)
      : path_(std::move(path)), file_(std::make_shared<stable_file const>(path_, npz_files_name)) {
    all_ = formats::zip::read_directory(file_reader{file_.get()}, static_cast<std::uint64_t>(file_->size()), path_);
  }

  /// @param field  of npz_files that names the member, for messages.
  [[nodiscard]] named_array open(std::string const& name, char const* field, bool check,
                                 formats::zip::decompressor const& decompress) const {
    auto const& member = find(name, field);
    auto const begin = formats::zip::data_at(file_reader{file_.get()}, all_, member, path_);
    if (member.stored()) {
      if (check) expect_crc(member, begin);
      return {text(path_, "/", member.name),
              {file_, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(member.bytes)}};
    }
    if (!decompress) {
      throw config_error(text(npz_files_name, ": ", path_, ": member \"", member.name,
                              "\" is compressed; save it with numpy.savez, or include trireme/formats/inflate.hpp and ",
                              "call open(trireme::formats::inflate)"));
    }
    // The best that DEFLATE does, so that a damaged size does not take all memory.
    if (member.bytes / 1032 > member.stored_bytes) {
      throw failure(
          member, member.header_at,
          text("cannot make ", how_many(member.bytes, "byte"), " of ", how_many(member.stored_bytes, "byte")));
    }
    auto content = std::make_shared<std::vector<unsigned char>>(static_cast<std::size_t>(member.bytes));
    blocks from(*this, begin, member.stored_bytes);
    auto const bytes = std::as_writable_bytes(std::span(*content));
    auto const problem = decompress([&] { return from.next(); }, bytes);
    if (!problem.empty()) throw failure(member, begin, text("is damaged: ", problem));
    expect_equal(member, begin, formats::zip::crc32(0, bytes));
    return {text(path_, "/", member.name), array_bytes(std::move(content))};
  }

 private:
  /// The bytes of a member, at most a MiB at a time.
  class blocks {
   public:
    blocks(npz_archive const& from, std::uint64_t begin, std::uint64_t bytes)
        : read_{from.file_.get()}, at_(begin), left_(bytes), block_(static_cast<std::size_t>(std::min(bytes, most))) {}
    [[nodiscard]] std::span<std::byte const> next() {
      auto const piece = std::span(block_).first(static_cast<std::size_t>(std::min(left_, most)));
      read_(at_, piece);
      at_ += piece.size();
      left_ -= piece.size();
      return piece;
    }

   private:
    static constexpr std::uint64_t most = 1 << 20;
    file_reader read_;
    std::uint64_t at_, left_;
    std::vector<std::byte> block_;
  };

  [[nodiscard]] format_error failure(formats::zip::member const& of, std::uint64_t at, std::string const& what) const {
    return {path_, at, text(npz_files_name, ": member \"", of.name, "\" ", what)};
  }
  [[nodiscard]] formats::zip::member const& find(std::string const& name, char const* field) const {
    formats::zip::member const* found = nullptr;
    for (auto const& each : all_.members) {
      if (each.name != name && each.name != name + ".npy") continue;
      if (found != nullptr) {
        throw config_error(text(npz_files_name, ": ", path_, " has two members that ", field, " = \"", name,
                                "\" may mean; save the arrays again under different names"));
      }
      found = &each;
    }
    if (found != nullptr) return *found;
    std::string names;
    std::size_t count = 0;
    for (auto const& each : all_.members) {
      if (++count > 20) break;
      auto const array = each.name.ends_with(".npy") ? each.name.substr(0, each.name.size() - 4) : each.name;
      names += text(names.empty() ? "" : ", ", "\"", array, "\"");
    }
    throw config_error(text(npz_files_name, ": ", path_, " has no member \"", name, "\", which ", field,
                            " names; it has ", names.empty() ? "none" : names, count > 20 ? ", ..." : ""));
  }
  void expect_crc(formats::zip::member const& of, std::uint64_t begin) const {
    std::uint32_t crc = 0;
    blocks from(*this, begin, of.bytes);
    for (auto piece = from.next(); !piece.empty(); piece = from.next()) crc = formats::zip::crc32(crc, piece);
    expect_equal(of, begin, crc);
  }
  void expect_equal(formats::zip::member const& of, std::uint64_t begin, std::uint32_t crc) const {
    if (crc != of.crc) throw failure(of, begin, "is damaged: its bytes do not have the checksum of the directory");
  }

  std::string path_;
  std::shared_ptr<stable_file const> file_;
  formats::zip::archive all_;
};

}  // namespace detail

/// The samples of npz_files.
///
/// Shapes   one sample's are those of the arrays without their first axis.
/// Bytes    those of compressed members; of others only the rows that are read.
/// Numerics as array_file_samples.
/// Threads  read() is const: any number of callers. Copies share files and memory.
/// @models trireme::dataset
class npz_samples : public detail::array_pair {
 public:
  explicit npz_samples(npz_files const& from, formats::zip::decompressor const& decompress = {})
      : array_pair{
            detail::npz_files_name,
            {detail::npz_files_name, opened(from, from.features, ".features", decompress), from.features_as,
             "features"},
            text("\"", from.features, "\""),
            {detail::npz_files_name, opened(from, from.targets, ".targets", decompress), from.targets_as, "targets"},
            text("\"", from.targets, "\"")} {}

 private:
  static std::vector<detail::named_array> opened(npz_files const& from, std::string const& member, char const* field,
                                                 formats::zip::decompressor const& decompress) {
    std::vector<detail::named_array> out;
    for (auto& path : from.files.names(detail::npz_files_name, {".npz"})) {
      out.push_back(detail::npz_archive(std::move(path)).open(member, field, from.check, decompress));
    }
    return out;
  }
};

inline npz_samples npz_files::open(formats::zip::decompressor const& decompress) const {
  return npz_samples(*this, decompress);
}

}  // namespace trireme::data
