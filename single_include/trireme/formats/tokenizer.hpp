// Trireme 0.1.0: trireme/formats/tokenizer.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 449cf08600d06b76a3f1ed8f4dd07ad59423d5a46bdd01b9a463cceaa56e67c6
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/token_stream.hpp"

// ---- trireme/formats/tokenizer.hpp
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#ifndef TRIREME_FORMATS_DETAIL_TOKENIZER_MODELS_INCLUDED
#define TRIREME_FORMATS_DETAIL_TOKENIZER_MODELS_INCLUDED

// ---- trireme/formats/detail/tokenizer_models.hpp
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <unordered_map>

#ifndef TRIREME_FORMATS_DETAIL_TOKENIZER_SPLITS_INCLUDED
#define TRIREME_FORMATS_DETAIL_TOKENIZER_SPLITS_INCLUDED

// ---- trireme/formats/detail/tokenizer_splits.hpp
#ifndef TRIREME_FORMATS_DETAIL_TOKENIZER_EXPRESSION_INCLUDED
#define TRIREME_FORMATS_DETAIL_TOKENIZER_EXPRESSION_INCLUDED

// ---- trireme/formats/detail/tokenizer_expression.hpp
#ifdef TRIREME_PCRE2
#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 0  // without the macros that rename functions by their code unit width
#endif
#include <pcre2.h>
#endif

#include <memory>
#include <new>

#ifndef TRIREME_FORMATS_DETAIL_TOKENIZER_CHARACTERS_INCLUDED
#define TRIREME_FORMATS_DETAIL_TOKENIZER_CHARACTERS_INCLUDED

// ---- trireme/formats/detail/tokenizer_characters.hpp
namespace trireme::formats::detail::unicode {

/// Characters that are missing in an older Unicode version, or have other properties there.
struct newer_range {
  std::uint32_t first, last;
  std::string_view category;
  std::string_view properties{};  ///< a: Alphabetic, l: Lowercase, u: Uppercase, e: Emoji, i: Ideographic
  std::string_view script{};      ///< in lower case; only for scripts that Unicode 14 has
  std::string_view before{"Cn"};  ///< the category in Unicode 14
  std::string_view properties_before{};
};

/// The differences between Unicode 16, whose properties the package tokenizers uses, and Unicode 14, that of PCRE2
/// 10.40 to 10.42 (utf8proc 2.8 has 15): sorted. Found by comparing both for every character.
// clang-format off
inline constexpr std::array newer_ranges = std::to_array<newer_range>({
    {0x363, 0x36f, "Mn", "a", "", "Mn"}, {0x897, 0x897, "Mn", "a", "arabic"}, {0xc04, 0xc04, "Mn", "a", "", "Mn"},
    {0xcf3, 0xcf3, "Mc", "a", "kannada"}, {0xece, 0xece, "Mn", "", "lao"}, {0xf82, 0xf83, "Mn", "a", "", "Mn"},
    {0x10fc, 0x10fc, "Lm", "al", "", "Lm", "a"}, {0x1b4e, 0x1b4f, "Po", "", "balinese"},
    {0x1b7f, 0x1b7f, "Po", "", "balinese"}, {0x1c89, 0x1c89, "Lu", "au", "cyrillic"},
    {0x1c8a, 0x1c8a, "Ll", "al", "cyrillic"}, {0x1dd3, 0x1de6, "Mn", "a", "", "Mn"},
    {0x2427, 0x2429, "So", "", "common"}, {0x2ffc, 0x2fff, "So", "", "common"}, {0x31e4, 0x31e5, "So", "", "common"},
    {0x31ef, 0x31ef, "So", "", "common"}, {0xa7cb, 0xa7cc, "Lu", "au", "latin"}, {0xa7cd, 0xa7cd, "Ll", "al", "latin"},
    {0xa7da, 0xa7da, "Lu", "au", "latin"}, {0xa7db, 0xa7db, "Ll", "al", "latin"}, {0xa7dc, 0xa7dc, "Lu", "au", "latin"},
    {0xa7f2, 0xa7f4, "Lm", "al", "", "Lm", "a"}, {0xab69, 0xab69, "Lm", "al", "", "Lm", "a"},
    {0x105c0, 0x105f3, "Lo", "a"}, {0x10d40, 0x10d49, "Nd"}, {0x10d4a, 0x10d4d, "Lo", "a"},
    {0x10d4e, 0x10d4e, "Lm", "a"}, {0x10d4f, 0x10d4f, "Lo", "a"}, {0x10d50, 0x10d65, "Lu", "au"},
    {0x10d69, 0x10d69, "Mn", "a"}, {0x10d6a, 0x10d6d, "Mn"}, {0x10d6e, 0x10d6e, "Pd"}, {0x10d6f, 0x10d6f, "Lm", "a"},
    {0x10d70, 0x10d85, "Ll", "al"}, {0x10d8e, 0x10d8f, "Sm"}, {0x10ec2, 0x10ec4, "Lo", "a", "arabic"},
    {0x10efc, 0x10efc, "Mn", "a", "arabic"}, {0x10efd, 0x10eff, "Mn", "", "arabic"},
    {0x11080, 0x11081, "Mn", "a", "", "Mn"}, {0x1123f, 0x11240, "Lo", "a", "khojki"},
    {0x11241, 0x11241, "Mn", "a", "khojki"}, {0x11380, 0x11389, "Lo", "a"}, {0x1138b, 0x1138b, "Lo", "a"},
    {0x1138e, 0x1138e, "Lo", "a"}, {0x11390, 0x113b5, "Lo", "a"}, {0x113b7, 0x113b7, "Lo", "a"},
    {0x113b8, 0x113ba, "Mc", "a"}, {0x113bb, 0x113c0, "Mn", "a"}, {0x113c2, 0x113c2, "Mc", "a"},
    {0x113c5, 0x113c5, "Mc", "a"}, {0x113c7, 0x113ca, "Mc", "a"}, {0x113cc, 0x113cd, "Mc", "a"},
    {0x113ce, 0x113ce, "Mn"}, {0x113cf, 0x113cf, "Mc"}, {0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo", "a"},
    {0x113d2, 0x113d2, "Mn"}, {0x113d3, 0x113d3, "Lo", "a"}, {0x113d4, 0x113d5, "Po"}, {0x113d7, 0x113d8, "Po"},
    {0x113e1, 0x113e2, "Mn"}, {0x116d0, 0x116e3, "Nd", "", "myanmar"}, {0x1171e, 0x1171e, "Mc", "a", "", "Mn", "a"},
    {0x11b00, 0x11b09, "Po", "", "devanagari"}, {0x11bc0, 0x11be0, "Lo", "a"}, {0x11be1, 0x11be1, "Po"},
    {0x11bf0, 0x11bf9, "Nd"}, {0x11f00, 0x11f01, "Mn", "a"}, {0x11f02, 0x11f02, "Lo", "a"},
    {0x11f03, 0x11f03, "Mc", "a"}, {0x11f04, 0x11f10, "Lo", "a"}, {0x11f12, 0x11f33, "Lo", "a"},
    {0x11f34, 0x11f35, "Mc", "a"}, {0x11f36, 0x11f3a, "Mn", "a"}, {0x11f3e, 0x11f3f, "Mc", "a"},
    {0x11f40, 0x11f40, "Mn", "a"}, {0x11f41, 0x11f41, "Mc"}, {0x11f42, 0x11f42, "Mn"}, {0x11f43, 0x11f4f, "Po"},
    {0x11f50, 0x11f59, "Nd"}, {0x11f5a, 0x11f5a, "Mn"}, {0x1342f, 0x1342f, "Lo", "a", "egyptianhieroglyphs"},
    {0x13439, 0x1343f, "Cf", "", "egyptianhieroglyphs"}, {0x13440, 0x13440, "Mn", "", "egyptianhieroglyphs"},
    {0x13441, 0x13446, "Lo", "a", "egyptianhieroglyphs"}, {0x13447, 0x13455, "Mn", "", "egyptianhieroglyphs"},
    {0x13460, 0x143fa, "Lo", "a", "egyptianhieroglyphs"}, {0x16100, 0x1611d, "Lo", "a"}, {0x1611e, 0x16129, "Mn", "a"},
    {0x1612a, 0x1612c, "Mc", "a"}, {0x1612d, 0x1612e, "Mn", "a"}, {0x1612f, 0x1612f, "Mn"}, {0x16130, 0x16139, "Nd"},
    {0x16d40, 0x16d42, "Lm", "a"}, {0x16d43, 0x16d6a, "Lo", "a"}, {0x16d6b, 0x16d6c, "Lm", "a"},
    {0x16d6d, 0x16d6f, "Po"}, {0x16d70, 0x16d79, "Nd"}, {0x18cff, 0x18cff, "Lo", "ai", "khitansmallscript"},
    {0x1b132, 0x1b132, "Lo", "a", "hiragana"}, {0x1b155, 0x1b155, "Lo", "a", "katakana"},
    {0x1cc00, 0x1ccef, "So", "", "common"}, {0x1ccf0, 0x1ccf9, "Nd", "", "common"},
    {0x1cd00, 0x1ceb3, "So", "", "common"}, {0x1d2c0, 0x1d2d3, "No", "", "common"},
    {0x1df25, 0x1df2a, "Ll", "al", "latin"}, {0x1e030, 0x1e06d, "Lm", "al", "cyrillic"},
    {0x1e08f, 0x1e08f, "Mn", "a", "cyrillic"}, {0x1e4d0, 0x1e4ea, "Lo", "a"}, {0x1e4eb, 0x1e4eb, "Lm", "a"},
    {0x1e4ec, 0x1e4ef, "Mn"}, {0x1e4f0, 0x1e4f9, "Nd"}, {0x1e5d0, 0x1e5ed, "Lo", "a"}, {0x1e5ee, 0x1e5ef, "Mn"},
    {0x1e5f0, 0x1e5f0, "Lo", "a"}, {0x1e5f1, 0x1e5fa, "Nd"}, {0x1e5ff, 0x1e5ff, "Po"},
    {0x1f6dc, 0x1f6dc, "So", "e", "common"}, {0x1f774, 0x1f776, "So", "", "common"},
    {0x1f77b, 0x1f77f, "So", "", "common"}, {0x1f7d9, 0x1f7d9, "So", "", "common"},
    {0x1f8b2, 0x1f8bb, "So", "", "common"}, {0x1f8c0, 0x1f8c1, "So", "", "common"},
    {0x1fa75, 0x1fa77, "So", "e", "common"}, {0x1fa87, 0x1fa89, "So", "e", "common"},
    {0x1fa8f, 0x1fa8f, "So", "e", "common"}, {0x1faad, 0x1faaf, "So", "e", "common"},
    {0x1fabb, 0x1fabf, "So", "e", "common"}, {0x1fac6, 0x1fac6, "So", "e", "common"},
    {0x1face, 0x1facf, "So", "e", "common"}, {0x1fada, 0x1fadc, "So", "e", "common"},
    {0x1fadf, 0x1fadf, "So", "e", "common"}, {0x1fae8, 0x1fae9, "So", "e", "common"},
    {0x1faf7, 0x1faf8, "So", "e", "common"}, {0x1fbcb, 0x1fbef, "So", "", "common"},
    {0x2b739, 0x2b739, "Lo", "ai", "han"}, {0x2ebf0, 0x2ee5d, "Lo", "ai", "han"}, {0x31350, 0x323af, "Lo", "ai", "han"},
});
// clang-format on

/// The row of a character, or nullptr.
[[nodiscard]] constexpr newer_range const* find_newer(std::uint32_t code) noexcept {
  auto const* const end = newer_ranges.data() + newer_ranges.size();
  auto const* const found =
      std::partition_point(newer_ranges.data(), end, [&](newer_range const& each) { return each.last < code; });
  return found == end || found->first > code ? nullptr : found;
}

}  // namespace trireme::formats::detail::unicode

#endif  // TRIREME_FORMATS_DETAIL_TOKENIZER_CHARACTERS_INCLUDED

// ---- trireme/formats/detail/tokenizer_expression.hpp (goes on)
#ifndef TRIREME_FORMATS_DETAIL_TOKENIZER_UNICODE_INCLUDED
#define TRIREME_FORMATS_DETAIL_TOKENIZER_UNICODE_INCLUDED

// ---- trireme/formats/detail/tokenizer_unicode.hpp
#include <utf8proc.h>

#include <cstdlib>

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

#endif  // TRIREME_FORMATS_DETAIL_TOKENIZER_UNICODE_INCLUDED

// ---- trireme/formats/detail/tokenizer_expression.hpp (goes on)
// Regular expressions of tokenizers, except those that are implemented by hand. The package tokenizers uses Oniguruma
// (its Ruby syntax), this library PCRE2: syntax that differs is rewritten, and what cannot be rewritten is refused. The
// properties are those of Unicode 16; PCRE2's may be older, so newer characters are listed explicitly.
namespace trireme::formats::detail {

/// A class of characters in PCRE2's syntax.
class character_class {
 public:
  /// Adds letters, ranges of them, and escapes that mean the same in every version of Unicode.
  void add(std::string_view written) { written_ += written; }
  /// Adds \p{name} or, if negative, \P{name}.
  void add_property(std::string_view name, bool negative) {
    std::string plain;  // case, - and _ in names are ignored
    for (auto const letter : name) {
      if (letter != '_' && letter != '-' && letter != ' ')
        plain += letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + ('a' - 'A')) : letter;
    }
    bool const script = is_script(plain);
    for (std::size_t i = 0; i < rows; ++i) {
      auto const& row = unicode::newer_ranges[i];
      bool const known = row.before != "Cn";  // then its script is the same
      bool const before = has(plain, row.before, row.properties_before) || (known && script && row.script == plain);
      bool const now = has(plain, row.category, row.properties) || (script && row.script == plain);
      seen_[i] = seen_[i] || before != negative;
      meant_[i] = meant_[i] || now != negative;
    }
    written_ += text(negative ? "\\P{" : "\\p{", script ? prefix : "", name, '}');
    ++properties_;
  }
  /// @param negated  the class of all other characters.
  [[nodiscard]] std::string as_text(bool negated) const {
    auto const missing = ranges(meant_, seen_), superfluous = ranges(seen_, meant_);
    auto inside = written_;
    bool const begins = inside.starts_with("\\p{") || inside.starts_with("\\P{");
    bool const alone = properties_ == 1 && begins && inside.find('}') == inside.size() - 1;
    if (alone && !negated && missing.empty() && superfluous.empty()) return inside;
    if (inside.ends_with('-') && !inside.ends_with("\\-")) inside.insert(inside.size() - 1, 1, '\\');
    inside += missing;
    if (superfluous.empty()) return text(negated ? "[^" : "[", inside, ']');
    if (negated) return text("(?:[^", inside, "]|[", superfluous, "])");
    return text("(?:(?![", superfluous, "])[", inside, "])");
  }

 private:
  static constexpr auto rows = unicode::newer_ranges.size();
  using marks = std::array<bool, rows>;

  [[nodiscard]] static bool has(std::string_view property, std::string_view category, std::string_view properties) {
    auto const is = [&](char letter) { return properties.find(letter) != properties.npos; };
    if (property == "alphabetic" || property == "alpha") return is('a');
    if (property == "lowercase" || property == "lower") return is('l');
    if (property == "uppercase" || property == "upper") return is('u');
    if (property == "emoji" || property == "emojipresentation") return is('e');
    if (property == "ideographic") return is('i');
    if (property == "any") return true;
    if (property.empty() || property.size() > 2) return false;
    return property[0] == category[0] + ('a' - 'A') && (property.size() == 1 || property[1] == category[1]);
  }
  [[nodiscard]] static std::string ranges(marks const& of, marks const& without) {
    std::string out;
    for (std::size_t i = 0; i < rows; ++i) {
      auto const& row = unicode::newer_ranges[i];
      if (!of[i] || without[i]) continue;
      out += text("\\x{", hexadecimal(row.first), '}');
      if (row.last > row.first) out += text("-\\x{", hexadecimal(row.last), '}');
    }
    return out;
  }
  [[nodiscard]] static std::string hexadecimal(std::uint32_t code) {
    std::array<char, 8> digits{};
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), code, 16).ptr};
  }

#if defined(TRIREME_PCRE2) && (PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40)
  // Since PCRE2 10.40 the plain name of a script also matches characters that several scripts use (Script_Extensions);
  // in Oniguruma it does not.
  static constexpr std::string_view prefix = "sc:";
  [[nodiscard]] static bool is_script(std::string const& name) {
    if (name.size() <= 2 || name.find_first_of("{}:=^\\") != name.npos) return false;
    auto const asked = text("\\p{sc:", name, '}');
    int problem = 0;
    std::size_t error_offset = 0;
    auto* const made = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(asked.data()), asked.size(), PCRE2_UTF, &problem,
                                       &error_offset, nullptr);
    pcre2_code_free_8(made);
    return made != nullptr;
  }
#else
  static constexpr std::string_view prefix = "";
  [[nodiscard]] static bool is_script(std::string const&) { return false; }
#endif

  std::string written_;
  int properties_ = 0;
  marks seen_{},
      meant_{};  // of the newer characters: those that an old PCRE2 would match, and those that it should match
};

/// Translates an expression of Oniguruma to PCRE2.
class expression_translation {
 public:
  explicit expression_translation(std::string_view from) : from_(from) {}

  /// @returns the expression; empty if it cannot be translated, and reason() has the reason.
  [[nodiscard]] std::optional<std::string> operator()() {
    group(false);
    if (reason_.empty() && at_ < from_.size()) fail("a ) without its (");
    if (!reason_.empty()) return std::nullopt;
    return out_;
  }
  [[nodiscard]] std::string const& reason() const noexcept { return reason_; }

 private:
  static constexpr int most_depth = 50;
  // Unicode's White_Space, which is not PCRE2's \s (it lacks U+0085).
  static constexpr std::string_view spaces =
      R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  static constexpr std::string_view hexadecimal = "0-9a-fA-F";

  /// The characters of a word in Oniguruma. \w outside of a class also matches the superscripts and fractions of Latin
  /// 1.
  static void add_word(character_class& to, bool alone) {
    for (auto const* const property : {"Alphabetic", "M", "Nd", "Pc"}) to.add_property(property, false);
    if (alone) to.add(R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})");
  }
  [[nodiscard]] static std::string word_alone() {
    character_class out;
    add_word(out, true);
    return out.as_text(false);
  }

  void fail(std::string_view why) {
    if (reason_.empty()) reason_ = why;
  }
  [[nodiscard]] bool more() const { return reason_.empty() && at_ < from_.size(); }
  [[nodiscard]] bool is_next(std::string_view what) const { return from_.substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!is_next(what)) return false;
    at_ += what.size();
    return true;
  }

  /// Translates alternatives up to the end of a group, without consuming it.
  void group(bool any_case) {
    if (++depth_ > most_depth) return fail("groups are nested too deep");
    std::optional<std::size_t> atom;  // the position in out_ of what a quantifier repeats
    char before = '\0';               // the single letter before this one
    while (more() && from_[at_] != ')') {
      char const letter = from_[at_];
      char alone = '\0';
      if (letter == '|') {
        out_ += from_[at_++];
        atom.reset();
      } else if (letter == '(') {
        atom = out_.size();
        if (!open(any_case)) atom.reset();
      } else if (letter == '[') {
        atom = out_.size();
        bracket(any_case);
      } else if (letter == '*' || letter == '+' || letter == '?' || letter == '{') {
        quantifier(atom);
      } else if (letter == '\\') {
        atom = out_.size();
        escape(nullptr);
      } else {
        atom = letter == '^' || letter == '$' ? std::nullopt : std::optional(out_.size());
        auto const bytes = unicode::character_at(from_, at_).bytes;
        if (any_case) {
          alone = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + ('a' - 'A')) : letter;
          expect_one_to_one(bytes, before, alone);
        }
        out_ += from_.substr(at_, bytes);
        at_ += bytes;
      }
      before = alone;
    }
    --depth_;
  }
  /// In Oniguruma some pairs of letters match one letter: "ss" and U+00DF. In PCRE2 they do not.
  void expect_one_to_one(std::size_t bytes, char before, char letter) {
    auto const pair = [&](char a, std::string_view with) { return before == a && with.find(letter) != with.npos; };
    if (bytes > 1 || pair('s', "st") || pair('f', "fil"))
      fail("(?i) of letters that Unicode also writes as one, or that are not ASCII");
  }

  /// Translates a group, or options. @returns whether it can be repeated.
  bool open(bool any_case) {
    ++at_;
    bool repeats = true;
    if (take("?#")) {
      auto const end = from_.find(')', at_);
      at_ = end == from_.npos ? from_.size() : end + 1;
      return false;
    }
    if (!take("?")) {
      out_ += '(';
    } else if (take(":")) {
      out_ += "(?:";
    } else if (take(">")) {
      out_ += "(?>";
    } else if (is_next("=") || is_next("!") || is_next("<=") || is_next("<!")) {
      repeats = false;
      out_ += "(?";
      if (from_[at_] == '<') out_ += from_[at_++];
      out_ += from_[at_++];
    } else {
      return options(any_case);
    }
    group(any_case);
    close();
    return repeats;
  }
  void close() {
    if (take(")")) {
      out_ += ')';
    } else {
      fail("a ( without its )");
    }
  }
  /// Translates (?imx-imx) up to the end of the enclosing group, or (?imx-imx: ... ); with m, the dot matches a line's
  /// end.
  bool options(bool any_case) {
    std::string on, off;
    bool minus = false;
    for (; more() && from_[at_] != ':' && from_[at_] != ')'; ++at_) {
      auto const letter = from_[at_];
      if (letter == '-') {
        minus = true;
      } else if (letter == 'i' || letter == 'm') {
        (minus ? off : on) += letter == 'm' ? 's' : letter;
        if (letter == 'i') any_case = !minus;
      } else {
        fail(text("a group that begins with (?", letter));
        return false;
      }
    }
    bool const to_the_end = is_next(")");
    if (at_ < from_.size()) ++at_;
    out_ += "(?" + on + (off.empty() ? "" : "-" + off) + ":";
    group(any_case);
    if (to_the_end) {
      out_ += ')';
    } else {
      close();
    }
    return !to_the_end;
  }

  void quantifier(std::optional<std::size_t>& atom) {
    if (from_[at_] == '{') {
      auto const end = from_.find('}', at_);
      auto const count = end == from_.npos ? "" : from_.substr(at_ + 1, end - at_ - 1);
      auto const comma = count.find(',');
      bool const counts = !count.empty() && count != "," && count.find_first_not_of("0123456789,") == count.npos &&
                          (comma == count.npos || count.find(',', comma + 1) == count.npos);
      if (!counts) {  // only a literal brace
        atom = out_.size();
        out_ += "\\{";
        ++at_;
        return;
      }
      if (!atom) return fail("a quantifier of nothing");
      at_ = end + 1;
      out_ += text('{', count.starts_with(',') ? "0" : "", count, '}');
      // After a brace, + is another quantifier, and so is ? after {n}.
      if (is_next("+") || (is_next("?") && comma == count.npos)) {
        wrap(*atom);
        return;
      }
      if (take("?")) out_ += '?';
    } else {
      if (!atom) return fail("a quantifier of nothing");
      out_ += from_[at_++];
      if (is_next("?") || is_next("+")) out_ += from_[at_++];
    }
    // A further quantifier applies to all of this.
    if (more() && std::string_view("*+?{").find(from_[at_]) != std::string_view::npos) wrap(*atom);
  }
  void wrap(std::size_t atom) {
    out_.insert(atom, "(?:");
    out_ += ')';
  }

  /// Translates a class of characters.
  void bracket(bool any_case) {
    ++at_;
    character_class in;
    bool const negated = take("^");
    if (take("]")) in.add("\\]");
    for (;;) {
      if (!more()) return fail("a [ without its ]");
      auto const letter = from_[at_];
      if (letter == ']') break;
      if (is_next("[:")) {
        auto const end = from_.find(":]", at_);
        if (end == from_.npos) return fail("a [: without its :]");
        auto const name = from_.substr(at_ + 2, end - at_ - 2);
        if (name == "digit") {
          in.add_property("Nd", false);
        } else if (name == "alpha") {
          in.add_property("Alphabetic", false);
        } else if (name == "upper") {
          in.add_property("Uppercase", false);
        } else if (name == "lower") {
          in.add_property("Lowercase", false);
        } else if (name == "xdigit") {
          in.add(hexadecimal);
        } else {
          return fail(text("[:", name, ":]"));
        }
        at_ = end + 2;
      } else if (letter == '[') {
        return fail("a class within a class");
      } else if (is_next("&&")) {
        return fail("&& in a class");
      } else if (letter == '\\') {
        escape(&in);
      } else {
        auto const bytes = unicode::character_at(from_, at_).bytes;
        if (any_case && bytes > 1) return fail("(?i) of letters that are not ASCII");
        in.add(from_.substr(at_, bytes));
        at_ += bytes;
      }
    }
    ++at_;
    out_ += in.as_text(negated);
  }

  /// Writes something that means the same inside and outside of a class.
  void put(character_class* in, std::string_view written) {
    if (in == nullptr) {
      out_ += written;
    } else {
      in->add(written);
    }
  }
  void put_property(character_class* in, std::string_view name, bool negative) {
    if (in != nullptr) return in->add_property(name, negative);
    character_class alone;
    alone.add_property(name, negative);
    out_ += alone.as_text(false);
  }
  void set(std::string_view of, bool outside, character_class* in) {
    if (in == nullptr) {
      out_ += text(outside ? "[^" : "[", of, ']');
    } else if (outside) {
      fail("\\W or \\H in a class");
    } else {
      in->add(of);
    }
  }
  void escape(character_class* in) {
    if (at_ + 1 == from_.size()) return fail("a \\ at the end");
    auto const letter = from_[at_ + 1];
    at_ += 2;
    switch (letter) {
      case 's':
        return set(spaces, false, in);
      case 'S':
        if (in != nullptr) return in->add_property("White_Space", true);
        return set(spaces, true, in);
      case 'w':
      case 'W': {
        if (in != nullptr && letter == 'W') return fail("\\W or \\H in a class");
        if (in != nullptr) return add_word(*in, false);
        character_class alone;
        add_word(alone, true);
        return void(out_ += alone.as_text(letter == 'W'));
      }
      case 'h':
      case 'H':
        return set(hexadecimal, letter == 'H', in);
      case 'd':
        return put_property(in, "Nd", false);
      case 'D':
        return put_property(in, "Nd", true);
      case 'v':
        return put(in, R"(\x{b})");
      case 'p':
      case 'P':
        return property(letter, in);
      case 'u':
      case 'x':
        return code(letter, in);
      case 'b':
        if (in != nullptr) return in->add(R"(\x{8})");
        return void(out_ += text("(?:(?<=", word_alone(), ")(?!", word_alone(), ")|(?<!", word_alone(),
                                 ")(?=", word_alone(), "))"));
      case 'B':
        if (in != nullptr) break;
        return void(out_ += text("(?:(?<=", word_alone(), ")(?=", word_alone(), ")|(?<!", word_alone(), ")(?!",
                                 word_alone(), "))"));
      case 'n':
      case 't':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        return put(in, text('\\', letter));
      case 'A':
      case 'z':
      case 'Z':
        if (in != nullptr) break;
        return void(out_.append(1, '\\').append(1, letter));
      default:
        break;
    }
    bool const is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (is_letter || (letter >= '0' && letter <= '9')) return fail(text('\\', letter));
    at_ -= 1;
    auto const bytes = unicode::character_at(from_, at_).bytes;
    put(in, text(bytes == 1 ? "\\" : "", from_.substr(at_, bytes)));
    at_ += bytes;
  }
  void property(char letter, character_class* in) {
    auto const end = from_.find('}', at_);
    if (!take("{") || end == from_.npos) return fail(text('\\', letter, " without a name in braces"));
    auto name = from_.substr(at_, end - at_);
    at_ = end + 1;
    bool negative = letter == 'P';
    if (name.starts_with('^')) {
      negative = !negative;
      name.remove_prefix(1);
    }
    put_property(in, name, negative);
  }
  /// Reads \uHHHH, \xHH or \x{H...}
  void code(char letter, character_class* in) {
    auto digits = std::string_view();
    if (letter == 'x' && is_next("{")) {
      auto const end = from_.find('}', at_);
      if (end == from_.npos) return fail("\\x{ without its }");
      digits = from_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
    } else {
      std::size_t count = 0;
      auto const is_digit = [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      };
      while (count < (letter == 'u' ? 4U : 2U) && at_ + count < from_.size() && is_digit(from_[at_ + count])) ++count;
      digits = from_.substr(at_, count);
      at_ += count;
      if (letter == 'u' && count < 4) return fail("\\u without four digits");
      if (letter == 'x' && digits.size() == 2 && digits[0] >= '8') return fail("a byte that is not a character");
    }
    if (digits.empty() || digits.size() > 6) return fail(text('\\', letter, " without a number"));
    put(in, text("\\x{", digits, '}'));
  }

  std::string_view from_;
  std::size_t at_ = 0;
  std::string out_, reason_;
  int depth_ = 0;
};

/// What a Split searches for: a string, or an expression.
///
/// Threads  const; any number of callers.
class split_pattern {
 public:
  [[nodiscard]] static split_pattern of_string(std::string string) {
    split_pattern out;
    out.string_ = std::move(string);
    return out;
  }
  /// Calls fail(sentence), which throws, if the pattern is not supported.
  template <class Fail>
  [[nodiscard]] static split_pattern of_expression(std::string const& expression, Fail const& fail) {
    split_pattern out;
    out.string_ = expression;
    auto const shown = expression.size() > 200 ? expression.substr(0, 200) + "..." : expression;
#ifdef TRIREME_PCRE2
    expression_translation translation(expression);
    auto const translated = translation();
    if (!translated) {
      fail(text("the regular expression ", shown, " is not supported, because of ", translation.reason()));
    } else {
      out.compile(*translated, [&](std::string const& why) {
        fail(text("the regular expression ", shown, " does not compile: ", why));
      });
    }
#else
    fail(text("the regular expression ", shown,
              " is not one of GPT-2's, Llama 3's and Qwen 2's, and other expressions need PCRE2, "
              "without which this program was built; "
              "install libpcre2-dev and build again (CMake: trireme::utf8proc then uses it)"));
#endif
    return out;
  }

  /// Calls each(begin, end, whether it is a match) for all parts of a text, in order: matches, and the text between
  /// them.
  template <class Each>
  void for_each_part(std::string_view in, Each const& each) const {
    std::size_t done = 0, from = 0;
    std::optional<std::size_t> last_end;
    while (from <= in.size()) {
      auto const found = find(in, from);
      if (!found) break;
      auto const [begin, end] = *found;
      if (begin == end && last_end == end) {  // an empty match at the end of the one before it
        if (from == in.size()) break;
        from += unicode::character_at(in, from).bytes;
        continue;
      }
      if (done != begin) each(done, begin, false);
      each(begin, end, true);
      from = done = end;
      last_end = end;
    }
    if (done != in.size()) each(done, in.size(), false);
  }

 private:
  using range = std::pair<std::size_t, std::size_t>;

  [[nodiscard]] std::optional<range> find(std::string_view in, std::size_t from) const {
#ifdef TRIREME_PCRE2
    if (code_) return match(in, from);
#endif
    auto const at = in.find(string_, from);
    if (at == std::string_view::npos) return std::nullopt;
    return range{at, at + string_.size()};
  }

#ifdef TRIREME_PCRE2
  static constexpr std::uint32_t most_steps = 10'000'000;     // of one match; the same limit as Oniguruma's
  static constexpr std::uint32_t most_memory = 256U * 1024U;  // KiB

  template <class Fail>
  void compile(std::string const& expression, Fail const& fail) {
    int problem = 0;
    std::size_t error_offset = 0;
    std::unique_ptr<pcre2_compile_context_8, decltype(&pcre2_compile_context_free_8)> const how(
        pcre2_compile_context_create_8(nullptr), pcre2_compile_context_free_8);
    pcre2_set_newline_8(how.get(), PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit_8(how.get(), 100);
    // ^ and $ match at line boundaries, as in Ruby.
    constexpr std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE;
    auto* const made = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(expression.data()), expression.size(), options,
                                       &problem, &error_offset, how.get());
    if (made == nullptr) {
      std::array<PCRE2_UCHAR8, 256> said{};
      pcre2_get_error_message_8(problem, said.data(), said.size());
      return fail(reinterpret_cast<char const*>(said.data()));
    }
    code_ = std::shared_ptr<pcre2_code_8 const>(
        made, [](pcre2_code_8 const* it) { pcre2_code_free_8(const_cast<pcre2_code_8*>(it)); });
    pcre2_jit_compile_8(made, PCRE2_JIT_COMPLETE);  // if the library supports it; otherwise it interprets
  }

  /// The memory that a caller needs besides the expression.
  struct workspace {
    pcre2_match_context_8* limits = pcre2_match_context_create_8(nullptr);
    pcre2_jit_stack_8* stack = pcre2_jit_stack_create_8(32768, std::size_t{64} << 20, nullptr);
    pcre2_match_data_8* found = pcre2_match_data_create_8(1, nullptr);
    workspace() {
      if (limits == nullptr || found == nullptr) throw std::bad_alloc();
      pcre2_set_match_limit_8(limits, most_steps);
      pcre2_set_heap_limit_8(limits, most_memory);
      if (stack != nullptr) pcre2_jit_stack_assign_8(limits, nullptr, stack);
    }
    workspace(workspace const&) = delete;
    workspace& operator=(workspace const&) = delete;
    ~workspace() {
      pcre2_match_data_free_8(found);
      pcre2_jit_stack_free_8(stack);
      pcre2_match_context_free_8(limits);
    }
  };

  [[nodiscard]] std::optional<range> match(std::string_view in, std::size_t from) const {
    thread_local workspace own;
    auto const result = pcre2_match_8(code_.get(), reinterpret_cast<PCRE2_SPTR8>(in.data()), in.size(), from,
                                      PCRE2_NO_UTF_CHECK, own.found, own.limits);
    if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (result < 0) {
      throw config_error(text("trireme::formats::tokenizer: the regular expression ", string_.substr(0, 200),
                              " takes too many steps (over ", most_steps, ") or too much memory on a text of ",
                              how_many(in.size(), "byte"), ", from byte ", from,
                              "; it backtracks too often: encode shorter texts, or use another tokenizer"));
    }
    auto const* const offsets = pcre2_get_ovector_pointer_8(own.found);
    return range{offsets[0], std::max(offsets[0], offsets[1])};
  }

  std::shared_ptr<pcre2_code_8 const> code_;
#endif
  std::string string_;
};

/// Which parts of a text become words, and which are merged.
enum class split_behaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Calls take(begin, end) for the words into which a Split divides a text.
template <class Take>
void split_by(split_pattern const& pattern, split_behaviour how, bool inverted, std::string_view in, Take const& take) {
  struct part {
    std::size_t begin, end;
    bool is_match;
  };
  std::vector<part> parts;
  pattern.for_each_part(in, [&](std::size_t begin, std::size_t end, bool is_match) {
    parts.push_back({begin, end, is_match != inverted});
  });
  std::vector<part> out;
  bool before = false;
  auto const one = [&](part const& next, bool joins) {
    if (joins && !out.empty()) {
      out.back() = {std::min(out.back().begin, next.begin), std::max(out.back().end, next.end), false};
    } else {
      out.push_back(next);
    }
    before = next.is_match;
  };
  switch (how) {
    case split_behaviour::removed:
      for (auto const& each : parts) {
        if (!each.is_match) out.push_back(each);
      }
      break;
    case split_behaviour::isolated:
      out = std::move(parts);
      break;
    case split_behaviour::contiguous:
      for (auto const& each : parts) one(each, each.is_match == before);
      break;
    case split_behaviour::merged_with_previous:
      for (auto const& each : parts) one(each, each.is_match && !before);
      break;
    case split_behaviour::merged_with_next:
      for (auto each = parts.rbegin(); each != parts.rend(); ++each) one(*each, each->is_match && !before);
      std::reverse(out.begin(), out.end());
      break;
  }
  for (auto const& each : out) {
    if (each.begin < each.end) take(each.begin, each.end);
  }
}

}  // namespace trireme::formats::detail

#endif  // TRIREME_FORMATS_DETAIL_TOKENIZER_EXPRESSION_INCLUDED

// ---- trireme/formats/detail/tokenizer_splits.hpp (goes on)
// How texts are split into words before the model. The regular expressions of known tokenizers are implemented by hand:
// each function returns the end of the match that begins at a byte. (They use lookahead, \s+(?!\S), and Unicode's
// categories.)
namespace trireme::formats::detail {

/// A character and its properties.
struct seen {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
  unicode::kind what = unicode::kind::other;
  [[nodiscard]] bool is(unicode::kind wanted) const noexcept { return bytes > 0 && what == wanted; }
};
[[nodiscard]] inline seen look(std::string_view text, std::size_t at) noexcept {
  auto const [code, bytes] = unicode::character_at(text, at);
  return {code, bytes, unicode::kind_of(code)};
}

/// The end of a run of characters of one kind, of at most `most`.
[[nodiscard]] inline std::size_t run_end(std::string_view text, std::size_t at, unicode::kind what,
                                         std::size_t most = std::string_view::npos) noexcept {
  for (std::size_t count = 0; count < most; ++count) {
    auto const next = look(text, at);
    if (!next.is(what)) break;
    at += next.bytes;
  }
  return at;
}

/// 's|'t|'re|'ve|'m|'ll|'d, or 0 if there is no match.
[[nodiscard]] inline std::size_t contraction_end(std::string_view text, std::size_t at, bool any_case) noexcept {
  if (text[at] != '\'') return 0;
  auto const letter = [&](std::size_t i) -> char {
    auto const c = at + i < text.size() ? text[at + i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  auto const one = letter(1), two = letter(2);
  if (one == 's' || one == 't' || one == 'm' || one == 'd') return at + 2;
  if ((one == 'r' && two == 'e') || (one == 'v' && two == 'e') || (one == 'l' && two == 'l')) return at + 3;
  // U+017F, the long s, is s in another case.
  return any_case && text.substr(at + 1).starts_with("\xc5\xbf") ? at + 3 : 0;
}

/// \s+(?!\S)|\s+, at a space.
[[nodiscard]] inline std::size_t spaces_end(std::string_view text, std::size_t at) noexcept {
  auto last = at, end = at;
  for (auto next = look(text, at); next.is(unicode::kind::space); next = look(text, end)) {
    last = end;
    end += next.bytes;
  }
  return end == text.size() || last == at ? end : last;
}

/// GPT-2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
[[nodiscard]] inline std::size_t gpt2_word_end(std::string_view text, std::size_t at) noexcept {
  using unicode::kind;
  if (auto const end = contraction_end(text, at, false)) return end;
  auto const first = look(text, at);
  if (first.what != kind::space) return run_end(text, at + first.bytes, first.what);
  if (first.code == ' ') {
    auto const next = look(text, at + 1);
    if (next.bytes > 0 && next.what != kind::space) return run_end(text, at + 1 + next.bytes, next.what);
  }
  return spaces_end(text, at);
}

/// Llama 3 (three digits) and Qwen 2 (one): (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
///  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
[[nodiscard]] inline std::size_t llama3_word_end(std::string_view text, std::size_t at, std::size_t digits) noexcept {
  using unicode::kind;
  if (auto const end = contraction_end(text, at, true)) return end;
  auto const first = look(text, at);
  if (first.what == kind::letter) return run_end(text, at + first.bytes, kind::letter);
  if (first.what == kind::number) return run_end(text, at, kind::number, digits);
  auto const next = look(text, at + first.bytes);
  if (first.code != '\r' && first.code != '\n' && next.is(kind::letter))
    return run_end(text, at + first.bytes + next.bytes, kind::letter);
  if (first.what == kind::other || (first.code == ' ' && next.is(kind::other))) {
    auto end = run_end(text, at + first.bytes, kind::other);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
    return end;
  }
  auto const spaces = text.substr(at, run_end(text, at, kind::space) - at);
  auto const line_end = spaces.find_last_of("\r\n");
  return line_end == std::string_view::npos ? spaces_end(text, at) : at + line_end + 1;
}

/// A file may define many replacements of letters by longer strings, so the size of a text must be limited.
inline void expect_encodable(std::size_t bytes) {
  if (bytes > std::size_t{1} << 32)
    throw config_error("trireme::formats::tokenizer: replacing makes more than 4 GiB of the text; encode it in parts");
}

/// The text with each `from` replaced by `to`.
[[nodiscard]] inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (;;) {
    auto const found = from.empty() ? std::string_view::npos : text.find(from);
    out += text.substr(0, found);
    if (found == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(found + from.size());
    expect_encodable(out.size());
  }
}

/// One step of splitting a text into words.
struct split_step {
  enum class rule { whole, gpt2, llama3, qwen2, each_digit, digits, bert, spaces, pattern, marks, before_marks };
  enum class put { never, at_start, always };
  rule how = rule::whole;
  bool space_first = false;                     ///< insert a space before a piece that does not begin with one
  std::string mark{};                           ///< for marks: the replacement of spaces
  bool cut_before = false, cut_behind = false;  ///< where words end at a mark
  put mark_first = put::never;                  ///< for marks: insert one before a piece that does not begin with one
  split_pattern what{};                         ///< for pattern
  split_behaviour behaviour = split_behaviour::isolated;
  bool inverted = false;
};

/// Calls take(word) with the words of a piece, in order; a word is valid during the call.
/// @param at_start  whether the piece is at the beginning of the text.
template <class Take>
void split(std::span<split_step const> steps, std::string_view piece, bool at_start, Take const& take) {
  using rule = split_step::rule;
  if (piece.empty()) return;
  if (steps.empty()) return take(piece);
  auto const& step = steps.front();
  auto const later = steps.subspan(1);
  std::string changed;
  if (step.space_first && piece.front() != ' ') piece = changed.append(" ").append(piece);
  auto const pass_on = [&](std::size_t begin, std::size_t end) {
    split(later, piece.substr(begin, end - begin), at_start && begin == 0, take);
  };
  auto const each = [&](auto const& word_end) {
    for (std::size_t at = 0; at < piece.size();) {
      auto const end = word_end(at);
      pass_on(at, end);
      at = end;
    }
  };
  // Characters that are removed separate words, characters that are isolated are words of their own.
  auto const between = [&](auto const& left_out, auto const& alone) {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < piece.size();) {
      auto const [code, bytes] = unicode::character_at(piece, at);
      auto const out = left_out(code), one = !out && alone(code);
      if (out || one) {
        pass_on(begin, at);
        if (one) pass_on(at, at + bytes);
        begin = at + bytes;
      }
      at += bytes;
    }
    pass_on(begin, piece.size());
  };
  auto const by_marks = [&] {
    each([&](std::size_t at) {
      auto const marked = piece.substr(at).starts_with(step.mark);
      if (marked && step.cut_behind) return at + step.mark.size();
      auto const found = piece.find(step.mark, marked ? at + step.mark.size() : at);
      if (found == std::string_view::npos || !(step.cut_before || step.cut_behind)) return piece.size();
      return step.cut_before ? found : found + step.mark.size();
    });
  };
  switch (step.how) {
    case rule::whole:
      return pass_on(0, piece.size());
    case rule::gpt2:
      return each([&](std::size_t at) { return gpt2_word_end(piece, at); });
    case rule::llama3:
      return each([&](std::size_t at) { return llama3_word_end(piece, at, 3); });
    case rule::qwen2:
      return each([&](std::size_t at) { return llama3_word_end(piece, at, 1); });
    case rule::each_digit:
    case rule::digits:
      return each([&](std::size_t at) {
        auto const first = unicode::character_at(piece, at);
        auto const number = unicode::is_number(first.code);
        auto end = at + first.bytes;
        if (number && step.how == rule::each_digit) return end;
        for (auto next = unicode::character_at(piece, end); next.bytes > 0 && unicode::is_number(next.code) == number;
             next = unicode::character_at(piece, end)) {
          end += next.bytes;
        }
        return end;
      });
    case rule::bert:
      return between(unicode::is_space, unicode::is_bert_punctuation);
    case rule::spaces:
      return between(unicode::is_space, [](std::uint32_t) { return false; });
    case rule::pattern:
      return split_by(step.what, step.behaviour, step.inverted, piece, pass_on);
    case rule::marks: {
      auto const first =
          step.mark_first == split_step::put::always || (step.mark_first == split_step::put::at_start && at_start);
      changed = replaced(piece, " ", step.mark);
      if (first && !changed.starts_with(step.mark)) changed.insert(0, step.mark);
      piece = changed;
      return by_marks();
    }
    // The first of several consecutive marks begins a word.
    case rule::before_marks:
      return each([&](std::size_t at) {
        auto const letter = std::min(piece.find_first_not_of(step.mark, at), piece.size());
        return std::min(piece.find(step.mark, letter), piece.size());
      });
  }
}

/// The characters in which byte-level vocabularies are written: a printable one for each byte.
inline constexpr auto byte_characters = [] {
  std::array<std::uint16_t, 256> out{};
  std::uint16_t next = 256;
  for (std::uint16_t byte = 0; byte < 256; ++byte) {
    auto const prints = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    out[byte] = prints ? byte : next++;
  }
  return out;
}();

/// Appends the bytes of a token of such a vocabulary; false if it contains another character.
[[nodiscard]] inline bool append_bytes(std::string& out, std::string_view token) {
  static constexpr auto bytes = [] {
    std::array<std::int16_t, 324> table{};
    for (auto& each : table) each = -1;
    for (std::int16_t byte = 0; byte < 256; ++byte) table[byte_characters[static_cast<std::size_t>(byte)]] = byte;
    return table;
  }();
  auto const before = out.size();
  for (std::size_t at = 0; at < token.size();) {
    auto const [code, length] = unicode::character_at(token, at);
    if (code >= bytes.size() || bytes[code] < 0) {
      out.resize(before);
      return false;
    }
    out += static_cast<char>(bytes[code]);
    at += length;
  }
  return true;
}

}  // namespace trireme::formats::detail

#endif  // TRIREME_FORMATS_DETAIL_TOKENIZER_SPLITS_INCLUDED

// ---- trireme/formats/detail/tokenizer_models.hpp (goes on)
// The models that turn a word into tokens.
namespace trireme::formats::detail {

using token_id = std::int32_t;
inline constexpr token_id no_token = -1;

/// Tokens and their ids.
class vocabulary {
 public:
  /// Returns false if the token or the id is already in use.
  bool add(std::string token, token_id id) {
    if (id_of(token) != no_token || tokens_.contains(id)) return false;
    longest_ = std::max(longest_, token.size());
    end_ = std::max(end_, id + 1);
    tokens_.emplace(id, token);
    ids_.emplace(std::move(token), id);
    return true;
  }
  [[nodiscard]] token_id id_of(std::string_view token) const {
    auto const found = ids_.find(token);
    return found == ids_.end() ? no_token : found->second;
  }
  [[nodiscard]] std::string const* token_of(token_id id) const {
    auto const found = tokens_.find(id);
    return found == tokens_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::size_t longest() const noexcept { return longest_; }  ///< bytes
  [[nodiscard]] token_id end() const noexcept { return end_; }             ///< one more than the largest id

 private:
  struct hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, token_id, hash, std::equal_to<>> ids_;
  std::unordered_map<token_id, std::string> tokens_;
  std::size_t longest_ = 0;
  token_id end_ = 0;
};

/// A set of strings as a trie of their bytes, to find those that start at a position of a text.
class byte_tree {
 public:
  static constexpr token_id none = no_token;

  /// If a string is added twice, the last value is used; an empty string is never found.
  void add(std::string_view word, token_id value) {
    if (word.empty()) return;
    std::uint32_t node = 0;
    for (auto const letter : word) {
      auto const byte = static_cast<unsigned char>(letter);
      auto const after = child(node, byte);
      if (after != 0) {
        node = after;
        continue;
      }
      auto const made = static_cast<std::uint32_t>(values_.size());
      values_.push_back(none);
      if (node == 0) {
        first_[byte] = made;
      } else {
        if (2 * ++held_ > slots_.size()) grow();
        slots_[index_of(key_of(node, byte))] = {key_of(node, byte), made};
      }
      node = made;
    }
    values_[node] = value;
  }

  /// Calls take(value, end) for each string that starts at a byte of a text, shortest first.
  template <class Take>
  void each_at(std::string_view text, std::size_t at, Take const& take) const {
    std::uint32_t node = 0;
    while (at < text.size()) {
      node = child(node, static_cast<unsigned char>(text[at++]));
      if (node == 0) return;
      if (values_[node] != none) take(values_[node], at);
    }
  }
  /// The value of this string, or none.
  [[nodiscard]] token_id find(std::string_view word) const {
    std::uint32_t node = 0;
    for (auto const letter : word) {
      node = child(node, static_cast<unsigned char>(letter));
      if (node == 0) return none;
    }
    return values_[node];
  }

 private:
  struct slot {
    std::uint64_t key = 0;
    std::uint32_t child = 0;  // 0: the slot is free
  };
  static std::uint64_t key_of(std::uint32_t node, unsigned char byte) noexcept {
    return std::uint64_t{node} << 8 | byte;
  }
  [[nodiscard]] std::uint32_t child(std::uint32_t node, unsigned char byte) const noexcept {
    return node == 0 ? first_[byte] : slots_[index_of(key_of(node, byte))].child;
  }
  [[nodiscard]] std::size_t index_of(std::uint64_t key) const noexcept {
    auto const mask = slots_.size() - 1;
    std::size_t index = mix(key) & mask;
    while (slots_[index].child != 0 && slots_[index].key != key) index = (index + 1) & mask;
    return index;
  }
  void grow() {
    auto const old = std::exchange(slots_, std::vector<slot>(slots_.size() * 2));
    for (auto const& each : old) {
      if (each.child != 0) slots_[index_of(each.key)] = each;
    }
  }

  std::vector<token_id> values_{none};  // of each node; 0 is the root
  std::array<std::uint32_t, 256> first_{};
  std::vector<slot> slots_ = std::vector<slot>(16);  // (node, byte) -> node
  std::size_t held_ = 0;
};

/// The merges of pairs of neighbouring tokens, with their ranks. Open addressing, because encoding spends most of its
/// time here.
class merge_table {
 public:
  struct merge {
    std::uint32_t rank = 0;
    token_id made = no_token;
  };

  /// @param most  number of merges that will be added.
  explicit merge_table(std::size_t most = 0) : slots_(std::bit_ceil(most * 2 + 2)) {}

  /// If a pair is added twice, the last merge is used.
  void add(token_id left, token_id right, merge what) {
    auto& slot = slots_[index_of(key_of(left, right))];
    slot = {key_of(left, right), what};
  }
  [[nodiscard]] merge find(token_id left, token_id right) const noexcept {
    return slots_[index_of(key_of(left, right))].what;
  }

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  struct slot_type {
    std::uint64_t key = empty;
    merge what;
  };
  static std::uint64_t key_of(token_id left, token_id right) noexcept {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t index_of(std::uint64_t key) const noexcept {
    auto const mask = slots_.size() - 1;
    std::size_t index = mix(key) & mask;
    while (slots_[index].key != empty && slots_[index].key != key) index = (index + 1) & mask;
    return index;
  }
  std::vector<slot_type> slots_;
};

/// The name of a token for a single byte: <0x41>.
[[nodiscard]] inline std::string byte_name(unsigned char byte) {
  static constexpr std::string_view digits = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
}

/// Byte pair encoding: of all neighbours that can be merged, the pair with the lowest rank is merged, leftmost first,
/// until none is left.
///
/// Method   [Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016]; a heap of
///          candidates over a linked list, O(n log n) for a word of n characters.
class byte_pairs {
 public:
  bool byte_level = false;  ///< words are bytes, each written as one of byte_characters
  bool byte_fallback = false;
  bool fuse_unknown = false;
  bool whole_words_first = false;  ///< ignore_merges
  token_id unknown = no_token;
  merge_table merges;

  /// Looks up the tokens of single bytes; call it when the vocabulary is complete.
  void prepare(vocabulary const& tokens) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::string name;
      unicode::append(name, byte_characters[byte]);
      of_byte_[byte] = tokens.id_of(name);
      fallback_[byte] = tokens.id_of(byte_name(static_cast<unsigned char>(byte)));
    }
  }

  /// Working memory for a word; reused for the next one.
  struct workspace {
    struct symbol {
      token_id id;
      std::uint32_t before, after;
      bool gone;
    };
    struct candidate {
      std::uint32_t rank, at;
      token_id made;
    };
    std::vector<symbol> symbols;
    std::vector<candidate> heap;
    std::string written;
  };

  /// Appends the tokens of a word.
  void encode(std::string_view word, vocabulary const& tokens, workspace& in, std::vector<token_id>& out) const {
    if (whole_words_first) {
      in.written.clear();
      for (auto const byte : word) unicode::append(in.written, byte_characters[static_cast<unsigned char>(byte)]);
      if (auto const id = tokens.id_of(byte_level ? std::string_view(in.written) : word); id != no_token)
        return out.push_back(id);
    }
    spell(word, tokens, in);
    merge_all(in);
    for (auto const& each : in.symbols) {
      if (!each.gone) out.push_back(each.id);
    }
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  /// Splits the word into characters.
  void spell(std::string_view word, vocabulary const& tokens, workspace& in) const {
    in.symbols.clear();
    auto const add = [&](token_id id) {
      auto const at = static_cast<std::uint32_t>(in.symbols.size());
      in.symbols.push_back({id, at == 0 ? none : at - 1, at + 1, false});
    };
    bool pending = false;  // an unknown character, with which the next one may be merged
    for (std::size_t at = 0; at < word.size();) {
      auto const bytes = byte_level ? 1 : unicode::character_at(word, at).bytes;
      auto const character = word.substr(at, bytes);
      at += bytes;
      auto const id = byte_level ? of_byte_[static_cast<unsigned char>(character[0])] : tokens.id_of(character);
      if (id != no_token) {
        if (std::exchange(pending, false)) add(unknown);
        add(id);
      } else if (byte_fallback && std::all_of(character.begin(), character.end(), [&](char byte) {
                   return fallback_[static_cast<unsigned char>(byte)] != no_token;
                 })) {
        for (auto const byte : character) add(fallback_[static_cast<unsigned char>(byte)]);
      } else if (unknown != no_token) {
        if (pending && !fuse_unknown) add(unknown);
        pending = true;
      }
    }
    if (pending) add(unknown);
    if (!in.symbols.empty()) in.symbols.back().after = none;
  }

  void merge_all(workspace& in) const {
    auto& symbols = in.symbols;
    auto& heap = in.heap;
    auto const later = [](auto const& a, auto const& b) { return std::pair(a.rank, a.at) > std::pair(b.rank, b.at); };
    auto const offer = [&](std::uint32_t at) {
      auto const after = symbols[at].after;
      if (after == none) return false;
      auto const found = merges.find(symbols[at].id, symbols[after].id);
      if (found.made == no_token) return false;
      heap.push_back({found.rank, at, found.made});
      return true;
    };
    heap.clear();
    for (std::uint32_t at = 0; at < symbols.size(); ++at) offer(at);
    std::make_heap(heap.begin(), heap.end(), later);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), later);
      auto const best = heap.back();
      heap.pop_back();
      auto& left = symbols[best.at];
      if (left.gone || left.after == none) continue;
      auto& right = symbols[left.after];
      if (merges.find(left.id, right.id).made != best.made) continue;  // one of the two has been merged otherwise
      left.id = best.made;
      left.after = right.after;
      right.gone = true;
      if (left.after != none) symbols[left.after].before = best.at;
      if (left.before != none && offer(left.before)) std::push_heap(heap.begin(), heap.end(), later);
      if (offer(best.at)) std::push_heap(heap.begin(), heap.end(), later);
    }
  }

  std::array<token_id, 256> of_byte_{};
  std::array<token_id, 256> fallback_{};
};

/// Takes the longest token that a word begins with, then the longest that continues it; a word that cannot be divided
/// so is unknown as a whole.
///
/// Method   [Wu et al., "Google's Neural Machine Translation System", 2016], as BERT uses it.
class word_pieces {
 public:
  token_id unknown = no_token;
  std::string continuing = "##";
  std::size_t most_characters = 100;

  struct workspace {
    std::string candidate;
  };

  void encode(std::string_view word, vocabulary const& tokens, workspace& in, std::vector<token_id>& out) const {
    auto const characters = std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xc0) != 0x80; });
    if (static_cast<std::size_t>(characters) > most_characters) return out.push_back(unknown);
    auto const before = out.size();
    for (std::size_t start = 0; start < word.size();) {
      auto end = std::min(word.size(), start + tokens.longest());
      auto id = no_token;
      for (; end > start; --end) {
        if (end < word.size() && (word[end] & 0xc0) == 0x80) continue;  // in the middle of a character
        in.candidate.assign(start > 0 ? std::string_view(continuing) : std::string_view());
        id = tokens.id_of(in.candidate.append(word.substr(start, end - start)));
        if (id != no_token) break;
      }
      if (id == no_token) {
        out.resize(before);
        return out.push_back(unknown);
      }
      out.push_back(id);
      start = end;
    }
  }
};

/// Chooses the tokens with the largest sum of scores, which are logarithms of probabilities; a character without a
/// token has a lower score than all of them. Consecutive unknown characters are one token.
///
/// Method   [Kudo, "Subword Regularization", 2018], section 3.2; Viterbi's algorithm, O(n) steps of a token's length.
class unigram {
 public:
  bool byte_fallback = false;
  token_id unknown = no_token;

  /// Adds the token whose id is the number of tokens so far.
  void add(std::string_view token, double score) {
    pieces_.add(token, static_cast<token_id>(scores_.size()));
    scores_.push_back(score);
    least_ = std::min(least_, score);
  }

  /// Working memory for a word; reused for the next one.
  struct workspace {
    struct path {
      double score = 0;            ///< of the best tokens for the text before this byte
      std::uint32_t begin = none;  ///< the beginning of the last of them
      token_id id = no_token;
    };
    std::vector<path> paths;
    std::vector<std::uint32_t> ends;
  };

  void encode(std::string_view word, vocabulary const&, workspace& in, std::vector<token_id>& out) const {
    auto& paths = in.paths;
    paths.assign(word.size() + 1, {});
    for (std::size_t at = 0, next = 0; at < word.size(); at = next) {
      next = at + unicode::character_at(word, at).bytes;
      auto const before = paths[at].score;
      auto const offer = [&](std::size_t end, double score, token_id id) {
        auto& path = paths[end];
        if (path.begin == none || before + score > path.score)
          path = {before + score, static_cast<std::uint32_t>(at), id};
      };
      auto is_token = false;
      pieces_.each_at(word, at, [&](token_id id, std::size_t end) {
        offer(end, scores_[static_cast<std::size_t>(id)], id);
        is_token |= end == next;
      });
      if (is_token) continue;
      if (unknown == no_token)
        throw config_error(trireme::text("trireme::formats::tokenizer: no token stands for \"",
                                         word.substr(at, next - at), "\", and the file defines no unknown token"));
      offer(next, least_ - unknown_penalty, unknown);
    }
    in.ends.clear();
    for (auto end = static_cast<std::uint32_t>(word.size()); end > 0; end = paths[end].begin) in.ends.push_back(end);
    std::size_t unread = 0;  // the beginning of a run of unknown characters
    for (auto each = in.ends.rbegin(); each != in.ends.rend(); ++each) {
      auto const id = paths[*each].id;
      auto const joins = id == unknown && each + 1 != in.ends.rend() && paths[*(each + 1)].id == unknown;
      if (joins) continue;
      id == unknown ? add_unknown(word.substr(unread, *each - unread), out) : out.push_back(id);
      unread = *each;
    }
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  static constexpr double unknown_penalty = 10;

  /// Unknown characters together may still be a token, of a bad score.
  void add_unknown(std::string_view letters, std::vector<token_id>& out) const {
    if (auto const id = pieces_.find(letters); id != no_token) return out.push_back(id);
    if (byte_fallback) {
      auto const before = out.size();
      for (auto const letter : letters) {
        auto const byte = static_cast<unsigned char>(letter);
        auto const id = pieces_.find(byte_name(byte));
        if (id == no_token) {
          out.resize(before);
          return out.push_back(unknown);
        }
        out.push_back(id);
      }
      return;
    }
    out.push_back(unknown);
  }

  byte_tree pieces_;
  std::vector<double> scores_;
  double least_ = std::numeric_limits<double>::infinity();
};

/// The tokens of recent words; limited in size, and for one caller.
class word_cache {
 public:
  static constexpr std::size_t longest_word = 48;

  /// The tokens of a word; empty if it is not stored.
  [[nodiscard]] std::optional<std::span<token_id const>> find(std::string_view word) {
    if (word.size() > longest_word) return std::nullopt;
    auto const& found = slots_[index_of(hash_of(word), word)];
    if (found.length == 0) return std::nullopt;
    return std::span(ids_).subspan(found.first_id, found.ids);
  }
  void add(std::string_view word, std::span<token_id const> ids) {
    if (word.empty() || word.size() > longest_word || words_ >= most_words) return;
    if (2 * ++words_ > slots_.size()) grow();
    auto const hash = hash_of(word);
    slots_[index_of(hash, word)] = {hash, static_cast<std::uint32_t>(bytes_.size()),
                                    static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint16_t>(word.size()),
                                    static_cast<std::uint16_t>(ids.size())};
    bytes_ += word;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  static constexpr std::size_t most_words = std::size_t{1} << 18;
  struct slot {
    std::uint64_t hash = 0;
    std::uint32_t first_byte = 0, first_id = 0;
    std::uint16_t length = 0, ids = 0;
  };

  static std::uint64_t hash_of(std::string_view word) noexcept {
    std::uint64_t hash = word.size();
    for (; word.size() > 8; word.remove_prefix(8)) hash = mix(hash ^ eight_of(word, 8));
    return mix(hash ^ eight_of(word, word.size()));
  }
  static std::uint64_t eight_of(std::string_view word, std::size_t count) noexcept {
    std::uint64_t out = 0;
    std::memcpy(&out, word.data(), count);
    return out;
  }
  [[nodiscard]] std::size_t index_of(std::uint64_t hash, std::string_view word) const noexcept {
    auto const mask = slots_.size() - 1;
    for (std::size_t index = hash & mask;; index = (index + 1) & mask) {
      auto const& each = slots_[index];
      if (each.length == 0) return index;
      if (each.hash == hash && std::string_view(bytes_).substr(each.first_byte, each.length) == word) return index;
    }
  }
  void grow() {
    auto const old = std::exchange(slots_, std::vector<slot>(slots_.size() * 4));
    auto const mask = slots_.size() - 1;
    for (auto const& each : old) {
      if (each.length == 0) continue;
      auto index = static_cast<std::size_t>(each.hash) & mask;
      while (slots_[index].length != 0) index = (index + 1) & mask;
      slots_[index] = each;
    }
  }

  std::vector<slot> slots_ = std::vector<slot>(64);
  std::string bytes_;
  std::vector<token_id> ids_;
  std::size_t words_ = 0;
};

/// Tokens that are searched for in the text before any other rule: the longest match, from left to right.
class added_tokens {
 public:
  struct entry {
    std::string content;
    token_id id = no_token;
    bool single_word = false, left_strip = false, right_strip = false;
  };

  void add(entry what) {
    contents_.add(what.content, static_cast<token_id>(tokens_.size()));
    tokens_.push_back(std::move(what));
  }

  /// Calls between(piece) and found(id) for the pieces of a text and the tokens between them, in order.
  template <class Between, class Found>
  void split(std::string_view text, Between const& between, Found const& found) const {
    std::size_t begin = 0;
    if (tokens_.empty()) return between(text);
    for (std::size_t at = 0; at < text.size();) {
      auto match = byte_tree::none;
      contents_.each_at(text, at, [&](token_id which, std::size_t) { match = which; });
      if (match == byte_tree::none) {
        ++at;
        continue;
      }
      auto const& token = tokens_[static_cast<std::size_t>(match)];
      auto first = at, last = at + token.content.size();
      at = last;
      if (token.single_word && (ends_in_word(text.substr(0, first)) || begins_word(text.substr(last)))) continue;
      if (token.left_strip) first = std::max(begin, unicode::spaces_before(text, first));
      if (token.right_strip) last = unicode::spaces_behind(text, last);
      if (begin < first) between(text.substr(begin, first - begin));
      found(token.id);
      begin = last;
      at = std::max(at, last);
    }
    if (begin < text.size()) between(text.substr(begin));
  }

 private:
  /// \w
  static bool in_word(std::uint32_t code) {
    auto const what = unicode::category(code);
    return (what >= UTF8PROC_CATEGORY_LU && what <= UTF8PROC_CATEGORY_ND) || what == UTF8PROC_CATEGORY_NL ||
           what == UTF8PROC_CATEGORY_PC || code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
           (code >= 0x1f130 && code <= 0x1f149) ||  // letters in circles, ...
           (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
  }
  static bool ends_in_word(std::string_view text) {
    return !text.empty() && in_word(unicode::character_at(text, unicode::last_character(text)).code);
  }
  static bool begins_word(std::string_view text) {
    return !text.empty() && in_word(unicode::character_at(text, 0).code);
  }

  std::vector<entry> tokens_;
  byte_tree contents_;
};

}  // namespace trireme::formats::detail

#endif  // TRIREME_FORMATS_DETAIL_TOKENIZER_MODELS_INCLUDED

// ---- trireme/formats/tokenizer.hpp (goes on)
#ifndef TRIREME_FORMATS_DETAIL_TOKENIZER_STEPS_INCLUDED
#define TRIREME_FORMATS_DETAIL_TOKENIZER_STEPS_INCLUDED

// ---- trireme/formats/detail/tokenizer_steps.hpp
// The steps before a text is split into words, and those from tokens back to text.
namespace trireme::formats::detail {

/// The character replacements in sentencepiece's files (precompiled_charsmap): a double-array trie whose values are
/// positions in a list of strings that end with a 0.
///
/// Method   the layout of darts-clone. Which characters are looked up together follows the package tokenizers (grapheme
///          clusters of at most 5 bytes, by their shortest prefix in the trie), not sentencepiece.
class character_map {
 public:
  /// @returns empty if the bytes are not such a map.
  [[nodiscard]] static std::shared_ptr<character_map const> parse(std::string_view bytes) {
    auto const number = [&](std::size_t at) {
      std::uint32_t out = 0;
      for (std::size_t i = 0; i < 4; ++i) out |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << 8 * i;
      return out;
    };
    if (bytes.size() < 8) return nullptr;
    auto const size = number(0);
    if (size < 4 || size % 4 != 0 || size > bytes.size() - 4) return nullptr;
    auto out = std::make_shared<character_map>();
    for (std::size_t at = 4; at < size + std::size_t{4}; at += 4) out->units_.push_back(number(at));
    out->texts_ = bytes.substr(size + std::size_t{4});
    if (unicode::first_malformed(out->texts_) != std::string_view::npos) return nullptr;
    return out;
  }

  [[nodiscard]] std::string operator()(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      auto const cluster = text.substr(at, unicode::cluster_end(text, at) - at);
      at += cluster.size();
      if (auto const to = cluster.size() < 6 ? of(cluster) : std::nullopt) {
        append(out, *to);
        continue;
      }
      for (std::size_t i = 0; i < cluster.size();) {
        auto const one = cluster.substr(i, unicode::character_at(cluster, i).bytes);
        append(out, of(one).value_or(one));
        i += one.size();
      }
    }
    return out;
  }

 private:
  static void append(std::string& out, std::string_view what) {
    out += what;
    expect_encodable(out.size());
  }
  /// The replacement of the letters: that of the shortest string in the trie with which they begin.
  [[nodiscard]] std::optional<std::string_view> of(std::string_view letters) const {
    auto const after = [](std::uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); };
    auto at = after(units_[0]);
    for (auto const letter : letters) {
      std::uint32_t const byte = static_cast<unsigned char>(letter);
      at ^= byte;
      if (byte == 0 || at >= units_.size() || (units_[at] & 0x800000ff) != byte) return std::nullopt;
      auto const ends = (units_[at] & 0x100) != 0;
      at ^= after(units_[at]);
      if (!ends) continue;
      auto const offset = at < units_.size() ? units_[at] & 0x7fffffff : ~std::uint32_t{0};
      if (offset > texts_.size() || (offset < texts_.size() && (texts_[offset] & 0xc0) == 0x80)) return std::nullopt;
      auto const to = std::string_view(texts_).substr(offset);
      return to.substr(0, to.find('\0'));
    }
    return std::nullopt;
  }

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

/// One step of a normalizer.
struct normal_step {
  enum class rule {
    nfc,
    nfd,
    nfkc,
    nfkd,
    lower_case,
    strip_accents,
    bert,
    nmt,
    put_first,
    replace,
    join_spaces,
    strip,
    characters
  };
  rule how = rule::nfc;
  std::string from, to;                                           ///< for put_first, replace and join_spaces
  bool clean = true, chinese = true, lower = true, strip = true;  ///< for bert
  bool left = true, right = true;                                 ///< for strip
  std::shared_ptr<character_map const> map{};                     ///< for characters

  /// Whether the step may remove the first character, so that another character becomes the first.
  [[nodiscard]] bool may_drop_the_first() const noexcept {
    return how == rule::strip_accents || how == rule::bert || how == rule::nmt || (how == rule::strip && left) ||
           (how == rule::replace && to.empty());
  }

  [[nodiscard]] std::string operator()(std::string text) const {
    switch (how) {
      case rule::nfc:
        return unicode::normalised(text, unicode::form::nfc);
      case rule::nfd:
        return unicode::normalised(text, unicode::form::nfd);
      case rule::nfkc:
        return unicode::normalised(text, unicode::form::nfkc);
      case rule::nfkd:
        return unicode::normalised(text, unicode::form::nfkd);
      case rule::lower_case:
        return unicode::lower_case(text);
      case rule::strip_accents:
        return unicode::without(text, unicode::is_mark);
      case rule::bert:
        return as_bert(std::move(text));
      case rule::nmt:
        return as_nmt(text);
      case rule::put_first:
        return text.empty() ? text : to + text;
      case rule::replace:
        return replaced(text, from, to);
      case rule::join_spaces:
        return joined(text);
      case rule::strip:
        return std::string(stripped(text));
      case rule::characters:
        return (*map)(text);
    }
    return text;
  }

 private:
  [[nodiscard]] static std::string as_nmt(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      auto const [code, bytes] = unicode::character_at(text, at);
      if (unicode::is_nmt_space(code)) {
        out += ' ';
      } else if (!unicode::is_nmt_control(code)) {
        out += text.substr(at, bytes);
      }
      at += bytes;
    }
    return out;
  }
  /// Replaces runs of two or more spaces by `to`.
  [[nodiscard]] std::string joined(std::string_view text) const {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      auto const begin = text.find("  ", at);
      out += text.substr(at, begin - at);
      if (begin == std::string_view::npos) break;
      out += to;
      expect_encodable(out.size());
      at = std::min(text.find_first_not_of(' ', begin), text.size());
    }
    return out;
  }
  [[nodiscard]] std::string_view stripped(std::string_view text) const {
    std::size_t begin = 0, end = text.size();
    if (left) begin = unicode::spaces_behind(text, 0);
    if (right) end = std::max(begin, unicode::spaces_before(text, end));
    return text.substr(begin, end - begin);
  }
  [[nodiscard]] std::string as_bert(std::string text) const {
    if (clean || chinese) {
      std::string out;
      for (std::size_t at = 0; at < text.size();) {
        auto const [code, bytes] = unicode::character_at(text, at);
        auto const letter = std::string_view(text).substr(at, bytes);
        at += bytes;
        if (clean && (code == 0 || code == 0xfffd || unicode::is_control(code))) continue;
        if (clean && unicode::is_space(code)) {
          out += ' ';
        } else if (chinese && unicode::is_chinese(code)) {
          out.append(" ").append(letter).append(" ");
        } else {
          out += letter;
        }
      }
      text = std::move(out);
    }
    if (strip) {
      text = unicode::without(unicode::normalised(text, unicode::form::nfd), unicode::is_nonspacing_mark);
    }
    return lower ? unicode::lower_case(text) : text;
  }
};

/// One step of a decoder: tokens to tokens. The final tokens are concatenated.
struct decode_step {
  enum class rule { bytes, word_pieces, byte_fallback, fuse, replace, strip, marks };
  rule how = rule::fuse;
  std::string from, to;                  ///< for replace; `from` is also the mark, and what strip removes
  bool drop_first = false;               ///< for marks: those of the first token are removed
  bool clean = true;                     ///< for word_pieces: no space before punctuation
  std::size_t at_start = 0, at_end = 0;  ///< for strip: the largest numbers

  void operator()(std::vector<std::string>& tokens) const {
    switch (how) {
      case rule::bytes: {
        std::string all;
        for (auto const& token : tokens) {
          if (!append_bytes(all, token)) all += token;
        }
        tokens = {unicode::repaired(all)};
        return;
      }
      case rule::word_pieces:
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          auto& token = tokens[i];
          if (i > 0) {
            if (!from.empty() && token.starts_with(from)) {
              token.erase(0, from.size());
            } else {
              token.insert(0, " ");
            }
          }
          if (clean) token = cleaned(std::move(token));
        }
        return;
      case rule::byte_fallback:
        return join_bytes(tokens);
      case rule::fuse: {
        std::string all;
        for (auto const& token : tokens) all += token;
        tokens = {std::move(all)};
        return;
      }
      case rule::replace:
        for (auto& token : tokens) token = replaced(token, from, to);
        return;
      case rule::strip:
        for (auto& token : tokens) {
          for (std::size_t i = 0; i < at_start && token.starts_with(from); ++i) token.erase(0, from.size());
          for (std::size_t i = 0; i < at_end && token.ends_with(from); ++i) token.erase(token.size() - from.size());
        }
        return;
      case rule::marks:
        for (auto& token : tokens) token = replaced(token, from, drop_first && &token == &tokens.front() ? "" : " ");
        return;
    }
  }

 private:
  static std::string cleaned(std::string token) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> rules{{{" .", "."},
                                                                                          {" ?", "?"},
                                                                                          {" !", "!"},
                                                                                          {" ,", ","},
                                                                                          {" ' ", "'"},
                                                                                          {" n't", "n't"},
                                                                                          {" 'm", "'m"},
                                                                                          {" do not", " don't"},
                                                                                          {" 's", "'s"},
                                                                                          {" 've", "'ve"},
                                                                                          {" 're", "'re"}}};
    for (auto const& [before, after] : rules) token = replaced(token, before, after);
    return token;
  }

  /// Tokens <0x41> are bytes; a run of them that is not UTF-8 becomes as many U+FFFD.
  static void join_bytes(std::vector<std::string>& tokens) {
    std::vector<std::string> out;
    std::string bytes;
    auto const flush = [&] {
      if (bytes.empty()) return;
      if (unicode::first_malformed(bytes) == std::string_view::npos) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xef\xbf\xbd");
      }
      bytes.clear();
    };
    for (auto& token : tokens) {
      unsigned byte = 0;
      auto const* const digits = token.data() + 3;
      if (token.size() == 6 && token.starts_with("<0x") && token.back() == '>' &&
          std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }
};

/// An item of a template: a special token, or one of the two texts.
struct template_item {
  enum class what { special, first, second };
  what kind = what::first;
  std::vector<std::int32_t> ids;  ///< for a special token
  std::int32_t segment = 0;
};

}  // namespace trireme::formats::detail

#endif  // TRIREME_FORMATS_DETAIL_TOKENIZER_STEPS_INCLUDED

// ---- trireme/formats/tokenizer.hpp (goes on)
namespace trireme::formats {

namespace detail {
class tokenizer_reader;
}

/// The file's name in Hugging Face's models.
inline constexpr std::string_view tokenizer_file = "tokenizer.json";

/// Whether a template's special tokens ([CLS], say) are included when encoding and decoding.
enum class special_tokens { with, without };

/// A text as token ids.
struct encoding {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> segments;  ///< for each token, 0 or 1: the text it belongs to
};

/// The tokens of up to 2^18 words that were encoded before.
using word_memory = detail::word_cache;

/// A tokenizer from Hugging Face's file tokenizer.json: texts to token ids, and back.
///
/// Supports byte pair encoding (of bytes, as in GPT-2, Llama 3, Qwen 2 and SmolLM2, or of characters with bytes as a
/// fallback, as in Llama 2 and Mistral), BERT's word pieces and sentencepiece's unigrams (T5, ALBERT, XLM-R), each with
/// the following steps:
///
///     normalizers      NFC NFD NFKC NFKD Lowercase StripAccents BertNormalizer Nmt Precompiled Prepend Strip
///                      Replace (of a string, or of spaces in a row) Sequence
///     pre-tokenizers   ByteLevel, Split by a string or a regular expression, Digits, BertPreTokenizer,
///                      WhitespaceSplit, Metaspace, Sequence
///     post-processors  TemplateProcessing ByteLevel BertProcessing RobertaProcessing Sequence
///     decoders         ByteLevel WordPiece ByteFallback Fuse Metaspace Replace (of a string) Strip Sequence
///
/// and added tokens. A file that uses anything else is refused with an error that names it, so no text is encoded
/// approximately. Truncation and padding in the file are ignored; they are up to the caller.
///
/// Needs    utf8proc (CMake: trireme::utf8proc). Characters that are newer than the tables of either package (a few
/// thousand, added since 2002) may be split differently than in the package. The expressions of GPT-2, Llama 3 and Qwen
/// 2 are implemented by hand; others (DeepSeek's) need PCRE2, which that target uses if it is found (it then defines
/// TRIREME_PCRE2 and links -lpcre2-8).
/// Numerics the same ids as the package tokenizers; a test compares them. If two divisions of a word have the same
///          score, a Unigram may return another one than the package.
/// Bytes    about 200 for each token of the vocabulary, and 24 to 48 for each merge; encode() keeps the words that it
///          has seen during a call (word_memory). A file may have up to 256 MiB.
/// Threads  const; any number of callers.
/// Errors   read() throws io_error, parse() format_error (path, byte, reason); encode() throws format_error if a text
///          is not UTF-8, and config_error if part of it has no token and the file defines no unknown token, or if an
///          expression takes more than ten million steps to find a word.
class tokenizer {
 public:
  [[nodiscard]] static tokenizer read(std::string const& path, file_system& files = real_files()) {
    return parse(read_text(path, most_bytes, files), path);
  }
  /// @param path  the name of the text in errors.
  [[nodiscard]] static tokenizer parse(std::string_view text, std::string const& path);

  /// One more than the largest id: the smallest vocabulary that a model needs.
  [[nodiscard]] std::int64_t vocabulary() const noexcept { return tokens_.end(); }
  /// The id of a token, written as in the file.
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const {
    auto const id = tokens_.id_of(token);
    return id == detail::no_token ? std::nullopt : std::optional(id);
  }
  /// The token of an id, or nullptr.
  [[nodiscard]] std::string const* token_of(std::int32_t id) const { return tokens_.token_of(id); }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 special_tokens specials = special_tokens::with) const {
    return arranged(specials == special_tokens::with ? single_ : first_only(), words_of(text), {}).ids;
  }
  /// The same for many short texts: words of earlier texts are looked up and not encoded again.
  /// @param known  of this tokenizer alone, and for one caller at a time.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, word_memory& known,
                                                 special_tokens specials = special_tokens::with) const {
    return arranged(specials == special_tokens::with ? single_ : first_only(), words_of(text, known), {}).ids;
  }
  /// Two texts, as BERT uses them.
  [[nodiscard]] encoding encode_pair(std::string_view first, std::string_view second,
                                     special_tokens specials = special_tokens::with) const {
    return arranged(specials == special_tokens::with ? pair_ : both(), words_of(first), words_of(second));
  }

  /// The text of tokens. Ids without a token are left out, and bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string decode(std::span<std::int32_t const> ids,
                                   special_tokens specials = special_tokens::without) const {
    std::vector<std::string> strings;
    for (auto const id : ids) {
      auto const* const token = tokens_.token_of(id);
      if (token == nullptr) continue;
      if (specials == special_tokens::without && std::binary_search(special_.begin(), special_.end(), id)) continue;
      strings.push_back(*token);
    }
    for (auto const& step : decoder_) step(strings);
    std::string out;
    for (auto const& string : strings) {
      if (decoder_.empty() && &string != &strings.front()) out += ' ';
      out += string;
    }
    return out;
  }

 private:
  friend class detail::tokenizer_reader;
  static constexpr std::uint64_t most_bytes = std::uint64_t{1} << 28;

  [[nodiscard]] std::vector<std::int32_t> words_of(std::string_view text, word_memory& known) const;
  [[nodiscard]] std::vector<std::int32_t> words_of(std::string_view text) const {
    word_memory known;
    return words_of(text, known);
  }
  [[nodiscard]] static encoding arranged(std::span<detail::template_item const> parts,
                                         std::vector<std::int32_t> const& first,
                                         std::vector<std::int32_t> const& second);
  static std::vector<detail::template_item> first_only() { return {{detail::template_item::what::first, {}, 0}}; }
  static std::vector<detail::template_item> both() {
    return {{detail::template_item::what::first, {}, 0}, {detail::template_item::what::second, {}, 1}};
  }

  detail::vocabulary tokens_;
  std::vector<std::int32_t> special_;  // sorted
  detail::added_tokens before_normalizer_, behind_normalizer_;
  std::vector<detail::normal_step> normalizer_;
  std::vector<detail::split_step> splits_;
  std::variant<detail::byte_pairs, detail::word_pieces, detail::unigram> model_;
  std::vector<detail::template_item> single_ = first_only(), pair_ = both();
  std::vector<detail::decode_step> decoder_;
};

namespace detail {

/// Decodes base64; empty if the text is not base64.
[[nodiscard]] inline std::optional<std::string> of_base64(std::string_view text) {
  static constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  auto const filled = text.find('=');
  if (filled != std::string_view::npos &&
      (text.size() - filled > 2 || text.find_first_not_of('=', filled) != text.npos))
    return std::nullopt;
  std::string out;
  std::uint32_t bits = 0, count = 0;
  for (auto const letter : text.substr(0, filled)) {
    auto const value = digits.find(letter);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(static_cast<unsigned char>(bits >> count & 0xff));
  }
  return out;
}

/// Makes a tokenizer from a file's content.
class tokenizer_reader {
 public:
  explicit tokenizer_reader(json::value const& file) : file_(file) {}

  [[nodiscard]] tokenizer read() {
    read_model(file_.at("model"));
    if (auto const* const added = given(file_, "added_tokens")) read_added(*added);
    if (auto const* const normalizer = given(file_, "normalizer")) add_normalizer(*normalizer);
    if (auto const* const splits = given(file_, "pre_tokenizer")) add_split(*splits);
    if (auto const* const post = given(file_, "post_processor")) add_post_processor(*post);
    if (auto const* const decoder = given(file_, "decoder")) add_decoder(*decoder);
    finish();
    return std::move(out_);
  }

 private:
  static constexpr std::size_t most_steps = 16;
  static constexpr std::string_view space_mark = "\xe2\x96\x81";  // U+2581
  static constexpr std::int64_t end_of_ids = std::int64_t{1} << 24;

  /// The member; nullptr if it is missing or null.
  static json::value const* given(json::value const& in, std::string_view key) {
    auto const* const found = in.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  static bool flag(json::value const& in, std::string_view key, bool otherwise = false) {
    auto const* const found = given(in, key);
    return found == nullptr ? otherwise : found->as_bool();
  }
  static std::string const& kind_of(json::value const& what) { return what.at("type").as_string(); }
  static std::int32_t id_in(json::value const& number) {
    auto const id = number.as_int64();
    if (id < 0 || id >= end_of_ids) number.fail(text("a token's id must be from 0 to ", end_of_ids - 1));
    return static_cast<std::int32_t>(id);
  }
  [[noreturn]] static void refuse(json::value const& where, char const* what) {
    where.fail(
        text(what, " \"", kind_of(where), "\" is not supported; see trireme::formats::tokenizer for those that are"));
  }
  /// Calls each(step) for a step, or for each step of a Sequence.
  template <class Each>
  static void for_each_step(json::value const& what, std::string_view key, Each const& each) {
    if (kind_of(what) != "Sequence") return each(what);
    auto const& steps = what.at(key).as_array();
    if (steps.size() > most_steps) what.fail(text("a sequence of more than ", most_steps, " steps"));
    for (auto const& step : steps) {
      if (kind_of(step) == "Sequence") step.fail("a sequence within a sequence is not supported");
      each(step);
    }
  }
  std::int32_t known(json::value const& token) const {
    auto const id = out_.tokens_.id_of(token.as_string());
    if (id == no_token) token.fail(text("the vocabulary has no token \"", token.as_string(), "\""));
    return id;
  }

  void read_vocabulary(json::value const& from) {
    for (auto const& [token, id] : from.as_object()) {
      if (!out_.tokens_.add(token, id_in(id))) id.fail(text("the id of \"", token, "\" is also that of another token"));
    }
  }

  void read_model(json::value const& model) {
    auto const& kind = kind_of(model);
    if (kind == "Unigram") return read_unigram(model);
    if (kind != "BPE" && kind != "WordPiece") refuse(model, "a model of type");
    read_vocabulary(model.at("vocab"));
    kind == "BPE" ? read_byte_pairs(model) : read_word_pieces(model);
  }
  // The package multiplies or divides a number's digits by a power of ten, which rounds once more if there are many: if
  // two divisions of a word have nearly the same score, that last bit decides.
  static double as_the_package_reads(double score) {
    char digits[32];
    auto const [end, problem] =
        std::to_chars(digits, digits + sizeof digits, std::abs(score), std::chars_format::scientific);
    char const* const mark = std::find(digits, end, 'e');
    if (problem != std::errc{} || mark == end) return score;  // not a finite number
    std::string whole(static_cast<char const*>(digits), mark);
    int exponent = 0;
    std::from_chars(mark + (mark[1] == '+' ? 2 : 1), end, exponent);
    if (auto const point = whole.find('.'); point != whole.npos) {
      exponent -= static_cast<int>(whole.size() - point - 1);
      whole.erase(point, 1);
    }
    std::uint64_t number = 0;
    std::from_chars(whole.data(), whole.data() + whole.size(), number);
    auto const power = [](int of) {
      double out = 0;
      auto const name = text("1e", of);
      std::from_chars(name.data(), name.data() + name.size(), out);
      return out;
    };
    auto read = static_cast<double>(number);
    for (; exponent < -308; exponent += 308) read /= power(308);
    read = exponent < 0 ? read / power(-exponent) : read * power(exponent);
    return std::copysign(read, score);
  }
  void read_unigram(json::value const& model) {
    unigram pieces;
    std::int32_t id = 0;
    for (auto const& entry : model.at("vocab").as_array()) {
      auto const& both = entry.as_array();
      if (both.size() != 2) entry.fail("expected a token and its score");
      auto const& token = both[0].as_string();
      if (!out_.tokens_.add(token, id++)) entry.fail(text("the token \"", token, "\" occurs twice"));
      pieces.add(token, as_the_package_reads(both[1].as_double()));
    }
    pieces.byte_fallback = flag(model, "byte_fallback");
    for (auto const* const key : {"alpha", "nbest_size"}) {
      if (auto const* const drawn = given(model, key))
        drawn->fail("a Unigram that samples tokens at random is not supported");
    }
    if (auto const* const unknown = given(model, "unk_id")) {
      pieces.unknown = id_in(*unknown);
      if (pieces.unknown >= id) unknown->fail(text("the vocabulary has only ", how_many(id, "token")));
    }
    out_.model_ = std::move(pieces);
  }
  void read_byte_pairs(json::value const& model) {
    byte_pairs pairs;
    for (auto const* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      auto const* const mark = given(model, key);
      if (mark != nullptr && !mark->as_string().empty()) mark->fail(text("a BPE with ", key, " is not supported"));
    }
    if (auto const* const dropout = given(model, "dropout");
        dropout != nullptr && !exactly_equal(dropout->as_double(), 0))
      dropout->fail("a BPE that skips merges at random is not supported");
    pairs.byte_fallback = flag(model, "byte_fallback");
    pairs.fuse_unknown = flag(model, "fuse_unk");
    pairs.whole_words_first = flag(model, "ignore_merges");
    if (auto const* const unknown = given(model, "unk_token")) pairs.unknown = known(*unknown);
    auto const& merges = model.at("merges").as_array();
    pairs.merges = merge_table(merges.size());
    for (std::uint32_t rank = 0; rank < merges.size(); ++rank) add_merge(merges[rank], rank, pairs.merges);
    out_.model_ = std::move(pairs);
  }
  void add_merge(json::value const& merge, std::uint32_t rank, merge_table& into) {
    std::string left, right;
    if (merge.is_string()) {
      auto const& both = merge.as_string();
      auto const space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
        merge.fail("a merge is two tokens with one space between them");
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      auto const& both = merge.as_array();
      if (both.size() != 2) merge.fail("a merge is two tokens");
      left = both[0].as_string();
      right = both[1].as_string();
    }
    auto const one = out_.tokens_.id_of(left), two = out_.tokens_.id_of(right), made = out_.tokens_.id_of(left + right);
    if (one == no_token || two == no_token || made == no_token)
      merge.fail(
          text("the vocabulary lacks at least one of \"", left, "\", \"", right, "\" and \"", left + right, "\""));
    into.add(one, two, {rank, made});
    auto const whole = left + right;
    for (auto at = whole.find(space_mark, 1); at != whole.npos; at = whole.find(space_mark, at + 1)) {
      if (!whole.substr(0, at).ends_with(space_mark)) merges_words_ = true;
    }
  }
  void read_word_pieces(json::value const& model) {
    word_pieces pieces;
    pieces.unknown = known(model.at("unk_token"));
    if (auto const* const mark = given(model, "continuing_subword_prefix")) pieces.continuing = mark->as_string();
    if (auto const* const most = given(model, "max_input_chars_per_word")) {
      if (most->as_uint64() > 1000) most->fail("words of more than 1000 characters are not supported");
      pieces.most_characters = most->as_uint64();
    }
    out_.model_ = std::move(pieces);
  }

  void read_added(json::value const& all) {
    for (auto const& each : all.as_array()) {
      auto const& content = each.at("content");
      auto const id = id_in(each.at("id"));
      added_tokens::entry what{content.as_string(), id, flag(each, "single_word"), flag(each, "lstrip"),
                               flag(each, "rstrip")};
      if (what.content.empty()) content.fail("an added token is empty");
      if (out_.tokens_.id_of(what.content) != id && !out_.tokens_.add(what.content, id))
        each.fail(text("the added token \"", what.content, "\" has another id in the vocabulary"));
      auto const special = flag(each, "special");
      if (special) out_.special_.push_back(id);
      normalised_.push_back(flag(each, "normalized", !special));
      added_.push_back(std::move(what));
    }
    std::sort(out_.special_.begin(), out_.special_.end());
  }

  void add_normalizer(json::value const& what) {
    using rule = normal_step::rule;
    for_each_step(what, "normalizers", [&](json::value const& step) {
      static constexpr std::array<std::pair<std::string_view, rule>, 6> plain{{{"NFC", rule::nfc},
                                                                               {"NFD", rule::nfd},
                                                                               {"NFKC", rule::nfkc},
                                                                               {"NFKD", rule::nfkd},
                                                                               {"Lowercase", rule::lower_case},
                                                                               {"StripAccents", rule::strip_accents}}};
      auto const& kind = kind_of(step);
      normal_step add;
      auto const* const found =
          std::find_if(plain.begin(), plain.end(), [&](auto const& p) { return p.first == kind; });
      if (found != plain.end()) {
        add.how = found->second;
      } else if (kind == "BertNormalizer") {
        add.how = rule::bert;
        add.clean = flag(step, "clean_text", true);
        add.chinese = flag(step, "handle_chinese_chars", true);
        add.lower = flag(step, "lowercase", true);
        add.strip = flag(step, "strip_accents", add.lower);
      } else if (kind == "Prepend") {
        add.how = rule::put_first;
        add.to = step.at("prepend").as_string();
      } else if (kind == "Nmt") {
        add.how = rule::nmt;
      } else if (kind == "Strip") {
        add.how = rule::strip;
        add.left = flag(step, "strip_left", true);
        add.right = flag(step, "strip_right", true);
      } else if (kind == "Replace") {
        add.how = rule::replace;
        auto const* const expression = step.at("pattern").find("Regex");
        if (expression != nullptr && expression->as_string() == " {2,}") {
          add.how = rule::join_spaces;
        } else {
          add.from = string_pattern(step);
        }
        add.to = step.at("content").as_string();
      } else if (kind == "Precompiled") {
        add.how = rule::characters;
        auto const& map = step.at("precompiled_charsmap");
        if (auto const bytes = of_base64(map.as_string())) add.map = character_map::parse(*bytes);
        if (add.map == nullptr) map.fail("this is not a map of characters as sentencepiece writes it, in base64");
      } else {
        refuse(step, "a normalizer of type");
      }
      out_.normalizer_.push_back(std::move(add));
    });
  }
  static std::string const& string_pattern(json::value const& step) {
    auto const& pattern = step.at("pattern");
    auto const* const string = pattern.find("String");
    if (string == nullptr) pattern.fail("a Replace with a regular expression is not supported");
    if (string->as_string().empty()) string->fail("a Replace with an empty pattern");
    return string->as_string();
  }

  void add_split(json::value const& what) {
    using rule = split_step::rule;
    for_each_step(what, "pretokenizers", [&](json::value const& step) {
      auto const& kind = kind_of(step);
      if (byte_level_) step.fail("a pre-tokenizer after ByteLevel is not supported");
      split_step add;
      if (kind == "ByteLevel") {
        byte_level_ = true;
        add.how = flag(step, "use_regex", true) ? rule::gpt2 : rule::whole;
        add.space_first = flag(step, "add_prefix_space", true);
      } else if (kind == "Split") {
        read_split(step, add);
      } else if (kind == "Digits") {
        add.how = flag(step, "individual_digits") ? rule::each_digit : rule::digits;
      } else if (kind == "BertPreTokenizer") {
        add.how = rule::bert;
      } else if (kind == "WhitespaceSplit") {
        add.how = rule::spaces;
      } else if (kind == "Metaspace") {
        add.how = rule::marks;
        add.mark = mark_of(step);
        add.mark_first = mark_first(step);
        add.cut_before = flag(step, "split", true);
      } else {
        refuse(step, "a pre-tokenizer of type");
      }
      out_.splits_.push_back(add);
    });
  }
  static void read_split(json::value const& step, split_step& add) {
    using how = split_behaviour;
    static constexpr std::array<std::pair<std::string_view, how>, 5> all{
        {{"Removed", how::removed},
         {"Isolated", how::isolated},
         {"MergedWithPrevious", how::merged_with_previous},
         {"MergedWithNext", how::merged_with_next},
         {"Contiguous", how::contiguous}}};
    auto const& behaviour = step.at("behavior");
    auto const* const found =
        std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.first == behaviour.as_string(); });
    if (found == all.end()) {
      behaviour.fail("the behavior of a Split is Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
    }
    add.how = split_step::rule::pattern;
    add.behaviour = found->second;
    add.inverted = flag(step, "invert");
    auto const& pattern = step.at("pattern");
    if (auto const* const string = pattern.find("String")) {
      add.what = split_pattern::of_string(string->as_string());
      return;
    }
    auto const* const expression = pattern.find("Regex");
    if (expression == nullptr) pattern.fail("a pattern is a String or a Regex");
    // Each match of a known expression is a word, and there is no text between matches, so these two behaviours are the
    // same.
    auto const words = add.behaviour == how::isolated || (add.behaviour == how::removed && add.inverted);
    auto const known = words ? known_expression(expression->as_string()) : std::nullopt;
    if (known) {
      add.how = *known;
    } else {
      add.what = split_pattern::of_expression(expression->as_string(),
                                              [&](std::string const& sentence) { expression->fail(sentence); });
    }
  }
  /// The mark of a Metaspace.
  static std::string const& mark_of(json::value const& step) {
    auto const& mark = step.at("replacement");
    if (unicode::character_at(mark.as_string(), 0).bytes != mark.as_string().size() || mark.as_string().empty())
      mark.fail("a replacement is one character");
    return mark.as_string();
  }
  static split_step::put mark_first(json::value const& step) {
    using put = split_step::put;
    auto const* const scheme = given(step, "prepend_scheme");
    if (!flag(step, "add_prefix_space", true)) {  // in files from before 2024
      if (scheme != nullptr && scheme->as_string() != "never") scheme->fail("add_prefix_space contradicts it");
      return put::never;
    }
    if (scheme == nullptr || scheme->as_string() == "always") return put::always;
    if (scheme->as_string() == "first") return put::at_start;
    if (scheme->as_string() != "never") scheme->fail("a prepend_scheme is always, first or never");
    return put::never;
  }
  /// Expressions that are implemented by hand, which is several times faster.
  static std::optional<split_step::rule> known_expression(std::string_view expression) {
    using rule = split_step::rule;
    static constexpr std::array<std::pair<std::string_view, rule>, 3> all{{
        {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", rule::gpt2},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         rule::llama3},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         rule::qwen2},
    }};
    auto const* const found =
        std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.first == expression; });
    return found == all.end() ? std::nullopt : std::optional(found->second);
  }

  void add_post_processor(json::value const& what) {
    bool done = false;
    for_each_step(what, "processors", [&](json::value const& step) {
      auto const& kind = kind_of(step);
      if (kind == "ByteLevel") return;  // it only changes offsets
      if (std::exchange(done, true)) step.fail("a second post-processor is not supported");
      if (kind == "TemplateProcessing") {
        out_.single_ = parts_of(step, "single");
        out_.pair_ = parts_of(step, "pair");
      } else if (kind == "BertProcessing" || kind == "RobertaProcessing") {
        using what_part = template_item::what;
        auto const roberta = kind == "RobertaProcessing";
        template_item const cls{what_part::special, {id_of_pair(step.at("cls"))}, 0};
        template_item const sep{what_part::special, {id_of_pair(step.at("sep"))}, 0};
        template_item const first{what_part::first, {}, 0};
        std::int32_t const other = roberta ? 0 : 1;
        out_.single_ = {cls, first, sep};
        out_.pair_ = out_.single_;
        if (roberta) out_.pair_.push_back(sep);
        out_.pair_.push_back({what_part::second, {}, other});
        out_.pair_.push_back({what_part::special, sep.ids, other});
      } else {
        refuse(step, "a post-processor of type");
      }
    });
  }
  /// ["[CLS]", 101]
  std::int32_t id_of_pair(json::value const& what) const {
    auto const& pair = what.as_array();
    if (pair.size() != 2) what.fail("expected a token and its number");
    return id_of_template(pair[1]);
  }
  std::int32_t id_of_template(json::value const& number) const {
    auto const id = id_in(number);
    if (out_.tokens_.token_of(id) == nullptr) number.fail("no token has this id");
    return id;
  }
  std::vector<template_item> parts_of(json::value const& step, std::string_view key) const {
    std::vector<template_item> out;
    auto const& parts = step.at(key).as_array();
    if (parts.size() > most_steps) step.fail(text("a template of more than ", most_steps, " parts"));
    for (auto const& part : parts) {
      template_item add;
      auto const* const special = part.find("SpecialToken");
      auto const& body = special == nullptr ? part.at("Sequence") : *special;
      auto const& name = body.at("id");
      add.segment = id_in(body.at("type_id"));
      if (special != nullptr) {
        add.kind = template_item::what::special;
        for (auto const& id : step.at("special_tokens").at(name.as_string()).at("ids").as_array())
          add.ids.push_back(id_of_template(id));
      } else if (name.as_string() == "A" || name.as_string() == "B") {
        add.kind = name.as_string() == "A" ? template_item::what::first : template_item::what::second;
      } else {
        name.fail("a sequence of a template is A or B");
      }
      out.push_back(std::move(add));
    }
    return out;
  }

  void add_decoder(json::value const& what) {
    using rule = decode_step::rule;
    for_each_step(what, "decoders", [&](json::value const& step) {
      auto const& kind = kind_of(step);
      decode_step add;
      if (kind == "ByteLevel") {
        add.how = rule::bytes;
      } else if (kind == "WordPiece") {
        add.how = rule::word_pieces;
        add.from = step.at("prefix").as_string();
        add.clean = flag(step, "cleanup", true);
      } else if (kind == "ByteFallback") {
        add.how = rule::byte_fallback;
      } else if (kind == "Fuse") {
        add.how = rule::fuse;
      } else if (kind == "Metaspace") {
        add.how = rule::marks;
        add.from = mark_of(step);
        add.drop_first = mark_first(step) != split_step::put::never;
      } else if (kind == "Replace") {
        add.how = rule::replace;
        add.from = string_pattern(step);
        add.to = step.at("content").as_string();
      } else if (kind == "Strip") {
        add.how = rule::strip;
        add.from = step.at("content").as_string();
        if (add.from.empty()) step.fail("a Strip with an empty string");
        add.at_start = step.at("start").as_uint64();
        add.at_end = step.at("stop").as_uint64();
      } else {
        refuse(step, "a decoder of type");
      }
      out_.decoder_.push_back(std::move(add));
    });
  }

  void finish() {
    if (auto* const pairs = std::get_if<byte_pairs>(&out_.model_)) {
      pairs->byte_level = byte_level_;
      pairs->prepare(out_.tokens_);
      // If no merge crosses from a letter to the mark of a following space, words are encoded one by one, so that known
      // words can be looked up. The ids are the same.
      if (!byte_level_ && !merges_words_ && !pairs->whole_words_first && out_.tokens_.id_of(space_mark) != no_token) {
        out_.splits_.push_back({.how = split_step::rule::before_marks, .mark = std::string(space_mark)});
      }
    } else if (byte_level_) {
      file_.at("pre_tokenizer").fail("ByteLevel needs a BPE");
    }
    auto const at_start = [](auto const& step) { return step.mark_first == split_step::put::at_start; };
    auto const drops = [](auto const& step) { return step.may_drop_the_first(); };
    if (std::any_of(out_.splits_.begin(), out_.splits_.end(), at_start) &&
        std::any_of(out_.normalizer_.begin(), out_.normalizer_.end(), drops))
      file_.at("normalizer")
          .fail("with prepend_scheme first, a normalizer that may remove the beginning of a text is not supported");
    // Added tokens that are searched for after the normalizer are normalised first.
    for (std::size_t i = 0; i < added_.size(); ++i) {
      auto& token = added_[i];
      if (!normalised_[i]) {
        out_.before_normalizer_.add(std::move(token));
        continue;
      }
      for (auto const& step : out_.normalizer_) token.content = step(std::move(token.content));
      if (!token.content.empty()) out_.behind_normalizer_.add(std::move(token));
    }
  }

  json::value const& file_;
  tokenizer out_;
  std::vector<added_tokens::entry> added_;
  std::vector<bool> normalised_;
  bool byte_level_ = false, merges_words_ = false;
};

}  // namespace detail

inline tokenizer tokenizer::parse(std::string_view text, std::string const& path) {
  json::limits const most{.values = std::size_t{1} << 22};
  auto const file = json::parse(text, path, most);
  return detail::tokenizer_reader(file).read();
}

inline std::vector<std::int32_t> tokenizer::words_of(std::string_view text, word_memory& known) const {
  auto const malformed = detail::unicode::first_malformed(text);
  if (malformed != std::string_view::npos)
    throw format_error("trireme::formats::tokenizer: the text to encode", malformed, "it is not UTF-8 here");
  if (text.size() >> 31 != 0)
    throw config_error("trireme::formats::tokenizer: a text of 2 GiB or more; encode it in parts");
  std::vector<std::int32_t> out;
  out.reserve(text.size() / 4);
  std::visit(
      [&](auto const& model) {
        typename std::remove_cvref_t<decltype(model)>::workspace space;
        auto const word = [&](std::string_view letters) {
          if (auto const ids = known.find(letters)) return void(out.insert(out.end(), ids->begin(), ids->end()));
          auto const before = out.size();
          model.encode(letters, tokens_, space, out);
          known.add(letters, std::span(out).subspan(before));
        };
        auto const id = [&](std::int32_t added) { out.push_back(added); };
        auto const unchanged = [&](std::string_view letters) {
          auto const begins = letters.data() == text.data();
          std::string changed;
          if (!normalizer_.empty()) {
            changed = letters;
            for (auto const& step : normalizer_) changed = step(std::move(changed));
            letters = changed;
          }
          auto const piece = [&](std::string_view part) {
            detail::split(splits_, part, begins && part.data() == letters.data(), word);
          };
          behind_normalizer_.split(letters, piece, id);
        };
        before_normalizer_.split(text, unchanged, id);
      },
      model_);
  return out;
}

inline encoding tokenizer::arranged(std::span<detail::template_item const> parts,
                                    std::vector<std::int32_t> const& first, std::vector<std::int32_t> const& second) {
  using what = detail::template_item::what;
  encoding out;
  for (auto const& part : parts) {
    auto const& ids = part.kind == what::special ? part.ids : part.kind == what::first ? first : second;
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.segments.insert(out.segments.end(), ids.size(), part.segment);
  }
  return out;
}

}  // namespace trireme::formats
