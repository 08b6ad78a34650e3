// Trireme 0.1.0: trireme/data/tar_samples.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 5ead12f01b7eb7061f50ccbbcc02ee1d6c5a734ba6390f477aafefffb2b3fc66
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/file_list.hpp"
#include "trireme/formats/npy.hpp"
#include "trireme/formats/tar.hpp"

// ---- trireme/data/tar_samples.hpp
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// ---- trireme/data/tar_samples.hpp (goes on)
namespace trireme::data {

class tar_index;
template <class F>
class decoded_tar_samples;

/// The shapes of samples that a function makes of files; {} is one number.
struct tar_shapes {
  shape inputs{}, targets{};
  friend bool operator==(tar_shapes const&, tar_shapes const&) = default;
};

/// Samples in archives of tar, as WebDataset writes them: files that follow each other and whose names are the same up
/// to the first dot, such as 0001.jpg and 0001.cls, are one sample.
///
///     data::tar_samples{.files = "train-*.tar"}.open(
///         {.inputs = {28, 28}, .targets = {}},
///         [](data::tar_sample const& from, std::span<float> inputs, std::span<std::int32_t> targets) {
///           from.numbers("npy", inputs);
///           targets[0] = from.label("cls");
///         })
///
/// The endings of names are compared in lower case. Files without an ending, files whose names begin with a dot and
/// those such as __index__.txt are passed over, as are folders and links. Archives must not be compressed: they are
/// indexed once, and files are then read by position, so that any sample is reached at once.
///
/// Errors   open() throws config_error if nothing matches or if there is no sample; format_error, with the archive and
///          the byte, for one that is damaged, truncated or refused (formats/tar.hpp), and for a sample that has an
///          ending twice; io_error for a file that cannot be read.
struct tar_samples {
  file_list files{};
  [[nodiscard]] tar_index open() const;
  /// @param f  void(data::tar_sample const&, std::span<Input>, std::span<Target>) const, called by several threads at
  ///           once. What it throws is thrown by loader::next().
  template <class F>
  [[nodiscard]] decoded_tar_samples<F> open(tar_shapes const& shapes, F f) const;
  friend bool operator==(tar_samples const&, tar_samples const&) = default;
};

/// "trireme::data::tar_samples{.files = "train-*.tar"}"
[[nodiscard]] inline std::string to_string(tar_samples const& from) {
  return text("trireme::data::tar_samples{.files = ", to_string(from.files), "}");
}

/// The files of one sample.
class tar_sample {
 public:
  /// The name up to the first dot, with folders.
  [[nodiscard]] std::string const& key() const noexcept { return *key_; }
  /// The archive.
  [[nodiscard]] std::string const& path() const noexcept { return *path_; }
  /// The sample's number in the source.
  [[nodiscard]] std::int64_t id() const noexcept { return id_; }
  /// Whether there is a file of this ending: "jpg", "seg.png".
  [[nodiscard]] bool has(std::string_view ending) const noexcept { return find(ending) != nullptr; }
  [[nodiscard]] std::vector<std::string> endings() const {
    std::vector<std::string> out;
    for (auto const& each : files_) out.push_back((*endings_)[each.ending]);
    return out;
  }

  /// The content of a file.
  /// Errors   format_error, with the endings that there are, if there is none.
  [[nodiscard]] std::vector<std::byte> bytes(std::string_view ending) const {
    auto const& from = expect(ending);
    std::vector<std::byte> out(static_cast<std::size_t>(from.bytes));
    file_->read(from.at, {reinterpret_cast<unsigned char*>(out.data()), out.size()});
    return out;
  }
  /// The same as text.
  [[nodiscard]] std::string string(std::string_view ending) const {
    auto const all = bytes(ending);
    return {reinterpret_cast<char const*>(all.data()), all.size()};
  }
  /// A file that holds a whole number in digits.
  [[nodiscard]] std::int32_t label(std::string_view ending) const {
    auto const all = string(ending);
    std::string_view digits = all;
    auto const blank = [](char letter) { return letter == ' ' || letter == '\n' || letter == '\r' || letter == '\t'; };
    while (!digits.empty() && blank(digits.front())) digits.remove_prefix(1);
    while (!digits.empty() && blank(digits.back())) digits.remove_suffix(1);
    std::int32_t out = 0;
    auto const [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    if (digits.empty() || problem != std::errc{} || end != digits.data() + digits.size()) {
      throw wrong(ending, text("\"", digits.substr(0, 40), "\" is not a whole number that an int32 holds"));
    }
    return out;
  }
  /// An array of numpy, converted to float or int32.
  /// Errors   format_error if it has another number of elements, or a number that does not fit.
  template <class T>
  void numbers(std::string_view ending, std::span<T> to) const {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::int32_t>,
                  "trireme::data::tar_sample: numbers are converted to float or std::int32_t");
    auto const all = bytes(ending);
    formats::npy::header about;
    try {
      about = formats::npy::parse_header(all, all.size(), *path_);
    } catch (format_error const& problem) {
      throw wrong(ending, problem.what());
    }
    if (about.column_major && about.extents.rank() > 1) {
      throw wrong(ending, "the array is in column-major order; save numpy.ascontiguousarray(array)");
    }
    if (about.extents.size() != static_cast<std::int64_t>(to.size())) {
      throw wrong(ending, text("the array has the shape ", to_string(about.extents), ", but ",
                               how_many(to.size(), "number"), " are needed"));
    }
    detail::number_cast cast(who, std::is_same_v<T, float> ? dtype::f32 : dtype::i32, "numbers");
    if constexpr (std::is_same_v<T, std::int32_t>) {
      auto const stored = detail::dtype_of_number(about.type);
      if (stored == dtype::f16 || stored == dtype::f32 || stored == dtype::f64)
        throw wrong(ending, text("the array holds ", formats::npy::name_of(about.type), ", not integers"));
    }
    cast.of(about.type, *path_);
    auto const values =
        std::span(reinterpret_cast<unsigned char const*>(all.data()), all.size()).subspan(about.data_at);
    if (!cast.converts()) {
      std::copy(values.begin(), values.end(), reinterpret_cast<unsigned char*>(to.data()));
      return;
    }
    cast.convert(values, to.data(), [&](std::string const& value) {
      throw wrong(ending, text("the array holds ", value, ", which ", std::is_same_v<T, float> ? "float32" : "int32",
                               " does not"));
    });
  }

  /// An error of this sample, to throw: it names archive, byte, sample and ending.
  [[nodiscard]] format_error wrong(std::string_view ending, std::string const& what) const {
    auto const* const from = find(ending);
    return {*path_, static_cast<std::uint64_t>((from != nullptr ? *from : files_.front()).at),
            text(who, ": sample ", id_, " (", *key_, ".", ending, "): ", what)};
  }

 private:
  friend tar_index;
  static constexpr char const* who = "trireme::data::tar_samples";
  struct file {
    std::int64_t at, bytes;
    std::uint32_t ending;
  };
  tar_sample(std::int64_t id, std::string const& key, std::string const& path, detail::stable_file const& archive,
             std::span<file const> files, std::vector<std::string> const& endings)
      : id_(id), key_(&key), path_(&path), file_(&archive), files_(files), endings_(&endings) {}

  [[nodiscard]] file const* find(std::string_view ending) const noexcept {
    for (auto const& each : files_) {
      if ((*endings_)[each.ending] == ending) return &each;
    }
    return nullptr;
  }
  [[nodiscard]] file const& expect(std::string_view ending) const {
    if (auto const* const found = find(ending)) return *found;
    std::string all;
    for (auto const& each : endings()) all += text(all.empty() ? "" : ", ", each);
    throw wrong(ending, text("the sample has no such file; it has ", all));
  }

  std::int64_t id_;
  std::string const* key_;
  std::string const* path_;
  detail::stable_file const* file_;
  std::span<file const> files_;
  std::vector<std::string> const* endings_;
};

/// What is in the archives of tar_samples.
///
/// Bytes    about 60 and its name for a sample, and 24 for each of its files.
/// Threads  const: any number of callers. Copies share the index and the open files.
class tar_index {
 public:
  explicit tar_index(tar_samples const& from) {
    auto all = std::make_shared<content>();
    for (auto& path : from.files.names(who, {".tar"})) add(*all, std::move(path));
    if (all->samples.empty()) {
      throw config_error(
          text(who, ": ", to_string(from.files), " has no sample: no file whose name has an ending, such as 0001.jpg"));
    }
    all_ = std::move(all);
  }

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(all_->samples.size()); }
  /// Valid as long as the index.
  [[nodiscard]] tar_sample operator[](std::int64_t id) const {
    auto const& of = all_->samples[static_cast<std::size_t>(id)];
    auto const& in = all_->archives[of.archive];
    return {id, of.key, in.path, *in.file, std::span(all_->files).subspan(of.first, of.count), all_->endings};
  }

 private:
  static constexpr char const* who = tar_sample::who;
  struct archive {
    std::string path;
    std::shared_ptr<detail::stable_file const> file;
  };
  struct sample {
    std::string key;
    std::size_t archive, first, count;
  };
  struct content {
    std::vector<archive> archives;
    std::vector<sample> samples;
    std::vector<tar_sample::file> files;
    std::vector<std::string> endings;
  };

  /// "a/b.c/0001.seg.png" is ("a/b.c/0001", "seg.png").
  static std::optional<std::pair<std::string, std::string>> parts_of(std::string const& name) {
    auto const slash = name.rfind('/');
    auto const base = slash == std::string::npos ? 0 : slash + 1;
    if (slash == std::string::npos && name.starts_with("__") && name.ends_with("__")) return std::nullopt;
    auto const dot = name.find('.', base);
    if (dot == std::string::npos || dot == base) return std::nullopt;
    auto ending = name.substr(dot + 1);
    for (auto& letter : ending) letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter;
    return std::pair(name.substr(0, dot), std::move(ending));
  }

  static void add(content& to, std::string path) {
    auto file = std::make_shared<detail::stable_file const>(path, who);
    auto const size = static_cast<std::uint64_t>(file->size());
    auto const read = [&](std::uint64_t at, std::span<std::byte> bytes) {
      file->read(static_cast<std::int64_t>(at), {reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()});
    };
    auto const begin = to.samples.size();
    formats::tar::read_members(read, size, path, [&](formats::tar::member const& member) {
      auto const parts = parts_of(member.name);
      if (!parts) return;
      auto const found = std::find(to.endings.begin(), to.endings.end(), parts->second);
      auto const ending = static_cast<std::uint32_t>(found - to.endings.begin());
      if (found == to.endings.end()) to.endings.push_back(parts->second);
      if (to.samples.size() == begin || to.samples.back().key != parts->first)
        to.samples.push_back({parts->first, to.archives.size(), to.files.size(), 0});
      auto& sample = to.samples.back();
      for (auto i = sample.first; i < to.files.size(); ++i) {
        if (to.files[i].ending != ending) continue;
        throw format_error(path, member.header_at,
                           text(who, ": the sample ", sample.key, " has two files that end in .", parts->second));
      }
      to.files.push_back({static_cast<std::int64_t>(member.data_at), static_cast<std::int64_t>(member.bytes), ending});
      ++sample.count;
    });
    to.archives.push_back({std::move(path), std::move(file)});
  }

  std::shared_ptr<content const> all_;
};

namespace detail {

template <class Call>
struct tar_signature {};
template <class F, class Input, class Target>
struct tar_signature<void (F::*)(tar_sample const&, std::span<Input>, std::span<Target>) const> {
  using input = Input;
  using target = Target;
};

}  // namespace detail

/// The samples that a function makes of the files in archives. Made by tar_samples::open.
/// @models trireme::dataset
template <class F>
class decoded_tar_samples {
  using signature = detail::tar_signature<decltype(&F::operator())>;
  using input = typename signature::input;
  using target = typename signature::target;

 public:
  decoded_tar_samples(tar_index index, tar_shapes const& shapes, F f)
      : index_(std::move(index)), inputs_(shapes.inputs), targets_(shapes.targets), f_(std::move(f)) {}

  [[nodiscard]] std::int64_t size() const noexcept { return index_.size(); }
  [[nodiscard]] dtype input_type() const noexcept { return dtype_of<input>; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype_of<target>; }
  [[nodiscard]] shape input_shape() const { return inputs_; }
  [[nodiscard]] shape target_shape() const { return targets_; }
  [[nodiscard]] bool slow_to_read() const noexcept { return true; }  // f decodes files
  [[nodiscard]] tar_index const& index() const noexcept { return index_; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto const width = static_cast<std::size_t>(inputs_.size()), height = static_cast<std::size_t>(targets_.size());
    auto* in = static_cast<input*>(inputs);
    auto* out = static_cast<target*>(targets);
    for (auto const id : ids) {
      f_(index_[id], std::span(in, width), std::span(out, height));
      in += width;
      out += height;
    }
  }

 private:
  tar_index index_;
  shape inputs_, targets_;
  F f_;
};

inline tar_index tar_samples::open() const { return tar_index(*this); }
template <class F>
decoded_tar_samples<F> tar_samples::open(tar_shapes const& shapes, F f) const {
  return {tar_index(*this), shapes, std::move(f)};
}

}  // namespace trireme::data
