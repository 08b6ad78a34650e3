#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/formats/detail/tokenizer_splits.hpp"
#include "trireme/formats/detail/tokenizer_unicode.hpp"

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
