#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/formats/file.hpp"

/// Throws format_error at the first byte of a file that is not UTF-8. A last character that is cut off is let pass:
/// texts are often cut to a number of bytes.
inline void expect_utf8(std::string const& path) {
  trireme::formats::file const from(path, trireme::formats::file::access::read);
  std::vector<std::byte> part(std::size_t{1} << 20);
  auto const size = from.size();
  unsigned low = 0x80, high = 0xbf;  // what the next byte of a character may be
  int missing = 0;
  for (std::uint64_t at = 0; at < size; at += part.size()) {
    auto const bytes = std::span(part).first(static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), size - at)));
    from.read(at, bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      auto const byte = std::to_integer<unsigned>(bytes[i]);
      if (missing == 0 && byte < 0x80) continue;
      if (missing == 0 ? byte < 0xc2 || byte > 0xf4 : byte < low || byte > high) {
        throw trireme::format_error(path, at + i, "the text is not UTF-8 here; convert it, for instance with iconv");
      }
      low = missing > 0 ? 0x80 : byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
      high = missing > 0 ? 0xbf : byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
      missing = missing > 0 ? missing - 1 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    }
  }
}
