#pragma once

#include <charconv>

#include "trireme/formats/json.hpp"

namespace trireme::formats::json {

namespace detail {

/// A string in quotes; only what must be escaped is.
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

/// The shortest text that reads back as the same double, and as a double.
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

class printer {
 public:
  printer(std::string& out, int indent) : out_(out), indent_(indent) {}

  void print(value const& content, std::size_t depth) {
    if (depth > limits{}.depth) throw config_error("trireme::formats::json: a value nested more than 32 deep");
    if (content.is_object()) return print_all(content.as_object(), '{', '}', depth);
    if (content.is_array()) return print_all(content.as_array(), '[', ']', depth);
    if (content.is_string()) return print_string(out_, content.as_string());
    if (content.is_null()) return out_.append("null"), void();
    if (content.is_bool()) return out_.append(content.as_bool() ? "true" : "false"), void();
    if (!content.is_integer()) return print_double(out_, content.as_double());
    out_ += content.is_negative() ? text(content.as_int64()) : text(content.as_uint64());
  }

 private:
  template <class Items>
  void print_all(Items const& items, char open, char close, std::size_t depth) {
    out_ += open;
    bool first = true;
    for (auto const& item : items) {
      if (!first) out_ += ',';
      first = false;
      line(depth + 1);
      print_item(item, depth + 1);
    }
    if (!items.empty()) line(depth);
    out_ += close;
  }
  void print_item(value const& item, std::size_t depth) { print(item, depth); }
  void print_item(member const& item, std::size_t depth) {
    print_string(out_, item.key);
    out_ += indent_ < 0 ? ":" : ": ";
    print(item.content, depth);
  }
  void line(std::size_t depth) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(depth * static_cast<std::size_t>(indent_), ' ');
  }

  std::string& out_;
  int indent_;
};

}  // namespace detail

/// The text of a value; parse() gives an equal value back.
///
/// Numerics  doubles in their shortest exact form, and with a point so that they stay doubles; a double that is not
///           finite becomes null, because JSON has no word for it.
/// Errors    throws config_error if nested more than 32 deep. Strings are written as they are and should be UTF-8.
///
/// @param indent  spaces a level, or -1 for one line without spaces.
[[nodiscard]] inline std::string to_string(value const& content, int indent = -1) {
  std::string out;
  detail::printer(out, indent).print(content, 0);
  return out;
}

}  // namespace trireme::formats::json
