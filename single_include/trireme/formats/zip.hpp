// Trireme 0.1.0: trireme/formats/zip.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: dd514914dd04f5b503d9b2ca84b12bb9d4062e6c562439abaae6f5e9cd6e3348
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/zip.hpp
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// ZIP archives, as far as numpy's .npz files need them: the list of members, where each begins, and its checksum.
///
/// Read: zip64 and data descriptors (sizes are those of the central directory at the archive's end). Refused, each by
/// one sentence: archives in several parts, bytes before the first member or after the end record, encrypted members,
/// and compression other than DEFLATE.
namespace trireme::formats::zip {

struct member {
  std::string name;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint32_t crc = 0;
  std::uint64_t stored_bytes = 0;  ///< in the archive
  std::uint64_t bytes = 0;         ///< of the content
  std::uint64_t header_at = 0;     ///< of the member's own header, in bytes from the beginning of the archive
  [[nodiscard]] bool encrypted() const noexcept { return (flags & 1) != 0; }
  [[nodiscard]] bool stored() const noexcept { return method == 0; }
  [[nodiscard]] bool deflated() const noexcept { return method == 8; }
};

struct archive {
  std::vector<member> members;
  std::uint64_t directory_at = 0;  ///< where the members end and the central directory begins
};

/// Decompresses: fills `to` with the content of what next() returns piece by piece; an empty piece is the end. Returns
/// what is wrong, or an empty text. @see formats::inflate
using decompressor =
    std::function<std::string(std::function<std::span<std::byte const>()> const& next, std::span<std::byte> to)>;

/// A longer list of members is refused.
inline constexpr std::uint64_t most_directory_bytes = 1 << 26;

namespace detail {

inline constexpr auto crc_tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    auto c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0xEDB88320U : c >> 1;
    tables[0][i] = c;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xff];
    }
  }
  return tables;
}();

/// Numbers of a record, little-endian.
class fields {
 public:
  explicit fields(std::span<std::byte const> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t at(std::size_t begin, std::size_t width) const {
    std::uint64_t out = 0;
    for (std::size_t i = width; i-- > 0;) out = out << 8 | std::to_integer<std::uint64_t>(bytes_[begin + i]);
    return out;
  }
  [[nodiscard]] std::uint16_t two(std::size_t begin) const { return static_cast<std::uint16_t>(at(begin, 2)); }
  [[nodiscard]] std::uint32_t four(std::size_t begin) const { return static_cast<std::uint32_t>(at(begin, 4)); }
  [[nodiscard]] std::uint64_t eight(std::size_t begin) const { return at(begin, 8); }

 private:
  std::span<std::byte const> bytes_;
};

inline constexpr std::uint32_t end_mark = 0x06054b50, wide_end_mark = 0x06064b50, locator_mark = 0x07064b50,
                               directory_mark = 0x02014b50, member_mark = 0x04034b50;
inline constexpr std::size_t end_bytes = 22, wide_end_bytes = 56, locator_bytes = 20, entry_bytes = 46,
                             member_bytes = 30;

struct directory_place {
  std::uint64_t at = 0, bytes = 0, entries = 0;
};

/// Replaces those of an entry's numbers that do not fit 32 bits by the 64-bit ones of its extra fields.
inline void widen(member& to, std::span<std::byte const> extra, std::string const& path, std::uint64_t at) {
  constexpr std::uint32_t full = std::numeric_limits<std::uint32_t>::max();
  bool missing = to.bytes == full || to.stored_bytes == full || to.header_at == full;
  while (extra.size() >= 4) {
    fields const field(extra);
    std::size_t const length = field.two(2);
    if (length > extra.size() - 4) break;
    if (field.two(0) == 1 && missing) {
      std::size_t next = 4;
      for (auto* const number : {&to.bytes, &to.stored_bytes, &to.header_at}) {
        if (*number != full) continue;
        if (next + 8 > 4 + length) throw format_error(path, at, "the 64-bit sizes of a member are incomplete");
        *number = field.eight(next);
        next += 8;
      }
      missing = false;
    }
    extra = extra.subspan(4 + length);
  }
  if (missing) throw format_error(path, at, "a member has 64-bit sizes, but they are missing");
}

/// Finds the central directory from the end of an archive.
template <class Read>
[[nodiscard]] directory_place find_directory(Read const& read, std::uint64_t size, std::string const& path) {
  std::vector<std::byte> tail(static_cast<std::size_t>(std::min<std::uint64_t>(size, end_bytes + 65535)));
  read(size - tail.size(), std::span(tail));
  auto const tail_at = size - tail.size();
  bool found = false;
  std::size_t begin = tail.size() < end_bytes ? 0 : tail.size() - end_bytes + 1;
  while (begin > 0 && !found) {
    --begin;
    fields const end{std::span<std::byte const>(tail).subspan(begin)};
    found = end.four(0) == end_mark && end.two(20) == tail.size() - begin - end_bytes;
  }
  if (!found) {
    throw format_error(path, size, "the end record of a ZIP archive is missing; the file is truncated, or not an .npz");
  }
  auto end_at = tail_at + begin;
  fields const end{std::span<std::byte const>(tail).subspan(begin)};
  directory_place out{end.four(16), end.four(12), end.two(10)};
  std::uint64_t disks = std::uint64_t{end.two(4)} | end.two(6);
  bool parts = end.two(8) != end.two(10);
  std::array<std::byte, locator_bytes> locator{};
  bool const room = end_at >= locator_bytes + wide_end_bytes;
  if (room) read(end_at - locator_bytes, std::span(locator));
  bool const wide = fields(locator).four(0) == locator_mark;
  // The number 65535 does not call for zip64: it may be the true number of members.
  if (!wide && (out.at == 0xffffffffU || out.bytes == 0xffffffffU)) {
    throw format_error(path, end_at, "the zip64 end record is missing");
  }
  if (wide) {
    fields const link(locator);
    auto const wide_at = link.eight(8);
    if (wide_at > end_at - locator_bytes - wide_end_bytes) {
      throw format_error(path, end_at - locator_bytes, "the zip64 end record is outside of the file");
    }
    std::array<std::byte, wide_end_bytes> bytes{};
    read(wide_at, std::span(bytes));
    fields const record(bytes);
    if (record.four(0) != wide_end_mark) throw format_error(path, wide_at, "the zip64 end record does not begin here");
    disks = std::uint64_t{record.four(16)} | record.four(20);
    parts = record.eight(24) != record.eight(32) || link.four(16) > 1;
    out = {record.eight(48), record.eight(40), record.eight(32)};
    end_at = wide_at;
  }
  if (disks != 0 || parts) throw format_error(path, end_at, "the archive has several parts; join them to one file");
  if (out.bytes > end_at || out.at != end_at - out.bytes) {
    throw format_error(path, end_at,
                       "the central directory does not end here; the file is damaged, or has bytes before the archive");
  }
  if (out.bytes > most_directory_bytes || out.entries > out.bytes / entry_bytes) {
    throw format_error(path, out.at,
                       text("a central directory of ", how_many(out.bytes, "byte"), " for ",
                            how_many(out.entries, "member"), " is not read"));
  }
  return out;
}

}  // namespace detail

/// CRC-32 of bytes, continued from that of the bytes before them (0 at the beginning).
[[nodiscard]] inline std::uint32_t crc32(std::uint32_t before, std::span<std::byte const> bytes) noexcept {
  auto const& tables = detail::crc_tables;
  auto crc = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    auto const low = detail::fields(bytes).four(0) ^ crc, high = detail::fields(bytes).four(4);
    crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
          tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^ tables[1][high >> 16 & 0xff] ^ tables[0][high >> 24];
  }
  for (auto const byte : bytes) crc = crc >> 8 ^ tables[0][(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

/// The members of an archive, from its central directory. Accesses only its arguments, so that it can be fuzzed.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param read  read(offset, bytes) fills a std::span<std::byte> with the archive's bytes from that offset on; it is
///              only called for bytes before `size`.
template <class Read>
[[nodiscard]] archive read_directory(Read const& read, std::uint64_t size, std::string const& path) {
  auto const place = detail::find_directory(read, size, path);
  archive out;
  out.directory_at = place.at;
  std::vector<std::byte> all(static_cast<std::size_t>(place.bytes));
  read(place.at, std::span(all));
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < place.entries; ++i) {
    auto const left = std::span(all).subspan(at);
    auto const where = place.at + at;
    detail::fields const entry(left);
    if (left.size() < detail::entry_bytes || entry.four(0) != detail::directory_mark) {
      throw format_error(path, where, text("entry ", i, " of the central directory does not begin here"));
    }
    std::size_t const name = entry.two(28), extra = entry.two(30), comment = entry.two(32);
    if (name + extra + comment > left.size() - detail::entry_bytes) {
      throw format_error(path, where, text("entry ", i, " does not end within the central directory"));
    }
    auto const* const letters = reinterpret_cast<char const*>(left.data()) + detail::entry_bytes;
    member next{std::string(letters, name),
                entry.two(8),
                entry.two(10),
                entry.four(16),
                entry.four(20),
                entry.four(24),
                entry.four(42)};
    detail::widen(next, left.subspan(detail::entry_bytes + name, extra), path, where);
    if (next.header_at > place.at || place.at - next.header_at < detail::member_bytes ||
        next.stored_bytes > place.at - next.header_at - detail::member_bytes) {
      throw format_error(path, where, text("member \"", next.name, "\" is not within the archive"));
    }
    out.members.push_back(std::move(next));
    at += detail::entry_bytes + name + extra + comment;
  }
  if (at != all.size()) throw format_error(path, place.at + at, "something follows the last entry of the directory");
  return out;
}

/// Where the bytes of a member begin; they are then within the archive, before its directory.
///
/// Errors   throws format_error if the member is encrypted or compressed in another way than DEFLATE, and if its own
///          header does not agree with the directory.
template <class Read>
[[nodiscard]] std::uint64_t data_at(Read const& read, archive const& in, member const& of, std::string const& path) {
  auto const fail = [&](std::string const& reason) {
    return format_error(path, of.header_at, text("member \"", of.name, "\" ", reason));
  };
  if (of.encrypted()) throw fail("is encrypted, which is not read; save it without a password");
  if (!of.stored() && !of.deflated()) {
    throw fail(text("is compressed by method ", of.method, ", which is not read; save it with numpy.savez"));
  }
  if (of.stored() && of.stored_bytes != of.bytes) throw fail("is not compressed, but has two different sizes");
  std::array<std::byte, detail::member_bytes> header{};
  read(of.header_at, std::span(header));
  detail::fields const numbers(header);
  if (numbers.four(0) != detail::member_mark) throw fail("does not begin here; the file is damaged");
  std::uint64_t const name = numbers.two(26), extra = numbers.two(28);
  auto const begin = of.header_at + detail::member_bytes + name + extra;
  if (begin > in.directory_at || of.stored_bytes > in.directory_at - begin) throw fail("is not within the archive");
  std::string letters(static_cast<std::size_t>(name), '\0');
  read(of.header_at + detail::member_bytes, std::as_writable_bytes(std::span(letters)));
  if (letters != of.name || numbers.two(8) != of.method || (numbers.two(6) & 1) != 0) {
    throw fail("has another name or method here than in the central directory");
  }
  return begin;
}

}  // namespace trireme::formats::zip
