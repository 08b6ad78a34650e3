// Trireme 0.1.0: trireme/formats/idx.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 8a1ae7c63345e0b7484c22de7881fed0ba0a971c39678b67bbf9843b37c33f95
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/idx.hpp
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

/// IDX, the file format of MNIST and similar datasets: extents, followed by an array of bytes.
namespace trireme::formats::idx {

/// An array of unsigned bytes, row-major.
struct array {
  shape extents;
  std::vector<std::uint8_t> values;
};

/// Parses the extents at the beginning of a file. Accesses only its arguments, so that it can be fuzzed.
///
/// Checks: elements are unsigned bytes; there are one to four extents, none of them 0; exactly their product of bytes
/// follows, computed without overflow.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param start  the first 4 + 4 * extents bytes of the file, or more.
[[nodiscard]] inline shape parse_header(std::span<std::byte const> start, std::uint64_t file_size,
                                        std::string const& path) {
  auto const at = [&](std::size_t i) { return std::to_integer<std::uint32_t>(start[i]); };
  if (start.size() < 4 || at(0) != 0 || at(1) != 0)
    throw format_error(path, 0, "an IDX file begins with two bytes of 0, a type and a number of extents");
  if (at(2) != 8) throw format_error(path, 2, text("elements of type ", at(2), "; only unsigned bytes (8) are read"));
  auto const rank = at(3);
  if (rank < 1 || rank > 4) throw format_error(path, 3, text(how_many(rank, "extent"), "; from 1 to 4 are read"));
  std::uint64_t const header = 4 + 4 * rank;
  if (start.size() < header) throw format_error(path, start.size(), "the file ends within its extents");
  shape extents;
  std::uint64_t bytes = 1;
  for (std::size_t i = 4; i < header; i += 4) {
    std::uint64_t const extent = (at(i) << 24) | (at(i + 1) << 16) | (at(i + 2) << 8) | at(i + 3);
    if (extent == 0) throw format_error(path, i, "an extent is 0");
    if (extent > file_size / bytes) throw format_error(path, i, "the extents make more bytes than the file has");
    bytes *= extent;
    extents.push_back(static_cast<std::int64_t>(extent));
  }
  if (bytes != file_size - header) {
    throw format_error(path, header,
                       text("the extents ", to_string(extents), " make ", how_many(bytes, "byte"), ", but ",
                            file_size - header, agreeing(file_size - header, " follows", " follow")));
  }
  return extents;
}

/// Reads a whole file.
/// Errors   io_error if it cannot be read or has more than `most` bytes, before memory is allocated; format_error as
///          parse_header().
///          parse_header().
[[nodiscard]] inline array read(std::string const& path, std::uint64_t most = most_bytes_at_once) {
  auto const bytes = read_file(path, most);
  array out{parse_header(bytes, bytes.size(), path), {}};
  auto const header = bytes.size() - static_cast<std::size_t>(out.extents.size());
  out.values.reserve(bytes.size() - header);
  for (auto const each : std::span(bytes).subspan(header)) out.values.push_back(std::to_integer<std::uint8_t>(each));
  return out;
}

/// Writes an array in the form that read() reads.
inline void write(std::string const& path, array const& from) {
  if (from.extents.rank() < 1 || from.extents.rank() > 4 ||
      from.extents.size() != static_cast<std::int64_t>(from.values.size())) {
    throw config_error(text("trireme::formats::idx: ", how_many(from.values.size(), "byte"),
                            agreeing(from.values.size(), " is", " are"), " no array of extents ",
                            to_string(from.extents), "; there are from 1 to 4 of them"));
  }
  std::vector<std::byte> bytes{std::byte{0}, std::byte{0}, std::byte{8}, static_cast<std::byte>(from.extents.rank())};
  for (auto const extent : from.extents.extents()) {
    if (extent < 1 || extent > std::numeric_limits<std::uint32_t>::max())
      throw config_error(text("trireme::formats::idx: extents ", to_string(from.extents), " do not fit 32 bits"));
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::byte>(extent >> shift));
  }
  for (auto const each : from.values) bytes.push_back(static_cast<std::byte>(each));
  atomic_write(path, bytes);
}

}  // namespace trireme::formats::idx
