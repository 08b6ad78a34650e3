#pragma once

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/core/error.hpp"
#include "trireme/formats/detail/tokenizer_characters.hpp"

// The Unicode functions of tokenizers. Categories, cases and normal forms are utf8proc's.
namespace trireme::formats::detail::unicode {

struct character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  ///< 0 at the end of a text
};

/// The character at a byte of a UTF-8 text.
[[nodiscard]] inline character character_at(std::string_view text, std::size_t at) noexcept {
  if (at >= text.size()) return {};
  auto const byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(text[at + i])}; };
  auto const low = [&](std::size_t i) { return byte(i) & 0x3f; };
  auto const first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | low(1), 2};
  if (first < 0xf0) return {(first & 0x0f) << 12 | low(1) << 6 | low(2), 3};
  return {(first & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3), 4};
}

inline void append(std::string& out, std::uint32_t code) {
  std::array<utf8proc_uint8_t, 4> bytes;
  auto const count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  out.append(bytes.begin(), bytes.begin() + count);
}

/// The first byte that is not UTF-8, or npos. A character that is cut off at the end counts as malformed.
[[nodiscard]] inline std::size_t first_malformed(std::string_view text) noexcept {
  auto const* const bytes = reinterpret_cast<utf8proc_uint8_t const*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    if (bytes[at] < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t code = 0;
    auto const length = utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    if (length < 1) return at;
    at += static_cast<std::size_t>(length);
  }
  return std::string_view::npos;
}

/// The text with malformed UTF-8 replaced by U+FFFD: one for each beginning of a character, or else for each byte.
[[nodiscard]] inline std::string repaired(std::string_view text) {
  std::string out;
  for (;;) {
    auto const bad = first_malformed(text);
    out += text.substr(0, bad);
    if (bad == std::string_view::npos) return out;
    out += "\xef\xbf\xbd";
    text.remove_prefix(bad);
    auto const byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
    auto const first = byte(0);
    auto const low = first == 0xe0 ? 0xa0U : first == 0xf0 ? 0x90U : 0x80U;
    auto const high = first == 0xed ? 0x9fU : first == 0xf4 ? 0x8fU : 0xbfU;
    auto const begun = first >= 0xc2 && first <= 0xf4 && byte(1) >= low && byte(1) <= high;
    auto const two = begun && first >= 0xf0 && (byte(2) & 0xc0) == 0x80;
    text.remove_prefix(two ? 3 : begun ? 2 : 1);
  }
}

[[nodiscard]] inline utf8proc_category_t category(std::uint32_t code) noexcept {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

/// White_Space
[[nodiscard]] constexpr bool is_space(std::uint32_t code) noexcept {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}
/// The end of the spaces that start at a byte, and the start of those that end before one.
[[nodiscard]] inline std::size_t spaces_behind(std::string_view text, std::size_t at) noexcept {
  for (auto next = character_at(text, at); next.bytes > 0 && is_space(next.code); next = character_at(text, at))
    at += next.bytes;
  return at;
}
[[nodiscard]] inline std::size_t last_character(std::string_view text) noexcept {
  auto at = text.size() - 1;
  while (at > 0 && (text[at] & 0xc0) == 0x80) --at;
  return at;
}
[[nodiscard]] inline std::size_t spaces_before(std::string_view text, std::size_t end) noexcept {
  while (end > 0) {
    auto const last = last_character(text.substr(0, end));
    if (!is_space(character_at(text, last).code)) break;
    end = last;
  }
  return end;
}
/// The characters that the normalizer Nmt replaces by spaces, and those that it removes.
[[nodiscard]] constexpr bool is_nmt_space(std::uint32_t code) noexcept {
  return code == '\t' || code == '\n' || code == '\f' || code == '\r' || code == 0x1680 ||
         (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 || code == 0x2581 || code == 0xfeff ||
         code == 0xfffd;
}
[[nodiscard]] constexpr bool is_nmt_control(std::uint32_t code) noexcept {
  return (code >= 0x01 && code <= 0x08) || code == 0x0b || (code >= 0x0e && code <= 0x1f) || code == 0x7f ||
         code == 0x8f || code == 0x9f;
}
[[nodiscard]] inline bool is_number(std::uint32_t code) noexcept {
  auto const what = category(code);
  return what >= UTF8PROC_CATEGORY_ND && what <= UTF8PROC_CATEGORY_NO;
}
[[nodiscard]] inline bool is_mark(std::uint32_t code) noexcept {
  auto const what = category(code);
  return what >= UTF8PROC_CATEGORY_MN && what <= UTF8PROC_CATEGORY_ME;
}
/// BERT's definition: all of ASCII that is neither letter, number, space nor control, and Unicode's punctuation.
[[nodiscard]] inline bool is_bert_punctuation(std::uint32_t code) noexcept {
  if (code < 0x80) {
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') || (code >= '[' && code <= '`') ||
           (code >= '{' && code <= '~');
  }
  auto const what = category(code);
  return (what >= UTF8PROC_CATEGORY_PC && what <= UTF8PROC_CATEGORY_PO) || code == 0x166d;
}
/// Mn, as it was when BERT's tokenizers were written: four characters have changed since then (U+166D above is one).
[[nodiscard]] inline bool is_nonspacing_mark(std::uint32_t code) noexcept {
  return (category(code) == UTF8PROC_CATEGORY_MN && code != 0x1885 && code != 0x1886) || code == 0x1734;
}
/// Control, format and private use, but not tabs and line ends.
[[nodiscard]] inline bool is_control(std::uint32_t code) noexcept {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  auto const what = category(code);
  return what == UTF8PROC_CATEGORY_CC || what == UTF8PROC_CATEGORY_CF || what == UTF8PROC_CATEGORY_CO;
}
[[nodiscard]] constexpr bool is_chinese(std::uint32_t code) noexcept {
  return (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) ||
         (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b73f) ||
         (code >= 0x2b740 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) ||
         (code >= 0xf900 && code <= 0xfaff) || (code >= 0x2f800 && code <= 0x2fa1f);
}

/// The kinds of characters in the expressions that split texts.
enum class kind : std::uint8_t { other, letter, number, space };

inline constexpr auto ascii_kinds = [] {
  std::array<kind, 128> out{};
  for (std::uint32_t c = 0; c < 128; ++c) {
    auto const lower = c | 0x20;
    out[c] = lower >= 'a' && lower <= 'z' ? kind::letter
             : c >= '0' && c <= '9'       ? kind::number
             : is_space(c)                ? kind::space
                                          : kind::other;
  }
  return out;
}();
[[nodiscard]] inline kind kind_of(std::uint32_t code) noexcept {
  if (code < 128) return ascii_kinds[code];
  if (is_space(code)) return kind::space;
  auto const what = category(code);
  if (what == UTF8PROC_CATEGORY_CN) {
    auto const* const newer = find_newer(code);
    if (newer != nullptr && newer->category[0] == 'L') return kind::letter;
    return newer != nullptr && newer->category[0] == 'N' ? kind::number : kind::other;
  }
  if (what >= UTF8PROC_CATEGORY_LU && what <= UTF8PROC_CATEGORY_LO) return kind::letter;
  return what >= UTF8PROC_CATEGORY_ND && what <= UTF8PROC_CATEGORY_NO ? kind::number : kind::other;
}

/// The end of the grapheme cluster (what a reader sees as one character) that begins at a byte.
[[nodiscard]] inline std::size_t cluster_end(std::string_view text, std::size_t at) noexcept {
  utf8proc_int32_t state = 0;
  auto last = character_at(text, at);
  for (at += last.bytes; at < text.size();) {
    auto const next = character_at(text, at);
    if (last.code < 0x80 && next.code < 0x80 && last.code != '\r') break;
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state))
      break;
    last = next;
    at += next.bytes;
  }
  return at;
}

enum class form { nfc, nfd, nfkc, nfkd };

/// A normal form of a UTF-8 text, by utf8proc.
[[nodiscard]] inline std::string mapped(std::string_view text, form to) {
  auto options = static_cast<int>(UTF8PROC_STABLE);
  options |= to == form::nfc || to == form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (to == form::nfkc || to == form::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  auto const length =
      utf8proc_map(reinterpret_cast<utf8proc_uint8_t const*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &made, static_cast<utf8proc_option_t>(options));
  std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> const owner(made, &std::free);
  if (length < 0) throw error(trireme::text("trireme::formats::tokenizer: utf8proc: ", utf8proc_errmsg(length)));
  return {made, made + length};
}

/// Whether NFC leaves a character unchanged unless a combining character follows, and does not combine it with the one
/// before. May return false for such a character.
[[nodiscard]] inline bool is_composed(std::uint32_t code) noexcept {
  if (code < 0x300) return true;
  if (code >= 0x10000 || (code >= 0x1100 && code < 0x1200) || is_mark(code)) return false;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->decomp_seqindex == UINT16_MAX;
}

/// A normal form of a UTF-8 text. utf8proc is slow and most texts are already composed, so for NFC it gets only the
/// characters that may change, each run of them with the character before it.
[[nodiscard]] inline std::string normalised(std::string_view text, form to) {
  if (to != form::nfc) {
    auto const is_ascii = [](char byte) { return static_cast<unsigned char>(byte) < 0x80; };
    return std::all_of(text.begin(), text.end(), is_ascii) ? std::string(text) : mapped(text, to);
  }
  std::string out;
  out.reserve(text.size());
  std::size_t copied = 0, before = 0;  // the text up to `copied` is in `out`; a character began at `before`
  for (std::size_t at = 0; at < text.size();) {
    auto next = character_at(text, at);
    if (is_composed(next.code)) {
      before = at;
      at += next.bytes;
      continue;
    }
    out += text.substr(copied, before - copied);
    for (; next.bytes > 0 && !is_composed(next.code); next = character_at(text, at)) at += next.bytes;
    out += mapped(text.substr(before, at - before), to);
    copied = before = at;
  }
  return out += text.substr(copied);
}

/// Each character in lower case, without rules that depend on its neighbours.
[[nodiscard]] inline std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    auto const [code, bytes] = character_at(text, at);
    at += bytes;
    if (code == 0x130) {
      out += "i\xcc\x87";  // the only character whose lower case has two characters
    } else {
      append(out, static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
    }
  }
  return out;
}

/// The text without the characters for which leave_out(code) is true.
template <class LeaveOut>
[[nodiscard]] std::string without(std::string_view text, LeaveOut const& leave_out) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    auto const [code, bytes] = character_at(text, at);
    if (!leave_out(code)) out += text.substr(at, bytes);
    at += bytes;
  }
  return out;
}

}  // namespace trireme::formats::detail::unicode
