// Trireme 0.1.0: trireme/data/npz_files.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 0b43bbb938add135a6b9b758cce1642dee9cba8597e0802b7754c0617c6a1490
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/file_list.hpp"
#include "trireme/formats/npy.hpp"
#include "trireme/formats/zip.hpp"

// ---- trireme/data/npz_files.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#ifndef TRIREME_DATA_DETAIL_JOINED_ARRAYS_INCLUDED
#define TRIREME_DATA_DETAIL_JOINED_ARRAYS_INCLUDED

// ---- trireme/data/detail/joined_arrays.hpp
#ifndef TRIREME_DATA_DETAIL_NUMBER_CAST_INCLUDED
#define TRIREME_DATA_DETAIL_NUMBER_CAST_INCLUDED

// ---- trireme/data/detail/number_cast.hpp
#include <cmath>
#include <cstring>
#include <type_traits>

namespace trireme::data::detail {

/// The element type of samples that holds such numbers as they are; none of 16-bit integers and booleans.
[[nodiscard]] inline std::optional<dtype> dtype_of_number(formats::npy::number type) noexcept {
  using enum formats::npy::number;
  switch (type) {
    case f16:
      return dtype::f16;
    case f32:
      return dtype::f32;
    case f64:
      return dtype::f64;
    case i8:
      return dtype::i8;
    case i32:
      return dtype::i32;
    case i64:
      return dtype::i64;
    case u8:
      return dtype::u8;
    case u32:
      return dtype::u32;
    case u64:
      return dtype::u64;
    case i16:
    case u16:
    case boolean:
      break;
  }
  return std::nullopt;
}

/// What is done to the numbers of arrays on their way to samples. Messages begin with `who`, a public name; `what` is
/// features or targets.
class number_cast {
 public:
  number_cast(char const* who, std::optional<dtype> as, char const* what) : who_(who), what_(what), as_(as) {
    if (as && *as != dtype::f32 && *as != dtype::i32) {
      throw config_error(text(who_, ": .", what, "_as = ", name_of(*as), ", but numbers are converted to f32 or i32"));
    }
  }
  /// Says what the arrays hold, the first of which `path` names.
  void of(formats::npy::number type, std::string const& path) {
    auto const stored = dtype_of_number(type);
    if (!as_ && !stored) {
      throw config_error(text(who_, ": ", path, " holds ", formats::npy::name_of(type),
                              ", which no model takes; convert it by .", what_, "_as = dtype::f32 or dtype::i32"));
    }
    if (as_ == dtype::i32 && stored && (*stored == dtype::f16 || *stored == dtype::f32 || *stored == dtype::f64)) {
      throw config_error(text(who_, ": ", path, " holds ", formats::npy::name_of(type),
                              ", which is not converted to i32; ask for f32, or save integers"));
    }
    type_ = type;
    converts_ = as_ && stored != as_;
    given_ = as_ ? *as_ : *stored;
  }
  [[nodiscard]] dtype given() const noexcept { return given_; }
  [[nodiscard]] bool converts() const noexcept { return converts_; }

  /// @param refuse  is called with a number that the type cannot hold, and throws. Infinities and NaN stay.
  template <class Refuse>
  void convert(std::span<unsigned char const> stored, void* to, Refuse const& refuse) const {
    given_ == dtype::f32 ? convert_to<float>(stored, to, refuse) : convert_to<std::int32_t>(stored, to, refuse);
  }

 private:
  template <class To, class Refuse>
  void convert_to(std::span<unsigned char const> stored, void* to, Refuse const& refuse) const {
    using enum formats::npy::number;
    switch (type_) {
      case f16:
        return convert_from<float16, To>(stored, to, refuse);
      case f32:
        return convert_from<float, To>(stored, to, refuse);
      case f64:
        return convert_from<double, To>(stored, to, refuse);
      case i8:
        return convert_from<std::int8_t, To>(stored, to, refuse);
      case i16:
        return convert_from<std::int16_t, To>(stored, to, refuse);
      case i32:
        return convert_from<std::int32_t, To>(stored, to, refuse);
      case i64:
        return convert_from<std::int64_t, To>(stored, to, refuse);
      case u8:
      case boolean:
        return convert_from<std::uint8_t, To>(stored, to, refuse);
      case u16:
        return convert_from<std::uint16_t, To>(stored, to, refuse);
      case u32:
        return convert_from<std::uint32_t, To>(stored, to, refuse);
      case u64:
        return convert_from<std::uint64_t, To>(stored, to, refuse);
    }
  }
  template <class From, class To, class Refuse>
  static void convert_from(std::span<unsigned char const> stored, void* to, Refuse const& refuse) {
    if constexpr (std::is_same_v<To, float> || std::is_integral_v<From>) {  // of() refuses others
      for (std::size_t i = 0; i * sizeof(From) < stored.size(); ++i) {
        From value{};
        std::memcpy(&value, stored.data() + i * sizeof(From), sizeof(From));
        if constexpr (!std::is_same_v<To, float>) {
          if (!std::in_range<std::int32_t>(value)) refuse(text(value));
        }
        auto const out = static_cast<To>(value);
        if constexpr (std::is_same_v<From, double> && std::is_same_v<To, float>) {
          if (std::isinf(out) && !std::isinf(value)) refuse(text(value));
        }
        std::memcpy(static_cast<unsigned char*>(to) + i * sizeof(To), &out, sizeof(To));
      }
    }
  }

  char const* who_;
  char const* what_;
  std::optional<dtype> as_;
  formats::npy::number type_ = formats::npy::number::f32;
  dtype given_ = dtype::f32;
  bool converts_ = false;
};

/// `, .features_as = trireme::dtype::f32`, or nothing: for to_string() of a description.
[[nodiscard]] inline std::string conversion_field(char const* field, std::optional<dtype> type) {
  if (!type) return {};
  return text(", .", field, " = trireme::dtype::", *type == dtype::f32 ? "f32" : "i32");
}

}  // namespace trireme::data::detail

#endif  // TRIREME_DATA_DETAIL_NUMBER_CAST_INCLUDED

// ---- trireme/data/detail/joined_arrays.hpp (goes on)
namespace trireme::data::detail {

/// Where an array in numpy's format is stored: a part of a file, or memory.
class array_bytes {
 public:
  array_bytes(std::shared_ptr<stable_file const> file, std::int64_t begin, std::int64_t size)
      : file_(std::move(file)), begin_(begin), size_(size) {}
  explicit array_bytes(std::shared_ptr<std::vector<unsigned char> const> memory)
      : memory_(std::move(memory)), size_(static_cast<std::int64_t>(memory_->size())) {}

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  /// Fills `to` with the bytes from `at` on, which must be there.
  void read(std::int64_t at, std::span<unsigned char> to) const {
    if (memory_ == nullptr) return file_->read(begin_ + at, to);
    std::copy_n(memory_->begin() + at, to.size(), to.begin());
  }

 private:
  std::shared_ptr<stable_file const> file_;
  std::shared_ptr<std::vector<unsigned char> const> memory_;
  std::int64_t begin_ = 0, size_;
};

/// An array and its name in messages.
struct named_array {
  std::string name;
  array_bytes bytes;
};

/// Some arrays, joined along the first axis. Messages begin with `who`, a public name; `what` is features or targets.
class joined_arrays {
 public:
  joined_arrays(char const* who, std::vector<named_array> arrays, std::optional<dtype> as, char const* what)
      : who_(who), cast_(who, as, what) {
    for (auto& each : arrays) add(std::move(each));
    cast_.of(type_, parts_.front().path);
  }

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] dtype type() const noexcept { return cast_.given(); }
  [[nodiscard]] shape const& row_shape() const noexcept { return row_; }

  void read(std::span<std::int64_t const> ids, void* to) const {
    auto const count = static_cast<std::size_t>(row_.size());
    auto* out = static_cast<unsigned char*>(to);
    std::vector<unsigned char> stored(cast_.converts() ? count * width() : 0);
    for (auto const id : ids) {
      auto const next = std::upper_bound(parts_.begin(), parts_.end(), id,
                                         [](std::int64_t row, part const& each) { return row < each.first; });
      auto const& from = *(next - 1);
      if (!cast_.converts()) {
        read_row(from, id - from.first, {out, count * width()});
      } else {
        read_row(from, id - from.first, stored);
        cast_.convert(stored, out, [&](std::string const& number) {
          throw format_error(from.path, static_cast<std::uint64_t>(from.data_at),
                             text(who_, ": sample ", id, " holds ", number, ", which is not a number of 32 bits"));
        });
      }
      out += count * size_of(type());
    }
  }

 private:
  struct part {
    std::string path;
    array_bytes stored;
    std::int64_t first, rows, data_at;
    bool column_major;
  };
  [[nodiscard]] std::size_t width() const noexcept { return static_cast<std::size_t>(formats::npy::bytes_of(type_)); }

  void add(named_array array) {
    auto& name = array.name;
    auto const bytes = static_cast<std::uint64_t>(array.bytes.size());
    auto const start = [&](std::uint64_t most) {
      std::vector<std::byte> out(std::min(most, bytes));
      array.bytes.read(0, {reinterpret_cast<unsigned char*>(out.data()), out.size()});
      return out;
    };
    auto const length = formats::npy::header_bytes(start(formats::npy::start_bytes), bytes, name);
    auto const header = formats::npy::parse_header(start(length), bytes, name);
    auto const& extents = header.extents;
    if (extents.rank() == 0 || extents.size() == 0) {
      throw config_error(text(who_, ": ", name, " has shape ", to_string(extents), ", but at least one row is needed"));
    }
    shape const row(extents.extents().subspan(1));
    if (parts_.empty()) {
      row_ = row;
      type_ = header.type;
    } else if (row != row_ || header.type != type_) {
      throw config_error(text(who_, ": ", name, " holds rows of ", formats::npy::name_of(header.type), " of shape ",
                              to_string(row), ", but ", parts_.front().path, " rows of ", formats::npy::name_of(type_),
                              " of shape ", to_string(row_)));
    }
    parts_.push_back({std::move(name), std::move(array.bytes), rows_, extents[0],
                      static_cast<std::int64_t>(header.data_at), header.column_major && extents.rank() > 1});
    rows_ += extents[0];
  }

  void read_row(part const& from, std::int64_t row, std::span<unsigned char> to) const {
    auto const bytes = static_cast<std::int64_t>(width());
    if (!from.column_major) return from.stored.read(from.data_at + row * row_.size() * bytes, to);
    for (std::int64_t i = 0; i < row_.size(); ++i) {
      std::int64_t at = row, rest = i, stride = from.rows * row_.size();
      for (int axis = row_.rank() - 1; axis >= 0; --axis) {  // the last axis has the largest stride
        stride /= row_[axis];
        at += rest % row_[axis] * stride;
        rest /= row_[axis];
      }
      from.stored.read(from.data_at + at * bytes, to.subspan(static_cast<std::size_t>(i * bytes), width()));
    }
  }

  char const* who_;
  number_cast cast_;
  std::vector<part> parts_;
  std::int64_t rows_ = 0;
  shape row_;
  formats::npy::number type_ = formats::npy::number::f32;
};

/// The arrays of features and targets as samples: row s of both is sample s.
class array_pair {
 public:
  /// @param features_name, targets_name  of the arrays, in the message about different numbers of rows.
  array_pair(char const* who, joined_arrays features, std::string const& features_name, joined_arrays targets,
             std::string const& targets_name)
      : features_(std::move(features)), targets_(std::move(targets)) {
    if (features_.rows() != targets_.rows()) {
      throw config_error(text(who, ": there are ", how_many(features_.rows(), "row"), " of ", features_name, " but ",
                              targets_.rows(), " of ", targets_name));
    }
  }
  [[nodiscard]] std::int64_t size() const noexcept { return features_.rows(); }
  [[nodiscard]] dtype input_type() const noexcept { return features_.type(); }
  [[nodiscard]] dtype target_type() const noexcept { return targets_.type(); }
  [[nodiscard]] shape input_shape() const { return features_.row_shape(); }
  [[nodiscard]] shape target_shape() const { return targets_.row_shape(); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    features_.read(ids, inputs);
    targets_.read(ids, targets);
  }

 private:
  joined_arrays features_, targets_;
};

}  // namespace trireme::data::detail

#endif  // TRIREME_DATA_DETAIL_JOINED_ARRAYS_INCLUDED

// ---- trireme/data/npz_files.hpp (goes on)
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
