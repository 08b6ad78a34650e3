#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/formats/file.hpp"

namespace trireme::formats::safetensors {

/// An element type with its name in the format, "F32" for example. The format has more types than trireme computes
/// with.
class stored_type {
 public:
  constexpr stored_type() = default;
  constexpr stored_type(dtype type)  // NOLINT(google-explicit-constructor)
      : name_(name_of(type)), bits_(static_cast<int>(size_of(type)) * 8) {}
  /// The type of that name, if the format has it.
  [[nodiscard]] static std::optional<stored_type> named(std::string_view name) noexcept;

  [[nodiscard]] constexpr std::string_view name() const noexcept { return name_; }
  [[nodiscard]] constexpr int bits() const noexcept { return bits_; }
  friend constexpr bool operator==(stored_type a, stored_type b) noexcept { return a.name_ == b.name_; }

 private:
  constexpr stored_type(std::string_view name, int bits) noexcept : name_(name), bits_(bits) {}
  std::string_view name_ = "U8";
  int bits_ = 8;
};

/// A tensor of a file. The caller of a writer sets name, type and shape; the writer computes `begin` and `bytes`.
/// `begin` counts from the start of the file's data.
struct entry {
  std::string name;
  stored_type type;
  shape extents;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(entry const&, entry const&) = default;
};

using metadata = std::vector<std::pair<std::string, std::string>>;

/// The parsed header of a file.
struct header {
  std::vector<entry> entries;     ///< in the order of their data
  safetensors::metadata notes;    ///< `__metadata__`, in the order of the text
  std::uint64_t data_offset = 0;  ///< the position of the data in the file
};

// Limits that are stricter than the format's.
inline constexpr std::uint64_t most_header_bytes = 100'000'000;
inline constexpr std::size_t most_tensors = 1'000'000;
inline constexpr std::size_t most_name_bytes = 4096;

/// The length of the whole header (8 + n), from the first eight bytes. Throws format_error if the file is too short for
/// it.
[[nodiscard]] std::uint64_t header_bytes(std::span<std::byte const> start, std::uint64_t file_size,
                                         std::string const& path);

/// Parses and checks a header; accesses only its arguments, so that it can be fuzzed.
///
/// Checks: a header of at most 100 MB that is within the file; strict JSON of the fixed schema, no duplicate names; at
/// most a million tensors, rank at most 6, names of at most 4096 bytes; sizes that match type and shape, computed
/// without overflow; data without overlap or gaps, up to the exact end of the file.
/// It is stricter than the reference reader only in the limits on tensors, rank and names, in refusing unknown members
/// of a tensor, and in refusing duplicate keys in `__metadata__`.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param start  the first header_bytes() bytes of the file, or more.
[[nodiscard]] header parse_header(std::span<std::byte const> start, std::uint64_t file_size, std::string const& path);

/// Reads tensors, or parts of them, from a file in the format of Hugging Face.
///
/// Only the requested bytes are read (with pread and not a memory map: a file that is truncated meanwhile gives an
/// error and not a signal).
///
/// Threads  read() may be called from several threads at once.
/// Errors   format_error if the file is invalid (see parse_header), io_error if it cannot be read, config_error for a
///          tensor or range that it does not have.
class reader {
 public:
  explicit reader(std::string path, file_system& files = real_files());
  reader(directory const& in, std::string const& name);

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return header_.entries; }
  [[nodiscard]] safetensors::metadata const& metadata() const noexcept { return header_.notes; }
  /// The value of a `__metadata__` key, or nullptr.
  [[nodiscard]] std::string const* note(std::string_view key) const noexcept;
  /// The tensor of that name, or nullptr.
  [[nodiscard]] entry const* find(std::string_view name) const noexcept;
  [[nodiscard]] entry const& at(std::string_view name) const;

  /// Fills `to` with the bytes of a tensor from element `first` on.
  void read(std::string_view name, std::uint64_t first, std::span<std::byte> to) const { read(at(name), first, to); }
  void read(entry const& from, std::uint64_t first, std::span<std::byte> to) const;

  /// The same with a check of the type: T must be the stored type.
  template <element T>
  void read(std::string_view name, std::uint64_t first, std::span<T> to) const requires(!std::is_same_v<T, std::byte>) {
    require_type(at(name), dtype_of<T>);
    read(at(name), first, std::as_writable_bytes(to));
  }

 private:
  explicit reader(file from);
  void require_type(entry const& which, dtype wanted) const;

  file file_;
  header header_;
  std::vector<std::uint32_t> by_name_;  // indices of entries, sorted by name
  std::vector<std::uint32_t> by_key_;   // of notes, sorted by key
};

/// Options of a writer.
struct writer_options {
  sha256* digest = nullptr;      ///< updated with every byte of the file
  file_system* files = nullptr;  ///< used with a path; a directory has its own
};

/// Writes a file: the tensors are declared first, then their bytes follow in the same order, in pieces of any size.
///
/// finish() gives the file its name when it is complete and on the device (atomic_file); a writer that is destroyed
/// earlier leaves no file. Tensors are stored in the declared order, without gaps: declare those of wide types first,
/// so that every tensor is aligned. The data begins at a multiple of 8.
///
/// Errors   io_error; config_error for entries that the reader would refuse, for more bytes than declared, and for
///          finish() before all bytes are written.
class writer {
 public:
  writer(std::string const& path, std::vector<entry> entries, safetensors::metadata notes = {},
         writer_options options = {});
  writer(directory const& in, std::string const& name, std::vector<entry> entries, safetensors::metadata notes = {},
         writer_options options = {});

  /// With begin and bytes set.
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return entries_; }
  /// The length of the finished file.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  void write(std::span<std::byte const> bytes);
  void finish();
  /// Completes the file without renaming it, for files that are replaced together. The writer cannot be used
  /// afterwards.
  [[nodiscard]] atomic_file content();

 private:
  void expect_all() const;
  void put(std::span<std::byte const> bytes);

  std::string path_;
  std::vector<entry> entries_;
  writer_options options_;
  std::uint64_t left_;  // bytes of data still to be written
  std::string header_;
  std::uint64_t file_bytes_;
  atomic_file file_;
};

}  // namespace trireme::formats::safetensors

#ifndef TRIREME_COMPILED
#include "trireme/formats/safetensors.ipp"
#endif
