#pragma once

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

#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/detail/tokenizer_models.hpp"
#include "trireme/formats/detail/tokenizer_splits.hpp"
#include "trireme/formats/detail/tokenizer_steps.hpp"
#include "trireme/formats/detail/tokenizer_unicode.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/token_stream.hpp"

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
