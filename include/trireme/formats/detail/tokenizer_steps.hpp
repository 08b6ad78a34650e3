#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/formats/detail/tokenizer_splits.hpp"
#include "trireme/formats/detail/tokenizer_unicode.hpp"

// What happens to a text before it is cut into words, and to tokens that become a text again.
namespace trireme::formats::detail {

/// The text with `to` in the place of each `from`. A file may ask for that many times, so a text may not grow without
/// end.
[[nodiscard]] inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (;;) {
    auto const found = from.empty() ? std::string_view::npos : text.find(from);
    out += text.substr(0, found);
    if (found == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(found + from.size());
    if (out.size() > std::size_t{1} << 32)
      throw config_error(
          "trireme::formats::tokenizer: replacing makes more than 4 GiB of the text; encode it in parts");
  }
}

/// One step of a normalizer.
struct normal_step {
  enum class rule { nfc, nfd, nfkc, nfkd, lower_case, strip_accents, bert, put_first, replace };
  rule how = rule::nfc;
  std::string from, to;                                           ///< of put_first and replace
  bool clean = true, chinese = true, lower = true, strip = true;  ///< of bert

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
      case rule::put_first:
        return text.empty() ? text : to + text;
      case rule::replace:
        return replaced(text, from, to);
    }
    return text;
  }

 private:
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

/// One step of a decoder: tokens to tokens. What is left in the end is joined.
struct decode_step {
  enum class rule { bytes, word_pieces, byte_fallback, fuse, replace, strip };
  rule how = rule::fuse;
  std::string from, to;                  ///< of replace; `from` is the mark of word_pieces, and what strip takes away
  bool clean = true;                     ///< of word_pieces: no space before punctuation
  std::size_t at_start = 0, at_end = 0;  ///< of strip: how many at most

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

  /// Tokens <0x41> are bytes; a run of them that is no UTF-8 becomes as many U+FFFD.
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

/// What a template puts where: a special token, or one of the two texts.
struct template_part {
  enum class what { special, first, second };
  what kind = what::first;
  std::vector<std::int32_t> ids;  ///< of a special one
  std::int32_t segment = 0;
};

}  // namespace trireme::formats::detail
