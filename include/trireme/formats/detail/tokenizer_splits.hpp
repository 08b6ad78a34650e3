#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/formats/detail/tokenizer_expression.hpp"
#include "trireme/formats/detail/tokenizer_unicode.hpp"

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
