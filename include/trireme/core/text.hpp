#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace trireme {

namespace detail {

inline void append_text(std::string& out, std::string_view part) { out.append(part); }
inline void append_text(std::string& out, char part) { out.push_back(part); }
// A template, because a plain `bool` parameter would take every string literal (a pointer) first.
template <std::same_as<bool> Truth>
void append_text(std::string& out, Truth part) {
  out.append(part ? "true" : "false");
}

template <class Number>
requires((std::integral<Number> ||
          std::floating_point<Number>)&&!std::same_as<Number, bool>) void append_text(std::string& out, Number part) {
  char digits[64];
  auto const end = std::to_chars(digits, digits + sizeof digits, part).ptr;
  out.append(digits, end);
}

}  // namespace detail

/// Joins its arguments into one string: `text("rank ", 3, " is late")`.
///
/// Error messages are made with this, so that core needs no formatting library and a number always
/// prints in its shortest exact form.
template <class... Parts>
[[nodiscard]] std::string text(Parts const&... parts) {
  std::string out;
  (detail::append_text(out, parts), ...);
  return out;
}

}  // namespace trireme
