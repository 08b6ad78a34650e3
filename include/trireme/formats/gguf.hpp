#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/formats/file.hpp"

/// Files of llama.cpp and ollama: GGUF, version 3, little-endian. nn/gguf.hpp writes a model to one.
namespace trireme::formats::gguf {

/// How a tensor's numbers are stored. The quantised kinds store blocks of 32 numbers of a row: a scale (Q4_0, Q5_0,
/// Q8_0), or a scale and a minimum (Q4_1, Q5_1), as float16, and integers of 4, 5 or 8 bits. The values are the
/// format's.
enum class kind : std::uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, bf16 = 30 };

/// All of them, the most exact first.
inline constexpr std::array kinds{kind::f32,  kind::f16,  kind::bf16, kind::q8_0,
                                  kind::q5_1, kind::q5_0, kind::q4_1, kind::q4_0};

/// "Q8_0"
[[nodiscard]] std::string_view name_of(kind which) noexcept;
/// The kind of that name, in capitals or not.
[[nodiscard]] std::optional<kind> kind_named(std::string_view name);
/// The numbers of a block, 32 or 1, and its bytes.
[[nodiscard]] constexpr std::int64_t block_elements(kind which) noexcept {
  return which == kind::f32 || which == kind::f16 || which == kind::bf16 ? 1 : 32;
}
[[nodiscard]] constexpr std::int64_t block_bytes(kind which) noexcept {
  switch (which) {
    case kind::f32:
      return 4;
    case kind::f16:
    case kind::bf16:
      return 2;
    case kind::q4_0:
      return 18;
    case kind::q4_1:
      return 20;
    case kind::q5_0:
      return 22;
    case kind::q5_1:
      return 24;
    case kind::q8_0:
      return 34;
  }
  return 0;
}

/// Converts numbers to a kind.
///
/// Numerics  the bytes of the Python package gguf (gguf.quants.quantize), also for infinities, NaNs and denormals.
/// Errors    config_error if `from` is not a whole number of blocks, or `to` has another size.
void quantize(kind which, std::span<float const> from, std::span<std::byte> to);
/// Converts back; errors as quantize().
void dequantize(kind which, std::span<std::byte const> from, std::span<float> to);

/// A value of a file's metadata. The order is that of the format's type numbers, with arrays behind all scalars.
using value =
    std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float, bool,
                 std::string, std::uint64_t, std::int64_t, double, std::vector<std::uint8_t>, std::vector<std::int8_t>,
                 std::vector<std::uint16_t>, std::vector<std::int16_t>, std::vector<std::uint32_t>,
                 std::vector<std::int32_t>, std::vector<float>, std::vector<bool>, std::vector<std::string>,
                 std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;

/// Keys and values, in the order of the file.
using metadata = std::vector<std::pair<std::string, value>>;

/// The value of a key, or nullptr.
[[nodiscard]] value const* find(metadata const& in, std::string_view key) noexcept;

/// A tensor of a file. The caller of a writer sets name, type and shape; the writer computes `begin` and `bytes`.
/// `begin` counts from the start of the file's data.
struct entry {
  std::string name;
  kind type = kind::f32;
  shape extents;  ///< outermost first, as elsewhere in this library; the file has the opposite order
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(entry const&, entry const&) = default;
};

/// The parsed beginning of a file.
struct header {
  gguf::metadata notes;
  std::vector<entry> entries;  ///< in the order of the file
  std::uint64_t alignment = 32;
  std::uint64_t data_offset = 0;  ///< the position of the data in the file
};

/// A longer header, more tensors or a higher rank is refused.
inline constexpr std::uint64_t most_header_bytes = std::uint64_t{1} << 28;
inline constexpr std::uint64_t most_tensors = 1'000'000;
inline constexpr int most_rank = 4;

/// Parses and checks the beginning of a file; accesses only its arguments, so that it can be fuzzed.
///
/// Checks: the magic bytes and version 3; at most 256 MiB; no key and no tensor twice; ranks of at most 4; rows that
/// are whole blocks; data without overlap, in the order of the entries, within the file. Arrays of arrays, and kinds of
/// tensors other than those of `kind`, are refused.
///
/// Errors   format_error(path, byte, reason).
///
/// @param start  the first bytes of the file.
/// @returns nothing if the header goes on behind `start`, but not behind the file.
[[nodiscard]] std::optional<header> parse_header(std::span<std::byte const> start, std::uint64_t file_size,
                                                 std::string const& path);

/// Reads tensors, or parts of them.
///
/// Threads  read() may be called from several threads at once.
/// Errors   format_error if the file is invalid (see parse_header), io_error if it cannot be read, config_error for a
///          tensor or range that it does not have.
class reader {
 public:
  explicit reader(std::string path, file_system& files = real_files());

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return header_.entries; }
  [[nodiscard]] gguf::metadata const& metadata() const noexcept { return header_.notes; }
  [[nodiscard]] std::uint64_t alignment() const noexcept { return header_.alignment; }
  /// The tensor of that name; linear in the number of tensors.
  [[nodiscard]] entry const& at(std::string_view name) const;

  /// Fills `to` with the stored bytes of a tensor from byte `first` on.
  void read(entry const& from, std::uint64_t first, std::span<std::byte> to) const;
  /// Fills `to` with the numbers of a tensor from element `first` on; both are whole blocks.
  void read(entry const& from, std::int64_t first, std::span<float> to) const;

 private:
  file file_;
  header header_;
};

/// Writes a file: metadata and tensors are declared first, then the tensors' numbers follow in the same order, in
/// pieces of any whole number of blocks.
///
/// Memory is one piece. finish() gives the file its name when it is complete and on the device (atomic_file); a writer
/// that is destroyed earlier leaves no file. Each tensor begins at a multiple of 32 bytes, or of `general.alignment` in
/// the metadata.
///
/// Errors   io_error; config_error for metadata and entries that the reader would refuse, for more numbers than
///          declared, and for finish() before all are written.
class writer {
 public:
  writer(std::string const& path, metadata const& notes, std::vector<entry> entries, file_system& files = real_files());

  /// With begin and bytes set.
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return entries_; }
  /// The length of the finished file.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// Appends numbers of the current tensor, which are converted to its kind.
  void write(std::span<float const> values);
  /// Appends bytes that are in the tensor's kind already.
  void write(std::span<std::byte const> bytes);
  void finish();

 private:
  void skip_written();

  std::string path_;
  std::uint64_t alignment_;
  std::vector<entry> entries_;
  std::uint64_t file_bytes_ = 0;
  std::string header_;         // sets file_bytes_
  std::size_t current_ = 0;    // of entries_
  std::uint64_t written_ = 0;  // bytes of it
  std::vector<std::byte> converted_;
  atomic_file file_;
};

}  // namespace trireme::formats::gguf

#ifndef TRIREME_COMPILED
#include "trireme/formats/gguf.ipp"
#endif
