#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include "trireme/core/dialect.hpp"

namespace trireme::formats::json::detail {

/// A string in quotes, with only the necessary escapes.
inline void print_string(std::string& out, std::string_view content) {
  out += '"';
  for (char const c : content) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += "0123456789abcdef"[c >> 4 & 15];
          out += "0123456789abcdef"[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

/// The shortest text that reads back as the same double, and not as an integer.
inline void print_double(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  char digits[32];
  std::string_view const shortest(digits,
                                  static_cast<std::size_t>(std::to_chars(digits, digits + 32, number).ptr - digits));
  out += shortest;
  if (shortest.find_first_of(".e") == std::string_view::npos) out += ".0";
}

}  // namespace trireme::formats::json::detail
