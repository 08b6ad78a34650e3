#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "trireme/core/error.hpp"

/// Checks whether a text that arrives in pieces is UTF-8. An incomplete last character is accepted: texts are often
/// truncated to a number of bytes.
class utf8_check {
 public:
  explicit utf8_check(std::string path) : path_(std::move(path)) {}

  /// Throws format_error at the first byte that is not UTF-8.
  void update(std::span<std::byte const> bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      auto const byte = std::to_integer<unsigned>(bytes[i]);
      if (missing_ == 0 && byte < 0x80) {
        for (std::uint64_t eight = 0; i + 9 <= bytes.size(); i += 8) {  // most texts are mostly ASCII
          std::memcpy(&eight, bytes.data() + i + 1, 8);
          if ((eight & 0x8080808080808080U) != 0) break;
        }
        continue;
      }
      if (missing_ == 0 ? byte < 0xc2 || byte > 0xf4 : byte < low_ || byte > high_) {
        throw trireme::format_error(path_, at_ + i, "the text is not UTF-8 here; convert it, for instance with iconv");
      }
      low_ = missing_ > 0 ? 0x80 : byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
      high_ = missing_ > 0 ? 0xbf : byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
      missing_ = missing_ > 0 ? missing_ - 1 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    }
    at_ += bytes.size();
  }

 private:
  std::string path_;
  std::uint64_t at_ = 0;
  unsigned low_ = 0x80, high_ = 0xbf;  // the range of the next byte of a character
  int missing_ = 0;
};
