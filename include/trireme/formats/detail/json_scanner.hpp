#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "trireme/core/error.hpp"

namespace trireme::formats::detail {

/// Reads the tokens of a JSON text one by one, without storing them, and throws format_error with the byte of the
/// error. `base` is the position of the text in its file.
class json_scanner {
 public:
  json_scanner(std::string_view text, std::string_view path, std::uint64_t base = 0)
      : text_(text), path_(path), base_(base) {}

  [[noreturn]] void fail(std::size_t at, std::string_view reason) const {
    throw format_error(std::string(path_), base_ + at, reason);
  }
  [[nodiscard]] std::size_t position() const noexcept { return at_; }
  [[nodiscard]] bool at_end() const noexcept { return at_ == text_.size(); }

  void skip_space() noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  /// The next character that is not white space, or NUL at the end; does not consume it.
  [[nodiscard]] char peek() noexcept {
    skip_space();
    return at_end() ? '\0' : text_[at_];
  }
  [[nodiscard]] bool accept(char wanted) noexcept {
    if (at_end() || peek() != wanted || at_end()) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(at_, text("expected '", wanted, "'", at_end() ? ", found the end" : ""));
  }
  void expect_end() {
    skip_space();
    if (!at_end()) fail(at_, "there are characters after the JSON text");
  }
  void literal(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail(at_, "expected a value");
    at_ += word.size();
  }

  /// Reads a string, without quotes and escapes, of at most `most` bytes.
  [[nodiscard]] std::string string(std::size_t most) {
    expect('"');
    auto const start = at_;
    std::string out;
    for (;;) {
      auto const run = at_;
      while (at_ < text_.size() && plain(text_[at_])) ++at_;
      out.append(text_, run, at_ - run);
      if (at_end()) fail(at_, "a string without a closing quote");
      auto const c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') break;
      if (c < 0x20) fail(at_, "a control character inside a string");
      c == '\\' ? escape(out) : utf8(out);
      if (out.size() > most) break;
    }
    if (out.size() > most) fail(start, text("a string of more than ", most, " bytes"));
    ++at_;
    return out;
  }

  /// Reads an integer without sign, fraction or exponent.
  [[nodiscard]] std::uint64_t unsigned_integer() {
    skip_space();
    auto const start = at_;
    auto const digits = number();
    if (digits.find_first_not_of("0123456789") != std::string_view::npos) {
      fail(start, "expected an integer without sign, fraction or exponent");
    }
    std::uint64_t out = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), out).ec != std::errc{}) {
      fail(start, "an integer that does not fit into 64 bits");
    }
    return out;
  }

  /// The characters of a number, checked against the grammar.
  [[nodiscard]] std::string_view number() {
    skip_space();
    auto const start = at_;
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    if (at_ < text_.size() && text_[at_] == '0') {
      ++at_;
      if (at_ < text_.size() && digit(text_[at_])) fail(start, "a number with a leading zero");
    } else {
      digits(start);
    }
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      digits(start);
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      digits(start);
    }
    return text_.substr(start, at_ - start);
  }

 private:
  static bool digit(char c) noexcept { return c >= '0' && c <= '9'; }
  static bool plain(char c) noexcept {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x80 && c != '"' && c != '\\';
  }
  void digits(std::size_t start) {
    auto const first = at_;
    while (at_ < text_.size() && digit(text_[at_])) ++at_;
    if (at_ == first) fail(start, "expected a value");
  }

  [[nodiscard]] std::uint32_t hexadecimal_escape(std::size_t start) {
    std::uint32_t code = 0;
    if (text_.size() - at_ < 4) fail(start, "an escape is cut short");
    auto const result = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
    if (result.ec != std::errc{} || result.ptr != text_.data() + at_ + 4) fail(start, "\\u without four digits");
    at_ += 4;
    return code;
  }
  void escape(std::string& out) {
    auto const start = at_;
    if (text_.size() - at_ < 2) fail(start, "an escape is cut short");
    char const kind = text_[at_ + 1];
    at_ += 2;
    constexpr std::string_view names = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    if (auto const known = names.find(kind); known != std::string_view::npos) {
      out += meanings[known];
      return;
    }
    if (kind != 'u') fail(start, "an unknown escape");
    auto code = hexadecimal_escape(start);
    if (code >= 0xd800 && code < 0xdc00) {
      if (text_.substr(at_, 2) != "\\u") fail(start, "half a surrogate pair");
      at_ += 2;
      auto const low = hexadecimal_escape(start);
      if (low < 0xdc00 || low > 0xdfff) fail(start, "half a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
      fail(start, "half a surrogate pair");
    }
    append_utf8(out, code);
  }
  static void append_utf8(std::string& out, std::uint32_t code) {
    auto const tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3f)); };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xc0 | code >> 6);
      tail(0);
    } else if (code < 0x10000) {
      out += static_cast<char>(0xe0 | code >> 12);
      tail(6), tail(0);
    } else {
      out += static_cast<char>(0xf0 | code >> 18);
      tail(12), tail(6), tail(0);
    }
  }
  /// One character of two to four bytes: shortest form only, no surrogates, at most U+10FFFF.
  void utf8(std::string& out) {
    auto const start = at_;
    auto const lead = static_cast<unsigned char>(text_[at_]);
    std::size_t const length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text_.size() - at_ < length) fail(start, "not UTF-8");
    for (std::size_t i = 1; i < length; ++i) {
      auto const next = static_cast<unsigned char>(text_[at_ + i]);
      auto const low = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
      auto const high = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
      if (next < low || next > high) fail(start, "not UTF-8");
    }
    out.append(text_, at_, length);
    at_ += length;
  }

  std::string_view text_;
  std::string_view path_;
  std::uint64_t base_;
  std::size_t at_ = 0;
};

}  // namespace trireme::formats::detail
