// Trireme 0.1.0: trireme/formats/npy.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: fd81faee59e8d087fea4d1c889622acc1fcb88bbec920a7e0d75ac150bae9322
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/npy.hpp
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

/// NPY, numpy's file format for one array: a header in the form of a Python dictionary, followed by the numbers.
namespace trireme::formats::npy {

/// The element types that are read.
enum class number : std::uint8_t { f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, boolean };

[[nodiscard]] constexpr int bytes_of(number type) noexcept {
  constexpr int bytes[] = {2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  return bytes[static_cast<std::size_t>(type)];
}

/// numpy's name: "float32"
[[nodiscard]] constexpr std::string_view name_of(number type) noexcept {
  constexpr std::string_view names[] = {"float16", "float32", "float64", "int8",   "int16",  "int32",
                                        "int64",   "uint8",   "uint16",  "uint32", "uint64", "bool"};
  return names[static_cast<std::size_t>(type)];
}

struct header {
  number type = number::f32;
  bool column_major = false;  ///< `fortran_order`: the first index changes fastest
  shape extents;              ///< rank 0: one number
  std::uint64_t data_at = 0;  ///< of the first number, in bytes from the beginning of the file
};

/// A longer header is refused.
inline constexpr std::uint64_t most_header_bytes = 1 << 20;

namespace detail {

/// Reads the dictionary of a header. Every failure names the byte of the file.
class dictionary {
 public:
  dictionary(std::string_view letters, std::uint64_t first, std::string const& path)
      : letters_(letters), first_(first), path_(path) {}

  [[nodiscard]] header parse() {
    header out;
    bool descr = false, order = false, extents = false;
    expect('{');
    while (!take('}')) {
      auto const key_at = at_;
      auto const key = string();
      expect(':');
      if (key == "descr" && !descr) {
        out.type = type();
        descr = true;
      } else if (key == "fortran_order" && !order) {
        out.column_major = truth();
        order = true;
      } else if (key == "shape" && !extents) {
        out.extents = tuple();
        extents = true;
      } else {
        at_ = key_at;
        fail(text("the key \"", std::string(key.substr(0, 40)), "\" is unknown or given twice"));
      }
      if (take('}')) break;
      expect(',');
    }
    blank();
    if (at_ != letters_.size()) fail("something follows the header's dictionary");
    if (!descr || !order || !extents) fail("the header lacks one of descr, fortran_order and shape");
    return out;
  }

 private:
  [[noreturn]] void fail(std::string const& reason) const { throw format_error(path_, first_ + at_, reason); }
  void blank() {
    while (at_ < letters_.size() && (letters_[at_] == ' ' || letters_[at_] == '\n')) ++at_;
  }
  [[nodiscard]] bool take(char letter) {
    blank();
    if (at_ == letters_.size() || letters_[at_] != letter) return false;
    ++at_;
    return true;
  }
  void expect(char letter) {
    if (!take(letter)) fail(text("the header needs a \"", letter, "\" here"));
  }
  [[nodiscard]] std::string_view string() {
    blank();
    auto const quote = at_ < letters_.size() ? letters_[at_] : ' ';
    if (quote != '\'' && quote != '"') fail("the header needs a string here");
    auto const end = letters_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a string of the header does not end");
    auto const out = letters_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out;
  }
  [[nodiscard]] number type() {
    blank();
    auto const begin = at_;
    if (at_ < letters_.size() && letters_[at_] == '[') {
      fail("the elements are records of several fields; save each field as an array of its own");
    }
    auto const name = string();
    static constexpr std::string_view names[] = {"<f2", "<f4", "<f8", "|i1", "<i2", "<i4",
                                                 "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"};
    for (std::size_t i = 0; i < std::size(names); ++i) {
      if (name == names[i]) return static_cast<number>(i);
    }
    at_ = begin;
    std::string const shown(name.substr(0, 20));
    if (name.starts_with('>')) {
      fail(text("the numbers are big-endian (\"", shown, "\"); save array.astype(array.dtype.newbyteorder(\"<\"))"));
    }
    if (name.find('O') != std::string_view::npos) fail("the elements are Python objects, which are not read");
    fail(text("elements of type \"", shown, "\" are not read; save float16, float32, float64, integers or bool"));
  }
  [[nodiscard]] bool truth() {
    blank();
    for (bool const value : {false, true}) {
      std::string_view const word = value ? "True" : "False";
      if (letters_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    }
    fail("fortran_order is True or False");
  }
  [[nodiscard]] shape tuple() {
    shape out;
    expect('(');
    while (!take(')')) {
      if (out.rank() == shape::max_rank) fail(text("the array has more than ", shape::max_rank, " axes"));
      auto const extent = whole();
      if (!out.takes(extent)) fail("the array has more than 2^63 - 1 elements");
      out.push_back(extent);
      if (take(')')) break;
      expect(',');
    }
    return out;
  }
  [[nodiscard]] std::int64_t whole() {
    blank();
    std::int64_t out = 0;
    auto const begin = at_;
    for (; at_ < letters_.size() && letters_[at_] >= '0' && letters_[at_] <= '9'; ++at_) {
      auto const digit = letters_[at_] - '0';
      if (out > (std::numeric_limits<std::int64_t>::max() - digit) / 10) fail("an extent does not fit 63 bits");
      out = out * 10 + digit;
    }
    if (at_ == begin) fail("the header needs a number here");
    if (at_ < letters_.size() && letters_[at_] == 'L') ++at_;  // written by Python 2
    return out;
  }

  std::string_view letters_;
  std::uint64_t first_;
  std::string const& path_;
  std::size_t at_ = 0;
};

}  // namespace detail

inline constexpr std::size_t start_bytes = 12;  ///< of a file, from which header_bytes() computes

/// The length of the whole header from the first 12 bytes of a file (or all of a shorter one).
/// Errors   format_error.
[[nodiscard]] inline std::uint64_t header_bytes(std::span<std::byte const> start, std::uint64_t file_size,
                                                std::string const& path) {
  static constexpr char magic[] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};
  auto const at = [&](std::size_t i) { return std::to_integer<std::uint64_t>(start[i]); };
  if (start.size() < sizeof(magic) || std::memcmp(start.data(), magic, sizeof(magic)) != 0) {
    throw format_error(path, 0, "an array of numpy begins with byte 147 and \"NUMPY\"");
  }
  if (start.size() < start_bytes) throw format_error(path, start.size(), "the file ends within its header");
  auto const version = at(6);
  if (version < 1 || version > 3 || at(7) != 0) {
    throw format_error(path, 6, text("the format has version ", version, ".", at(7), "; 1.0, 2.0 and 3.0 are read"));
  }
  auto const bytes =
      version == 1 ? 10 + at(8) + (at(9) << 8) : 12 + at(8) + (at(9) << 8) + (at(10) << 16) + (at(11) << 24);
  if (bytes > most_header_bytes) {
    throw format_error(path, 8, text("the header has ", bytes, " bytes; at most ", most_header_bytes, " are read"));
  }
  if (bytes > file_size) throw format_error(path, file_size, "the file ends within its header");
  return bytes;
}

/// Parses a header. Accesses only its arguments, so that it can be fuzzed.
///
/// Checks: version 1 to 3, the three keys of the dictionary, a known element type, and extents whose product, computed
/// without overflow, is exactly what follows.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param start  the first header_bytes() bytes of the file, or more.
[[nodiscard]] inline header parse_header(std::span<std::byte const> start, std::uint64_t file_size,
                                         std::string const& path) {
  auto const bytes = header_bytes(start, file_size, path);
  if (bytes > start.size()) throw format_error(path, start.size(), "the file ends within its header");
  std::uint64_t const first = start[6] == std::byte{1} ? 10 : 12;
  std::string_view const letters(reinterpret_cast<char const*>(start.data()) + first, bytes - first);
  auto out = detail::dictionary(letters, first, path).parse();
  out.data_at = bytes;
  auto needed = static_cast<std::uint64_t>(bytes_of(out.type));
  bool empty = false;
  for (auto const extent : out.extents.extents()) empty = empty || extent == 0;
  if (empty) needed = 0;
  auto const left = file_size - bytes;
  for (auto const extent : out.extents.extents()) {
    if (empty) break;
    auto const count = static_cast<std::uint64_t>(extent);
    if (count > left / needed) {
      throw format_error(path, first,
                         text("the shape ", to_string(out.extents), " of ", name_of(out.type), " needs more than the ",
                              how_many(left, "byte"), " that follow"));
    }
    needed *= count;
  }
  if (needed != left) {
    throw format_error(path, first,
                       text("the shape ", to_string(out.extents), " of ", name_of(out.type), " makes ",
                            how_many(needed, "byte"), ", but ", left, agreeing(left, " follows", " follow")));
  }
  return out;
}

}  // namespace trireme::formats::npy
