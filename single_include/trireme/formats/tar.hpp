// Trireme 0.1.0: trireme/formats/tar.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 5241461a0a1e9359394e302a4c00acb30104b42f09b7e2e2036eea05d0b6a716
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/tar.hpp
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Archives of tar: the list of the files in them, and where the bytes of each begin.
///
/// Read: the formats ustar, GNU (long names, sizes beyond 8 GiB), pax (names and sizes) and that before POSIX. Folders,
/// links and devices are passed over. Refused, each by one sentence: files with holes (sparse), archives that are
/// compressed, that end without the blocks of zeros at their end, or behind whose end other bytes follow.
namespace trireme::formats::tar {

/// A file in an archive.
struct member {
  std::string name;
  std::uint64_t header_at = 0;  ///< in bytes from the beginning of the archive
  std::uint64_t data_at = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(member const&, member const&) = default;
};

/// Headers and contents are padded to blocks of this size.
inline constexpr std::uint64_t block_bytes = 512;
inline constexpr std::uint64_t most_extra_bytes = 1 << 20;  ///< of a long name, or of the records of a pax header

namespace detail {

using block = std::array<char, block_bytes>;

/// The text in a field, which ends at a zero or at the field's end.
[[nodiscard]] inline std::string_view text_in(block const& header, std::size_t at, std::size_t width) noexcept {
  std::string_view const all(header.data() + at, width);
  return all.substr(0, std::min(all.find('\0'), width));
}

/// A number in a field: octal digits, with blanks around them, or, if the first bit is set, binary (GNU).
[[nodiscard]] inline std::optional<std::uint64_t> number_in(block const& header, std::size_t at,
                                                            std::size_t width) noexcept {
  auto const first = static_cast<unsigned char>(header[at]);
  std::uint64_t out = 0;
  if (first == 0x80) {
    for (std::size_t i = 1; i < width; ++i) {
      if (out >> 55 != 0) return std::nullopt;
      out = out << 8 | static_cast<unsigned char>(header[at + i]);
    }
    return out;
  }
  auto digits = text_in(header, at, width);
  while (!digits.empty() && digits.front() == ' ') digits.remove_prefix(1);
  while (!digits.empty() && digits.back() == ' ') digits.remove_suffix(1);
  for (auto const digit : digits) {
    if (digit < '0' || digit > '7') return std::nullopt;
    out = out << 3 | static_cast<std::uint64_t>(digit - '0');
  }
  return out;
}

/// Whether the sum of a header's bytes is the one that it says: of unsigned bytes, or of signed ones as old programs
/// wrote it.
[[nodiscard]] inline bool sum_is_right(block const& header) noexcept {
  std::int64_t of_unsigned = 0, of_signed = 0;
  for (std::size_t i = 0; i < header.size(); ++i) {
    auto const letter = i >= 148 && i < 156 ? ' ' : header[i];
    of_unsigned += static_cast<unsigned char>(letter);
    of_signed += static_cast<signed char>(letter);
  }
  auto const said = number_in(header, 148, 8);
  return said && (static_cast<std::int64_t>(*said) == of_unsigned || static_cast<std::int64_t>(*said) == of_signed);
}

/// The records of a pax header: "27 path=some/long/name\n".
[[nodiscard]] inline std::optional<std::string> read_records(std::string_view all,
                                                             std::map<std::string, std::string, std::less<>>& to) {
  while (!all.empty()) {
    if (all.front() == '\0') break;  // some programs fill the block
    std::size_t length = 0, at = 0;
    for (; at < all.size() && all[at] >= '0' && all[at] <= '9' && length <= most_extra_bytes; ++at)
      length = length * 10 + static_cast<std::size_t>(all[at] - '0');
    auto const equals = all.find('=', at);
    if (at == 0 || at >= all.size() || all[at] != ' ' || length > all.size() || equals == std::string_view::npos ||
        equals + 1 >= length || all[length - 1] != '\n')
      return "a record of a pax header is damaged";
    to[std::string(all.substr(at + 1, equals - at - 1))] = std::string(all.substr(equals + 1, length - equals - 2));
    all.remove_prefix(length);
  }
  return std::nullopt;
}

/// Reads an archive from its beginning to its end.
template <class Read>
class reader {
 public:
  reader(Read const& read, std::uint64_t size, std::string const& path) : read_(read), size_(size), path_(path) {}

  template <class Found>
  void run(Found const& found) {
    block header;
    expect_archive();
    for (std::uint64_t at = 0;;) {
      if (size_ - at < block_bytes) {
        fail(at, at == size_ ? "the archive ends without the blocks of zeros that are its end; it is truncated"
                             : "the archive ends within a header; it is truncated");
      }
      get(at, header);
      if (is_zero(header)) return expect_nothing_after(at);
      if (!sum_is_right(header)) fail(at, "this is no header of a file: its checksum is wrong");
      at = one(at, header, found);
    }
  }

 private:
  using records = std::map<std::string, std::string, std::less<>>;

  [[noreturn]] void fail(std::uint64_t at, std::string const& what) const { throw format_error(path_, at, what); }
  void get(std::uint64_t at, std::span<char> to) const { read_(at, std::as_writable_bytes(to)); }
  static bool is_zero(std::span<char const> of) {
    return std::all_of(of.begin(), of.end(), [](char letter) { return letter == '\0'; });
  }

  void expect_archive() const {
    std::array<char, 4> start{};
    get(0, std::span(start).first(std::min<std::uint64_t>(size_, 4)));
    std::string_view const magic(start.data(), start.size());
    char const* const kind = magic.starts_with("\x1f\x8b")           ? "gzip"
                             : magic.starts_with("\x28\xb5\x2f\xfd") ? "zstd"
                             : magic.starts_with("BZh")              ? "bzip2"
                             : magic.starts_with(
                                   "\xfd"
                                   "7zX")
                                 ? "xz"
                                 : nullptr;
    if (kind != nullptr)
      fail(0, text("the archive is compressed by ", kind, "; decompress it, so that it can be read at any position"));
  }

  void expect_nothing_after(std::uint64_t at) const {
    std::vector<char> some(std::min<std::uint64_t>(size_ - at, 1 << 16));
    while (at < size_) {
      auto const part = std::span(some).first(std::min<std::uint64_t>(size_ - at, some.size()));
      get(at, part);
      if (!is_zero(part)) {
        auto const byte = std::find_if(part.begin(), part.end(), [](char letter) { return letter != '\0'; });
        fail(at + static_cast<std::uint64_t>(byte - part.begin()),
             "bytes follow the end of the archive; archives that were joined must be given one by one");
      }
      at += part.size();
    }
  }

  /// The member whose header is at `at`. @returns where the next one is.
  template <class Found>
  std::uint64_t one(std::uint64_t at, block const& header, Found const& found) {
    auto const kind = header[156];
    auto const said = number_in(header, 124, 12);
    if (!said) fail(at, "the size in this header is not a number");
    auto bytes = *said;
    if (kind == 'x' || kind == 'X' || kind == 'g' || kind == 'L' || kind == 'K') return extra(at, kind, bytes);

    auto name = std::string(text_in(header, 0, 100));
    if (std::string_view(header.data() + 257, 6) == std::string_view("ustar", 6)) {  // POSIX; GNU has a blank there
      auto const prefix = text_in(header, 345, 155);
      if (!prefix.empty()) name = text(prefix, "/", name);
    }
    for (auto const* each : {&global_, &local_}) {
      if (auto const path = each->find("path"); path != each->end()) name = path->second;
      if (auto const size = each->find("size"); size != each->end()) bytes = decimal(at, size->second);
      for (auto const& [key, value] : *each) {
        if (key.starts_with("GNU.sparse")) sparse(at, name);
      }
    }
    if (long_name_) name = *long_name_;
    local_.clear();
    long_name_.reset();
    if (kind == 'S') sparse(at, name);
    bool const known = kind >= '1' && kind <= '6';  // links, devices, folders: no data, whatever the size says
    if (known) bytes = 0;
    auto const data_at = at + block_bytes, after = end_of(at, data_at, bytes, name);
    bool const folder = name.ends_with('/');
    if ((kind == '0' || kind == '\0' || kind == '7') && !folder) found(member{std::move(name), at, data_at, bytes});
    return after;
  }

  std::uint64_t extra(std::uint64_t at, char kind, std::uint64_t bytes) {
    if (bytes > most_extra_bytes) {
      fail(at,
           text("a name or a pax header of ", how_many(bytes, "byte"), "; at most ", most_extra_bytes, " are read"));
    }
    auto const after = end_of(at, at + block_bytes, bytes, "");
    std::string all(bytes, '\0');
    get(at + block_bytes, all);
    if (kind == 'L') {
      long_name_ = all.substr(0, all.find('\0'));
    } else if (kind != 'K') {
      if (auto const wrong = read_records(all, kind == 'g' ? global_ : local_)) fail(at + block_bytes, *wrong);
    }
    return after;
  }

  [[noreturn]] void sparse(std::uint64_t at, std::string const& name) const {
    fail(at, text("\"", name, "\" is stored with holes (sparse); write the archive without --sparse"));
  }
  [[nodiscard]] std::uint64_t decimal(std::uint64_t at, std::string const& digits) const {
    std::uint64_t out = 0;
    for (auto const digit : digits) {
      if (digit < '0' || digit > '9' || out >> 59 != 0) fail(at, "the size in the pax header is not a number");
      out = out * 10 + static_cast<std::uint64_t>(digit - '0');
    }
    return out;
  }
  /// Where the header after some data is.
  [[nodiscard]] std::uint64_t end_of(std::uint64_t header_at, std::uint64_t data_at, std::uint64_t bytes,
                                     std::string const& name) const {
    auto const left = size_ - data_at;
    if (bytes > left || (bytes + block_bytes - 1) / block_bytes * block_bytes > left) {
      fail(header_at,
           text(name.empty() ? "a name or a pax header" : text("\"", name, "\""), " has ", how_many(bytes, "byte"),
                ", but only ", left, agreeing(static_cast<std::int64_t>(left), " follows", " follow"),
                "; the archive is truncated"));
    }
    return data_at + (bytes + block_bytes - 1) / block_bytes * block_bytes;
  }

  Read const& read_;
  std::uint64_t size_;
  std::string const& path_;
  records global_, local_;
  std::optional<std::string> long_name_;
};

}  // namespace detail

/// Calls found(member) for each file of an archive, in order. Accesses only what it reads, so that it can be fuzzed.
///
/// Errors   format_error(path, byte, reason) for an archive that is damaged, truncated or refused.
/// @param read  (std::uint64_t at, std::span<std::byte> to): fills `to` with bytes of the archive.
template <class Read, class Found>
void read_members(Read const& read, std::uint64_t size, std::string const& path, Found const& found) {
  detail::reader<Read>(read, size, path).run(found);
}

}  // namespace trireme::formats::tar
