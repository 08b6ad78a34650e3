#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "trireme/core/dialect.hpp"

namespace trireme {

namespace detail {

/// One argument of text(): one of a few types, so that joining is compiled once and not for every call.
class text_item {
 public:
  constexpr text_item(std::string_view part) : kind_(kind::letters), letters_(part) {}  // NOLINT
  constexpr text_item(char const* part) : text_item(std::string_view(part)) {}          // NOLINT
  text_item(std::string const& part) : text_item(std::string_view(part)) {}             // NOLINT
  constexpr text_item(char part) : kind_(kind::letter), letter_(part) {}                // NOLINT
  constexpr text_item(float part) : kind_(kind::single), single_(part) {}               // NOLINT
  constexpr text_item(double part) : kind_(kind::real), real_(part) {}                  // NOLINT
  template <std::same_as<bool> Truth>  // a plain bool parameter would accept pointers
  constexpr text_item(Truth part) : text_item(std::string_view(part ? "true" : "false")) {}  // NOLINT
  template <std::integral Number>
  requires(!std::same_as<Number, bool> && !std::same_as<Number, char>) constexpr text_item(Number part)  // NOLINT
      : kind_(std::is_signed_v<Number> ? kind::whole : kind::natural), whole_(static_cast<std::int64_t>(part)) {}

  void append_to(std::string& out) const {
    char digits[64];
    auto* const end = digits + sizeof digits;
    switch (kind_) {
      case kind::letters:
        out.append(letters_);
        return;
      case kind::letter:
        out.push_back(letter_);
        return;
      case kind::whole:
        out.append(digits, std::to_chars(digits, end, whole_).ptr);
        return;
      case kind::natural:
        out.append(digits, std::to_chars(digits, end, static_cast<std::uint64_t>(whole_)).ptr);
        return;
      case kind::single:
        out.append(digits, std::to_chars(digits, end, single_).ptr);
        return;
      case kind::real:
        out.append(digits, std::to_chars(digits, end, real_).ptr);
        return;
    }
  }

 private:
  enum class kind { letters, letter, whole, natural, single, real } kind_;
  union {
    std::string_view letters_;
    char letter_;
    std::int64_t whole_;
    float single_;
    double real_;
  };
};

[[nodiscard]] inline std::string join(std::initializer_list<text_item> parts) {
  std::string out;
  for (auto const& part : parts) part.append_to(out);
  return out;
}

/// A number with this many digits after the point ("nan" and "inf" as words). printf would depend on the program's
/// locale.
[[nodiscard]] inline std::string fixed(double value, int digits) {
  if (!(std::abs(value) < 1e15)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  char out[48];
  return {out, std::to_chars(out, out + sizeof out, value, std::chars_format::fixed, digits).ptr};
}

}  // namespace detail

/// Joins its arguments into one string: `text("rank ", 3, " is late")`.
///
/// Used for error messages, so that core needs no formatting library and a number always prints in its shortest exact
/// form, whatever the program's locale.
template <class... Parts>
[[nodiscard]] std::string text(Parts const&... parts) {
  return detail::join({detail::text_item(parts)...});
}

}  // namespace trireme
