#pragma once

#ifdef TRIREME_PCRE2
#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 0  // without the macros that rename functions by their width
#endif
#include <pcre2.h>
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/detail/tokenizer_unicode.hpp"

// Regular expressions of tokenizers, beyond those that are written out by hand. The package tokenizers gives them to
// Oniguruma (its Ruby syntax), this library to PCRE2: what the two take differently is rewritten, and what cannot be is
// refused.
namespace trireme::formats::detail {

/// An expression of Oniguruma as one of PCRE2.
class expression_translation {
 public:
  explicit expression_translation(std::string_view from) : from_(from) {}

  /// @returns the expression, or nothing; then reason() says why.
  [[nodiscard]] std::optional<std::string> operator()() {
    group(false);
    if (reason_.empty() && at_ < from_.size()) fail("a ) without its (");
    if (!reason_.empty()) return std::nullopt;
    return out_;
  }
  [[nodiscard]] std::string const& reason() const noexcept { return reason_; }

 private:
  static constexpr int most_depth = 50;
  // Unicode's White_Space, which PCRE2 has not as \s (it leaves out U+0085), and what a word is made of in Oniguruma.
  static constexpr std::string_view spaces =
      R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  static constexpr std::string_view word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
  // A \w that is no part of a class has these, too: superscripts and fractions of Latin 1.
  static constexpr std::string_view word_alone = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
  static constexpr std::string_view hexadecimal = "0-9a-fA-F";

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

  /// Alternatives up to the end of a group, which stays.
  void group(bool any_case) {
    if (++depth_ > most_depth) return fail("groups are nested too deep");
    std::optional<std::size_t> atom;  // where what a quantifier repeats begins in out_
    char before = '\0';               // a letter that stands alone before this one
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
        escape(false);
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
  /// Oniguruma lets some pairs of letters match one: "ss" and U+00DF. PCRE2 does not.
  void expect_one_to_one(std::size_t bytes, char before, char letter) {
    auto const pair = [&](char a, std::string_view with) { return before == a && with.find(letter) != with.npos; };
    if (bytes > 1 || pair('s', "st") || pair('f', "fil"))
      fail("(?i) of letters that Unicode also writes as one, or that are not ASCII");
  }

  /// A group, or options. @returns whether it is something that can be repeated.
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
  /// (?imx-imx) up to the end of the group around it, or (?imx-imx: ... ); m lets . match a line's end.
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
      if (!counts) {  // a brace and no more
        atom = out_.size();
        out_ += "\\{";
        ++at_;
        return;
      }
      if (!atom) return fail("a quantifier of nothing");
      at_ = end + 1;
      out_ += text('{', count.starts_with(',') ? "0" : "", count, '}');
      // Behind a brace + repeats what is repeated, and ? does so behind {n}.
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
    // Another quantifier is one of all this.
    if (more() && std::string_view("*+?{").find(from_[at_]) != std::string_view::npos) wrap(*atom);
  }
  void wrap(std::size_t atom) {
    out_.insert(atom, "(?:");
    out_ += ')';
  }

  /// A class of characters.
  void bracket(bool any_case) {
    ++at_;
    out_ += '[';
    if (take("^")) out_ += '^';
    if (take("]")) out_ += "\\]";
    for (;;) {
      if (!more()) return fail("a [ without its ]");
      auto const letter = from_[at_];
      if (letter == ']') break;
      if (is_next("[:")) {
        auto const end = from_.find(":]", at_);
        if (end == from_.npos) return fail("a [: without its :]");
        auto const name = from_.substr(at_ + 2, end - at_ - 2);
        if (name != "digit" && name != "alpha" && name != "upper" && name != "lower" && name != "xdigit")
          return fail(text("[:", name, ":]"));
        out_ += name == "digit"   ? R"(\p{Nd})"
                : name == "alpha" ? R"(\p{Alphabetic})"
                : name == "upper" ? R"(\p{Uppercase})"
                : name == "lower" ? R"(\p{Lowercase})"
                                  : hexadecimal;
        at_ = end + 2;
      } else if (letter == '[') {
        return fail("a class within a class");
      } else if (is_next("&&")) {
        return fail("&& in a class");
      } else if (letter == '\\') {
        escape(true);
      } else {
        auto const bytes = unicode::character_at(from_, at_).bytes;
        if (any_case && bytes > 1) return fail("(?i) of letters that are not ASCII");
        out_ += from_.substr(at_, bytes);
        at_ += bytes;
      }
    }
    ++at_;
    out_ += ']';
  }

  void set(std::string_view of, bool outside, bool in_class) {
    if (in_class) {
      if (outside) return fail("\\W or \\H in a class");
      out_ += of;
    } else {
      out_ += text(outside ? "[^" : "[", of, ']');
    }
  }
  void escape(bool in_class) {
    if (at_ + 1 == from_.size()) return fail("a \\ at the end");
    auto const letter = from_[at_ + 1];
    at_ += 2;
    switch (letter) {
      case 's':
        return set(spaces, false, in_class);
      case 'S':
        if (in_class) return void(out_ += R"(\P{White_Space})");
        return set(spaces, true, in_class);
      case 'w':
      case 'W':
        return set(in_class ? word : word_alone, letter == 'W', in_class);
      case 'h':
      case 'H':
        return set(hexadecimal, letter == 'H', in_class);
      case 'd':
        return void(out_ += R"(\p{Nd})");
      case 'D':
        return void(out_ += R"(\P{Nd})");
      case 'v':
        return void(out_ += R"(\x{b})");
      case 'p':
      case 'P':
        return property(letter);
      case 'u':
      case 'x':
        return code(letter);
      case 'b':
        if (in_class) return void(out_ += R"(\x{8})");
        return void(out_ += text("(?:(?<=[", word_alone, "])(?![", word_alone, "])|(?<![", word_alone, "])(?=[",
                                 word_alone, "]))"));
      case 'B':
        if (in_class) break;
        return void(out_ += text("(?:(?<=[", word_alone, "])(?=[", word_alone, "])|(?<![", word_alone, "])(?![",
                                 word_alone, "]))"));
      case 'n':
      case 't':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        return void(out_.append(1, '\\').append(1, letter));
      case 'A':
      case 'z':
      case 'Z':
        if (in_class) break;
        return void(out_.append(1, '\\').append(1, letter));
      default:
        break;
    }
    bool const is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (is_letter || (letter >= '0' && letter <= '9')) return fail(text('\\', letter));
    at_ -= 1;
    auto const bytes = unicode::character_at(from_, at_).bytes;
    if (bytes == 1) out_ += '\\';
    out_ += from_.substr(at_, bytes);
    at_ += bytes;
  }
  void property(char letter) {
    auto const end = from_.find('}', at_);
    if (!take("{") || end == from_.npos) return fail(text('\\', letter, " without a name in braces"));
    auto name = std::string(from_.substr(at_, end - at_));
    at_ = end + 1;
    bool negative = letter == 'P';
    if (name.starts_with('^')) {
      negative = !negative;
      name.erase(0, 1);
    }
    out_ += text(negative ? "\\P{" : "\\p{", name, '}');
  }
  /// \uHHHH, \xHH or \x{H...}
  void code(char letter) {
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
      if (letter == 'x' && digits.size() == 2 && digits[0] >= '8') return fail("a byte that is no character");
    }
    if (digits.empty() || digits.size() > 6) return fail(text('\\', letter, " without a number"));
    out_ += text("\\x{", digits, '}');
  }

  std::string_view from_;
  std::size_t at_ = 0;
  std::string out_, reason_;
  int depth_ = 0;
};

/// What a Split looks for: a string, or an expression.
///
/// Threads  const; any number of callers.
class split_pattern {
 public:
  [[nodiscard]] static split_pattern of_string(std::string string) {
    split_pattern out;
    out.string_ = std::move(string);
    return out;
  }
  /// Throws what `fail(sentence)` throws, if it is none that can be looked for here.
  template <class Fail>
  [[nodiscard]] static split_pattern of_expression(std::string const& expression, Fail const& fail) {
    split_pattern out;
    out.string_ = expression;
    auto const shown = expression.size() > 200 ? expression.substr(0, 200) + "..." : expression;
#ifdef TRIREME_PCRE2
    expression_translation translation(expression);
    auto const translated = translation();
    if (!translated) {
      fail(text("the regular expression ", shown, " is not read, because of ", translation.reason()));
    } else {
      out.compile(*translated, [&](std::string const& why) {
        fail(text("the regular expression ", shown, " does not compile: ", why));
      });
    }
#else
    fail(text(
        "the regular expression ", shown,
        " is none of GPT-2's, Llama 3's and Qwen 2's, and this program was built without PCRE2, which others need; "
        "install libpcre2-dev and build again (CMake: trireme::utf8proc then takes it)"));
#endif
    return out;
  }

  /// Calls each(begin, end, whether it is a match) for all of a text, in order: matches, and what lies between them.
  template <class Each>
  void for_each_part(std::string_view in, Each const& each) const {
    std::size_t done = 0, from = 0;
    std::optional<std::size_t> last_end;
    while (from <= in.size()) {
      auto const found = find(in, from);
      if (!found) break;
      auto const [begin, end] = *found;
      if (begin == end && last_end == end) {  // nothing, where the match before it ended
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
  static constexpr std::uint32_t most_steps = 10'000'000;     // of one match; Oniguruma's limit too
  static constexpr std::uint32_t most_memory = 256U * 1024U;  // KiB

  template <class Fail>
  void compile(std::string const& expression, Fail const& fail) {
    int problem = 0;
    std::size_t place = 0;
    std::unique_ptr<pcre2_compile_context_8, decltype(&pcre2_compile_context_free_8)> const how(
        pcre2_compile_context_create_8(nullptr), pcre2_compile_context_free_8);
    pcre2_set_newline_8(how.get(), PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit_8(how.get(), 100);
    // ^ and $ are those of lines, as in Ruby.
    constexpr std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE;
    auto* const made = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(expression.data()), expression.size(), options,
                                       &problem, &place, how.get());
    if (made == nullptr) {
      std::array<PCRE2_UCHAR8, 256> said{};
      pcre2_get_error_message_8(problem, said.data(), said.size());
      return fail(reinterpret_cast<char const*>(said.data()));
    }
    code_ = std::shared_ptr<pcre2_code_8 const>(
        made, [](pcre2_code_8 const* it) { pcre2_code_free_8(const_cast<pcre2_code_8*>(it)); });
    pcre2_jit_compile_8(made, PCRE2_JIT_COMPLETE);  // where the library can; if not, it interprets
  }

  /// What a caller needs beside the expression.
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
                              "; it goes back too often: encode shorter texts, or use another tokenizer"));
    }
    auto const* const places = pcre2_get_ovector_pointer_8(own.found);
    return range{places[0], std::max(places[0], places[1])};
  }

  std::shared_ptr<pcre2_code_8 const> code_;
#endif
  std::string string_;
};

/// Which parts of a text become words, and which are joined.
enum class split_behaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Calls take(begin, end) for the words that a Split makes of a text.
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
