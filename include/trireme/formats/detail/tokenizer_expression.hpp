#pragma once

#ifdef TRIREME_PCRE2
#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 0  // without the macros that rename functions by their code unit width
#endif
#include <pcre2.h>
#endif

#include <algorithm>
#include <array>
#include <charconv>
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
#include "trireme/formats/detail/tokenizer_characters.hpp"
#include "trireme/formats/detail/tokenizer_unicode.hpp"

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
