// Trireme 0.1.0: trireme/data/hdf5.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b8eec0d3a6fe0f0884164cad3bee57ec2c2a0e48f87a1c117f44c4e3a5ec98bb
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/file_list.hpp"
#include "trireme/formats/npy.hpp"

// ---- trireme/data/hdf5.hpp
#include <hdf5.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#ifndef TRIREME_DATA_DETAIL_HDF5_LIBRARY_INCLUDED
#define TRIREME_DATA_DETAIL_HDF5_LIBRARY_INCLUDED

// ---- trireme/data/detail/hdf5_library.hpp
namespace trireme::data {

/// What every call of HDF5 here is made under, because the library is rarely built for several threads. A program that
/// calls HDF5 itself while samples are read takes it, too.
[[nodiscard]] inline std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex one;
  return one;
}

}  // namespace trireme::data

namespace trireme::data::detail {

/// While it lives, this thread may call HDF5, which prints no errors.
class hdf5_section {
 public:
  hdf5_section() : lock_(hdf5_mutex()) {
    ::H5Eget_auto2(H5E_DEFAULT, &print_, &to_);
    ::H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  hdf5_section(hdf5_section const&) = delete;
  hdf5_section& operator=(hdf5_section const&) = delete;
  ~hdf5_section() { ::H5Eset_auto2(H5E_DEFAULT, print_, to_); }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  ::H5E_auto2_t print_ = nullptr;
  void* to_ = nullptr;
};

/// The innermost reason of the last call that failed.
[[nodiscard]] inline std::string hdf5_reason() {
  std::string out;
  auto const take = [](unsigned, ::H5E_error2_t const* each, void* to) -> ::herr_t {
    auto& reason = *static_cast<std::string*>(to);
    if (reason.empty() && each->desc != nullptr) reason = each->desc;
    return 0;
  };
  ::H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take, &out);
  return text("HDF5 says: ", out.empty() ? "no reason" : out);
}

/// Something that HDF5 opened, and how it is closed.
class hdf5_id {
 public:
  hdf5_id(::hid_t id, ::herr_t (*close)(::hid_t)) noexcept : id_(id), close_(close) {}
  hdf5_id(hdf5_id&& from) noexcept : id_(std::exchange(from.id_, -1)), close_(from.close_) {}
  hdf5_id& operator=(hdf5_id&& from) noexcept {
    std::swap(id_, from.id_);
    std::swap(close_, from.close_);
    return *this;
  }
  ~hdf5_id() {
    if (id_ < 0) return;
    hdf5_section const here;
    close_(id_);
  }
  [[nodiscard]] ::hid_t get() const noexcept { return id_; }
  [[nodiscard]] explicit operator bool() const noexcept { return id_ >= 0; }

 private:
  ::hid_t id_;
  ::herr_t (*close_)(::hid_t);
};

/// The numbers of a type in a file, of either byte order; none if it is another type than samples have.
[[nodiscard]] inline std::optional<formats::npy::number> hdf5_number(::hid_t type) {
  using enum formats::npy::number;
  auto const kind = ::H5Tget_class(type);
  auto const bytes = ::H5Tget_size(type);
  if (kind == H5T_ENUM) {  // booleans of h5py
    hdf5_id const base(::H5Tget_super(type), ::H5Tclose);
    return base ? hdf5_number(base.get()) : std::nullopt;
  }
  if (kind == H5T_INTEGER) {
    bool const with_sign = ::H5Tget_sign(type) != H5T_SGN_NONE;
    if (bytes == 1) return with_sign ? i8 : u8;
    if (bytes == 2) return with_sign ? i16 : u16;
    if (bytes == 4) return with_sign ? i32 : u32;
    if (bytes == 8) return with_sign ? i64 : u64;
  }
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (kind == H5T_FLOAT && ::H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0) {
    if (bytes == 2 && exponent_bits == 5 && mantissa_bits == 10) return f16;
    if (bytes == 4 && exponent_bits == 8 && mantissa_bits == 23) return f32;
    if (bytes == 8 && exponent_bits == 11 && mantissa_bits == 52) return f64;
  }
  return std::nullopt;
}

/// What a type that is refused is called.
[[nodiscard]] inline std::string hdf5_words(::hid_t type) {
  switch (::H5Tget_class(type)) {
    case H5T_STRING:
      return "strings";
    case H5T_COMPOUND:
      return "records";
    case H5T_ARRAY:
      return "arrays as elements";
    case H5T_VLEN:
      return "sequences of different lengths";
    case H5T_REFERENCE:
      return "references";
    case H5T_OPAQUE:
    case H5T_BITFIELD:
      return "bytes without a meaning";
    case H5T_FLOAT:
      return text("floating-point numbers of ", 8 * ::H5Tget_size(type), " bits of an unusual kind");
    case H5T_INTEGER:
      return text("integers of ", 8 * ::H5Tget_size(type), " bits");
    default:
      return "elements of an unknown type";
  }
}

/// The type of such numbers in memory.
[[nodiscard]] inline hdf5_id hdf5_memory_type(formats::npy::number type) {
  using enum formats::npy::number;
  auto const copy = [](::hid_t of) { return hdf5_id(::H5Tcopy(of), ::H5Tclose); };
  switch (type) {
    case f16: {
      auto half = copy(H5T_NATIVE_FLOAT);
      ::H5Tset_fields(half.get(), 15, 10, 5, 0, 10);
      ::H5Tset_size(half.get(), 2);
      ::H5Tset_ebias(half.get(), 15);
      return half;
    }
    case f32:
      return copy(H5T_NATIVE_FLOAT);
    case f64:
      return copy(H5T_NATIVE_DOUBLE);
    case i8:
      return copy(H5T_NATIVE_INT8);
    case i16:
      return copy(H5T_NATIVE_INT16);
    case i32:
      return copy(H5T_NATIVE_INT32);
    case i64:
      return copy(H5T_NATIVE_INT64);
    case u16:
      return copy(H5T_NATIVE_UINT16);
    case u32:
      return copy(H5T_NATIVE_UINT32);
    case u64:
      return copy(H5T_NATIVE_UINT64);
    case u8:
    case boolean:
      break;
  }
  return copy(H5T_NATIVE_UINT8);
}

/// Adds the paths of the datasets below a group; no more than `most`, and not through more than eight groups, because
/// groups may hold each other.
inline void hdf5_list(::hid_t group, std::string const& prefix, std::size_t most, int depth,
                      std::vector<std::string>& out) {
  ::H5G_info_t about{};
  if (depth > 8 || ::H5Gget_info(group, &about) < 0) return;
  for (::hsize_t i = 0; i < about.nlinks && out.size() < most; ++i) {
    char name[256] = {};
    if (::H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT) < 0) continue;
    hdf5_id const each(::H5Oopen(group, name, H5P_DEFAULT), [](::hid_t id) { return ::H5Oclose(id); });
    if (!each) continue;  // a link to nothing
    auto const kind = ::H5Iget_type(each.get());
    if (kind == H5I_DATASET) out.push_back(prefix + name);
    if (kind == H5I_GROUP) hdf5_list(each.get(), text(prefix, name, "/"), most, depth + 1, out);
  }
}

}  // namespace trireme::data::detail

#endif  // TRIREME_DATA_DETAIL_HDF5_LIBRARY_INCLUDED

// ---- trireme/data/hdf5.hpp (goes on)
#ifndef TRIREME_DATA_DETAIL_NUMBER_CAST_INCLUDED
#define TRIREME_DATA_DETAIL_NUMBER_CAST_INCLUDED

// ---- trireme/data/detail/number_cast.hpp
#include <cmath>
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

// ---- trireme/data/hdf5.hpp (goes on)
namespace trireme::data {

class hdf5_samples;

/// Samples in HDF5 files: row s of one dataset and row s of another are sample s. Link trireme::hdf5, which exists
/// where HDF5 does.
///
///     data::hdf5{.files = "part_*.h5", .features = "fields/x", .targets = "y", .features_as = dtype::f32}.open()
///
/// Several files follow each other along the first axis. Datasets are not loaded: rows are read when they are needed.
/// Integers of 8 to 64 bits, IEEE numbers of 16, 32 and 64 bits and enumerations are read, in both byte orders,
/// contiguous or in chunks, with any filter that HDF5 has. Of compressed datasets the chunks that were read last are
/// kept, up to cache_bytes.
///
/// Errors   open() throws config_error if nothing matches, if a file has no dataset of that name, if it has no rows or
///          does not hold numbers, if its filter is not there, if features and targets of a file differ in their number
///          of rows, if rows differ in shape or type between files, or if a type needs a conversion that was not asked
///          for; io_error, with the file, for what is not HDF5, is truncated or cannot be read.
struct hdf5 {
  file_list files{};
  std::string features{};  ///< a dataset's path in the file: "x" or "fields/x"
  std::string targets{};
  std::optional<dtype> features_as{};  ///< f32 or i32: convert the numbers; else they are what the files hold
  std::optional<dtype> targets_as{};
  std::size_t cache_bytes = std::size_t{64}
                            << 20;  ///< of decompressed chunks that are kept, for features and targets each
  [[nodiscard]] hdf5_samples open() const;
  friend bool operator==(hdf5 const&, hdf5 const&) = default;
};

/// "trireme::data::hdf5{.files = "a.h5", .features = "x", .targets = "y"}"
[[nodiscard]] inline std::string to_string(hdf5 const& from) {
  return text("trireme::data::hdf5{.files = ", to_string(from.files), ", .features = \"", from.features,
              "\", .targets = \"", from.targets, "\"", detail::conversion_field("features_as", from.features_as),
              detail::conversion_field("targets_as", from.targets_as),
              from.cache_bytes == hdf5{}.cache_bytes ? "" : text(", .cache_bytes = ", from.cache_bytes), "}");
}

namespace detail {

inline constexpr char const* hdf5_name = "trireme::data::hdf5";

/// A file that is open, and its name.
struct hdf5_file {
  std::string path;
  hdf5_id id;
  explicit hdf5_file(std::string name) : path(std::move(name)), id(-1, ::H5Fclose) {
    stable_file const examined(path, hdf5_name);  // says what is wrong of a file that no library can read
    hdf5_section const here;
    id = {::H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), ::H5Fclose};
    if (id) return;
    auto const why = hdf5_reason();
    throw io_error(path,
                   text(hdf5_name, ": ",
                        ::H5Fis_hdf5(path.c_str()) > 0 ? "cannot open the file; " + why : "this is not an HDF5 file"));
  }
};

/// Rows of a compressed dataset that were decompressed together.
using hdf5_block = std::shared_ptr<std::vector<unsigned char> const>;

/// The blocks that were used last.
class hdf5_cache {
 public:
  explicit hdf5_cache(std::size_t bytes) : bytes_(bytes) {}
  [[nodiscard]] hdf5_block find(std::size_t part, std::int64_t block) {
    std::lock_guard const one(mutex_);
    auto const found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](entry const& each) { return each.part == part && each.block == block; });
    if (found == kept_.end()) return {};
    std::rotate(found, found + 1, kept_.end());  // the last one was used last
    return kept_.back().content;
  }
  void keep(std::size_t part, std::int64_t block, hdf5_block content) {
    std::lock_guard const one(mutex_);
    held_ += content->size();
    kept_.push_back({part, block, std::move(content)});
    while (kept_.size() > 1 && (held_ > bytes_ || kept_.size() > most)) {
      held_ -= kept_.front().content->size();
      kept_.erase(kept_.begin());
    }
  }

 private:
  static constexpr std::size_t most = 64;  // they are searched one by one
  struct entry {
    std::size_t part;
    std::int64_t block;
    hdf5_block content;
  };
  std::mutex mutex_;
  std::vector<entry> kept_;
  std::size_t bytes_, held_ = 0;
};

/// The datasets of one name in some files, joined along the first axis.
class hdf5_rows {
 public:
  hdf5_rows(std::string dataset, std::optional<dtype> as, char const* what, std::size_t cache_bytes)
      : dataset_(std::move(dataset)),
        what_(what),
        cast_(hdf5_name, as, what),
        cache_bytes_(cache_bytes),
        cache_(std::make_shared<hdf5_cache>(cache_bytes)) {}

  /// @returns the rows in this file.
  std::int64_t add(std::shared_ptr<hdf5_file const> const& file) {
    hdf5_section const here;
    auto const& path = file->path;
    auto data = opened(*file);
    hdf5_id const type(::H5Dget_type(data.get()), ::H5Tclose);
    auto const number = hdf5_number(type.get());
    if (!number) {
      throw config_error(text(label(path), " holds ", hdf5_words(type.get()),
                              ", but samples are integers of 8 to 64 bits or IEEE numbers of 16 to 64 bits"));
    }
    hdf5_id const space(::H5Dget_space(data.get()), ::H5Sclose);
    int const axes = ::H5Sget_simple_extent_ndims(space.get());
    if (axes < 1 || axes > shape::max_rank + 1) {
      throw config_error(text(label(path), axes < 1 ? " is a single number or nothing" : text(" has ", axes, " axes"),
                              ", but the first axis is the sample and at most ", shape::max_rank, " others follow"));
    }
    std::vector<::hsize_t> extents(static_cast<std::size_t>(axes));
    ::H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
    std::vector<std::int64_t> const row_extents(extents.begin() + 1, extents.end());
    shape const row{std::span<std::int64_t const>(row_extents)};
    if (extents[0] == 0 || row.size() == 0) {
      throw config_error(text(label(path), " has no numbers: ", extents[0], " samples of shape ", to_string(row)));
    }
    if (extents[0] > std::uint64_t{1} << 55 || row.size() > std::int64_t{1} << 55) {
      throw config_error(text(label(path), " claims ", extents[0], " samples of shape ", to_string(row),
                              ", which no memory or disk holds; the file is damaged"));
    }
    if (parts_.empty()) {
      row_ = row;
      type_ = *number;
      cast_.of(type_, text(path, ": dataset \"", dataset_, "\""));
      memory_type_ = std::make_shared<hdf5_id const>(hdf5_memory_type(type_));
    } else if (row != row_ || *number != type_) {
      throw config_error(text(label(path), " holds rows of ", formats::npy::name_of(*number), " of shape ",
                              to_string(row), ", but ", parts_.front().file->path, " rows of ",
                              formats::npy::name_of(type_), " of shape ", to_string(row_)));
    }
    auto const rows = static_cast<std::int64_t>(extents[0]);
    auto const together = rows_of_block(path, data.get(), rows);
    parts_.push_back({file, std::make_shared<hdf5_id const>(std::move(data)), rows_, rows, together});
    rows_ += rows;
    return rows;
  }

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] dtype type() const noexcept { return cast_.given(); }
  [[nodiscard]] shape const& row_shape() const noexcept { return row_; }

  void read(std::span<std::int64_t const> ids, void* to) const {
    auto* out = static_cast<unsigned char*>(to);
    std::vector<unsigned char> stored(cast_.converts() ? row_bytes() : 0);
    for (auto const id : ids) {
      auto const next = std::upper_bound(parts_.begin(), parts_.end(), id,
                                         [](std::int64_t row, part const& each) { return row < each.first; });
      auto const& from = *(next - 1);
      if (!cast_.converts()) {
        read_row(from, id, out);
      } else {
        read_row(from, id, stored.data());
        cast_.convert(stored, out, [&](std::string const& number) {
          throw config_error(text(label(from.file->path), ": sample ", id, " holds ", number,
                                  ", which is not a number of 32 bits",
                                  cast_.given() == dtype::i32 ? "; ask for f32" : ""));
        });
      }
      out += static_cast<std::size_t>(row_.size()) * size_of(type());
    }
  }

 private:
  struct part {
    std::shared_ptr<hdf5_file const> file;
    std::shared_ptr<hdf5_id const> data;
    std::int64_t first, rows;
    std::int64_t together;  // rows that are decompressed together and kept; 0: rows are read one by one
  };
  [[nodiscard]] std::string label(std::string const& path) const {
    return text(hdf5_name, ": ", path, ": dataset \"", dataset_, "\"");
  }
  [[nodiscard]] std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(row_.size()) * static_cast<std::size_t>(formats::npy::bytes_of(type_));
  }

  [[nodiscard]] hdf5_id opened(hdf5_file const& file) const {
    hdf5_id const access(::H5Pcreate(H5P_DATASET_ACCESS), ::H5Pclose);
    // HDF5 keeps no chunks itself: blocks do.
    ::H5Pset_chunk_cache(access.get(), 0, 0, H5D_CHUNK_CACHE_W0_DEFAULT);
    hdf5_id data(::H5Dopen2(file.id.get(), dataset_.c_str(), access.get()), ::H5Dclose);
    if (data) return data;
    auto const why = hdf5_reason();
    constexpr std::size_t most = 20;
    std::vector<std::string> there;
    hdf5_list(file.id.get(), "", most + 1, 0, there);
    auto const begin = dataset_.find_first_not_of('/');
    auto const name = begin == std::string::npos ? std::string() : dataset_.substr(begin);
    if (std::find(there.begin(), there.end(), name) != there.end()) {
      throw io_error(file.path, text(hdf5_name, ": dataset \"", dataset_, "\" cannot be opened; ", why));
    }
    std::string names;
    for (std::size_t i = 0; i < std::min(most, there.size()); ++i) {
      names += text(i == 0 ? "" : ", ", "\"", there[i], "\"");
    }
    throw config_error(text(hdf5_name, ": ", file.path, " has no dataset \"", dataset_, "\", which .", what_,
                            " names; it has ", names.empty() ? "none" : names, there.size() > most ? ", ..." : ""));
  }

  /// How many rows a compressed dataset has in one row of chunks, if cache_bytes suffices for them.
  [[nodiscard]] std::int64_t rows_of_block(std::string const& path, ::hid_t data, std::int64_t rows) const {
    hdf5_id const made(::H5Dget_create_plist(data), ::H5Pclose);
    if (::H5Pget_layout(made.get()) != H5D_CHUNKED) return 0;
    int const filters = ::H5Pget_nfilters(made.get());
    for (int i = 0; i < filters; ++i) {
      unsigned flags = 0, config = 0;
      std::size_t values = 0;
      char name[64] = {};
      auto const filter =
          ::H5Pget_filter2(made.get(), static_cast<unsigned>(i), &flags, &values, nullptr, sizeof name, name, &config);
      if (::H5Zfilter_avail(filter) <= 0) {
        throw config_error(
            text(label(path), " needs the filter \"", name, "\" (number ", filter,
                 "), which this HDF5 does not have; name the folder of its plugin in HDF5_PLUGIN_PATH, or "
                 "write the dataset with gzip"));
      }
    }
    if (filters <= 0) return 0;
    ::hsize_t chunk[H5S_MAX_RANK] = {};
    if (::H5Pget_chunk(made.get(), H5S_MAX_RANK, chunk) < 1) return 0;
    auto const together = static_cast<std::int64_t>(std::min(chunk[0], static_cast<::hsize_t>(rows)));
    return cache_bytes_ / row_bytes() < static_cast<std::size_t>(together) ? 0 : together;
  }

  void read_row(part const& from, std::int64_t id, unsigned char* to) const {
    auto const row = id - from.first;
    if (from.together == 0) return read_rows(from, id, row, 1, to);
    auto const number = static_cast<std::size_t>(&from - parts_.data());
    auto const block = row / from.together;
    auto content = cache_->find(number, block);
    if (content == nullptr) {
      hdf5_section const here;  // others that wait for this block find it afterwards
      content = cache_->find(number, block);
      if (content == nullptr) {
        auto const first = block * from.together;
        auto const count = std::min(from.together, from.rows - first);
        auto made = std::make_shared<std::vector<unsigned char>>(static_cast<std::size_t>(count) * row_bytes());
        read_rows(from, id, first, count, made->data());
        content = std::move(made);
        cache_->keep(number, block, content);
      }
    }
    std::memcpy(to, content->data() + static_cast<std::size_t>(row - block * from.together) * row_bytes(), row_bytes());
  }

  /// @param id  the sample that is asked for, for messages.
  void read_rows(part const& from, std::int64_t id, std::int64_t first, std::int64_t count, unsigned char* to) const {
    hdf5_section const here;
    ::hsize_t start[shape::max_rank + 1] = {static_cast<::hsize_t>(first)};
    ::hsize_t counts[shape::max_rank + 1] = {static_cast<::hsize_t>(count)};
    for (int axis = 0; axis < row_.rank(); ++axis) counts[axis + 1] = static_cast<::hsize_t>(row_[axis]);
    hdf5_id const space(::H5Dget_space(from.data->get()), ::H5Sclose);
    hdf5_id const memory(::H5Screate_simple(row_.rank() + 1, counts, nullptr), ::H5Sclose);
    if (!space || !memory || ::H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start, nullptr, counts, nullptr) < 0 ||
        ::H5Dread(from.data->get(), memory_type_->get(), memory.get(), space.get(), H5P_DEFAULT, to) < 0) {
      auto const why = hdf5_reason();
      throw io_error(from.file->path,
                     text(hdf5_name, ": dataset \"", dataset_, "\": sample ", id, " cannot be read; ", why));
    }
  }

  std::string dataset_;
  char const* what_;
  number_cast cast_;
  std::size_t cache_bytes_;
  std::shared_ptr<hdf5_cache> cache_;
  std::shared_ptr<hdf5_id const> memory_type_;
  std::vector<part> parts_;
  std::int64_t rows_ = 0;
  shape row_;
  formats::npy::number type_ = formats::npy::number::f32;
};

}  // namespace detail

/// The samples of hdf5.
///
/// Shapes   one sample's are those of the datasets without their first axis.
/// Bytes    at most 2 * cache_bytes of decompressed chunks. A dataset of which one row of chunks takes more than
///          cache_bytes is decompressed anew for each sample.
/// Numerics as array_file_samples.
/// Threads  read() is const: any number of callers, which take turns in HDF5 (hdf5_mutex()). Copies share the files and
///          what is kept of them.
/// Errors   read() throws io_error, with the file, the dataset and the sample, if HDF5 cannot read it.
/// @models trireme::dataset
class hdf5_samples {
 public:
  explicit hdf5_samples(hdf5 const& from)
      : features_(from.features, from.features_as, "features", from.cache_bytes),
        targets_(from.targets, from.targets_as, "targets", from.cache_bytes) {
    for (auto& path : from.files.names(detail::hdf5_name, {".h5", ".hdf5"})) {
      auto const file = std::make_shared<detail::hdf5_file const>(std::move(path));
      auto const features = features_.add(file);
      auto const targets = targets_.add(file);
      if (features != targets) {
        throw config_error(text(detail::hdf5_name, ": ", file->path, ": there are ", how_many(features, "row"),
                                " of \"", from.features, "\" but ", targets, " of \"", from.targets, "\""));
      }
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
  detail::hdf5_rows features_, targets_;
};

inline hdf5_samples hdf5::open() const { return hdf5_samples(*this); }

}  // namespace trireme::data
