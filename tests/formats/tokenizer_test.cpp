// test-timeout: 600
#include "trireme/formats/tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "scratch.hpp"
#include "tokenizer_cases.hpp"

using namespace trireme;
using formats::special_tokens;
using formats::tokenizer;
using tokenizer_cases::golden_file;

namespace {

/// Compares with all results in a folder of make_tokenizers.py.
void expect_equal(std::string const& folder, std::vector<std::string> const& kinds) {
  auto const inputs = tokenizer_cases::inputs(folder);
  for (auto const& kind : kinds) {
    auto const path = folder + "/" + kind;
    auto const made = tokenizer::read(path + ".json");
    formats::word_memory known;
    tokenizer_cases::expect_equal(path, inputs, made, [&](auto const& input) { return made.encode(input, known); });
    INFO(kind);
    tokenizer_cases::numbers pairs(path + ".pairs");
    for (std::size_t i = inputs.size() - 8; !pairs.done(); i += 2) {
      auto const both = made.encode_pair(inputs[i], inputs[i + 1]);
      auto const count = pairs.number();
      CHECK(both.ids == pairs.ids(count));
      CHECK(both.segments == pairs.ids(count));
    }
  }
}

/// A small tokenizer file, with some members replaced.
formats::json::value small() {
  return formats::json::parse(R"({"added_tokens": [{"id": 3, "content": "<end>", "special": true}],
    "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ã": 4, "©": 5}, "merges": [["a", "b"]]}})",
                              "small");
}
std::string refused(formats::json::value const& file) {
  return sentence_of<format_error>(
      [&] { static_cast<void>(tokenizer::parse(formats::json::to_string(file), "tokenizer.json")); });
}

std::vector<std::string> all_kinds() {
  return {
#ifdef TRIREME_PCRE2
      "deepseek",
#endif
      "gpt2",       "roberta", "llama3",  "qwen2",   "smollm2", "llama2", "bert",
      "bert_cased", "forms",   "unigram", "mistral", "t5",      "albert"};
}

}  // namespace

TEST_CASE("tokenizers give the tokens of the package tokenizers for texts in many scripts", "[formats][tokenizer]") {
  expect_equal(golden_file(""), all_kinds());
}

TEST_CASE("tokenizers equal the package tokenizers on a long text and on random inputs", "[formats][tokenizer]") {
  scratch dir;
  if (!tokenizer_cases::make(dir.path(), "")) return;
  auto kinds = all_kinds();
  std::erase_if(kinds, [&](auto const& kind) { return !std::filesystem::exists(dir.path() + "/" + kind + ".json"); });
  if (kinds.size() < all_kinds().size()) missing("the package sentencepiece is missing: two kinds were left out");
  expect_equal(dir.path(), kinds);
}

TEST_CASE("a stream of tokens decodes to the same text as all tokens at once", "[formats][tokenizer]") {
  auto const inputs = tokenizer_cases::inputs(golden_file(""));
  for (auto const* const kind : {"gpt2", "llama2", "bert_cased", "t5", "mistral"}) {
    auto const made = tokenizer::read(golden_file(kind) + ".json");
    for (auto const& input : inputs) {
      auto const ids = made.encode(input, special_tokens::without);
      auto const whole = made.decode(ids);
      if (whole.ends_with("\xef\xbf\xbd")) continue;  // held back, because it may be the beginning of a character
      formats::token_stream stream(made);
      std::string pieces;
      for (auto const id : ids) pieces += stream.add(id);
      INFO(kind << ": " << input);
      CHECK(pieces == whole);
    }
  }
}

TEST_CASE("characters of several tokens appear whole", "[formats][tokenizer]") {
  auto const made = tokenizer::parse(formats::json::to_string(small()), "small");
  formats::token_stream stream(made);
  CHECK(stream.add(2) == "ab");
  CHECK(stream.add(4).empty());
  CHECK(stream.add(5) == "\xc3\xa9");
  CHECK(stream.add(3).empty());  // a special token
  CHECK(made.decode(std::vector<std::int32_t>{2, 4, 0}) ==
        "ab\xef\xbf\xbd"
        "a");
  CHECK(made.decode(std::vector<std::int32_t>{2, 3}, special_tokens::with) == "ab<end>");
  CHECK(made.vocabulary() == 6);
  CHECK(made.id_of("<end>") == 3);
  CHECK_FALSE(made.id_of("c"));
  CHECK(*made.token_of(2) == "ab");
}

TEST_CASE("an unknown feature of a tokenizer file is refused by name", "[formats][tokenizer]") {
  namespace json = formats::json;
  auto const with = [&](char const* key, char const* content) {
    auto file = small();
    file.set(key, json::parse(content, "content"));
    return refused(file);
  };
  CHECK(contains(with("model", R"({"type": "WordLevel"})"), "a model of type \"WordLevel\" is not supported"));
  CHECK(
      contains(with("normalizer", R"({"type": "ByteLevel"})"), "a normalizer of type \"ByteLevel\" is not supported"));
  CHECK(contains(with("pre_tokenizer", R"({"type": "Whitespace"})"), "a pre-tokenizer of type \"Whitespace\""));
  CHECK(contains(with("decoder", R"({"type": "CTC"})"), "a decoder of type \"CTC\""));
  CHECK(contains(with("post_processor", R"({"type": "X"})"), "a post-processor of type \"X\""));
  auto const split = [&](std::string const& expression) {
    auto const step = formats::json::to_string(json::value::make(
        {{"type", "Split"}, {"pattern", json::value::make({{"Regex", expression}})}, {"behavior", "Isolated"}}));
    return with("pre_tokenizer", step.c_str());
  };
#ifdef TRIREME_PCRE2
  CHECK(split("\\d").empty());
  CHECK(contains(split("(a"), "the regular expression (a is not supported, because of a ( without its )"));
  CHECK(contains(split("a{3,1}"), "the regular expression a{3,1} does not compile: "));
  CHECK(contains(split("\\p{Nothing}"), "does not compile: "));
  for (auto const* const other : {"(a)\\1", "\\G.", "[a&&b]", "[a[b]]", "(?<n>a)", "(?i)ss", "\\Qa", "a)", "[a"})
    CHECK(contains(split(other), "is not supported, because of "));
#else
  CHECK(contains(split("\\d"), "the regular expression \\d is not one of GPT-2's"));
  CHECK(contains(split("\\d"), "install libpcre2-dev"));
#endif
  CHECK(contains(with("pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Kept"})"),
                 "the behavior of a Split is Removed, Isolated"));
  CHECK(contains(with("normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "ABCD"})"),
                 "this is not a map of characters"));
  CHECK(contains(with("normalizer", R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""})"),
                 "a Replace with a regular expression is not supported"));
  CHECK(contains(with("decoder", R"({"type": "Metaspace", "replacement": "ab"})"), "a replacement is one character"));
  CHECK(contains(with("decoder", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"),
                 "a prepend_scheme is always, first or never"));
  CHECK(contains(with("model", R"({"type": "Unigram", "vocab": [["a", -1], ["a", -2]]})"), "\"a\" occurs twice"));
  CHECK(contains(with("model", R"({"type": "Unigram", "vocab": [["a", -1]], "unk_id": 1})"), "has only 1 token"));
  auto first = small();
  first.set("pre_tokenizer",
            json::parse(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"})", "content"));
  first.set("normalizer", json::parse(R"({"type": "Strip"})", "content"));
  CHECK(contains(refused(first), "a normalizer that may remove the beginning of a text is not supported"));
  auto const model = [&](char const* key, char const* content) {
    auto file = small();
    auto changed = file.at("model");
    changed.set(key, json::parse(content, "content"));
    file.set("model", changed);
    return refused(file);
  };
  CHECK(contains(model("dropout", "0.1"), "skips merges at random"));
  CHECK(contains(model("end_of_word_suffix", R"("</w>")"), "end_of_word_suffix is not supported"));
  CHECK(contains(model("merges", R"(["a c"])"), "the vocabulary lacks at least one of"));
  CHECK(contains(model("merges", R"(["ab"])"), "two tokens with one space between them"));
  CHECK(contains(model("vocab", R"({"a": 0, "b": 0})"), "also that of another token"));
  CHECK(contains(model("vocab", R"({"a": 16777216})"), "from 0 to 16777215"));
  CHECK(contains(model("unk_token", R"("?")"), "the vocabulary has no token \"?\""));
}

TEST_CASE("a Split gives the words of the package tokenizers, for each behavior", "[formats][tokenizer]") {
  using formats::detail::split_behaviour;
  using words = std::vector<std::string>;
  auto const made = [](formats::detail::split_pattern const& pattern, split_behaviour how, bool inverted,
                       std::string_view text) {
    words out;
    formats::detail::split_by(pattern, how, inverted, text, [&](std::size_t begin, std::size_t end) {
      out.emplace_back(text.substr(begin, end - begin));
    });
    return out;
  };
  auto const dash = formats::detail::split_pattern::of_string("-");
  auto const* const text = "the-final--countdown";
  CHECK(made(dash, split_behaviour::removed, false, text) == words{"the", "final", "countdown"});
  CHECK(made(dash, split_behaviour::removed, true, text) == words{"-", "-", "-"});
  CHECK(made(dash, split_behaviour::isolated, false, text) == words{"the", "-", "final", "-", "-", "countdown"});
  CHECK(made(dash, split_behaviour::merged_with_previous, false, text) == words{"the-", "final-", "-", "countdown"});
  CHECK(made(dash, split_behaviour::merged_with_next, false, text) == words{"the", "-final", "-", "-countdown"});
  CHECK(made(dash, split_behaviour::contiguous, false, text) == words{"the", "-", "final", "--", "countdown"});
  CHECK(made(formats::detail::split_pattern::of_string(""), split_behaviour::isolated, false, "a\xc3\xa9") ==
        words{"a", "\xc3\xa9"});
#ifdef TRIREME_PCRE2
  auto const of = [](std::string const& expression) {
    return formats::detail::split_pattern::of_expression(expression,
                                                         [](std::string const& why) { throw config_error(why); });
  };
  // As in Oniguruma: U+0085 is a space, \h a hexadecimal digit, + after a brace repeats, (?m) applies to line ends.
  CHECK(made(of("\\s"), split_behaviour::removed, false,
             "a\xc2\x85"
             "b") == words{"a", "b"});
  CHECK(made(of("\\h+"), split_behaviour::isolated, false, "xfacez") == words{"x", "face", "z"});
  CHECK(made(of("a{1,2}+b"), split_behaviour::isolated, false, "caaab") == words{"c", "aaab"});
  CHECK(made(of("(?m:a.)"), split_behaviour::isolated, false, "ba\nc") == words{"b", "a\n", "c"});
  CHECK(made(of("^."), split_behaviour::isolated, false, "ab\ncd") == words{"a", "b\n", "c", "d"});
  CHECK(made(of("x(?i)a|b"), split_behaviour::removed, true, "xB b xa") == words{"xB", "xa"});
  // Characters and properties that an old PCRE2 does not have: U+31350 and U+10D4A (letters), U+1E5F1 (a number),
  // U+10D69 (a mark), U+1CD00 (a symbol), U+A7DA and U+A7DB (upper and lower case), U+10FC (lower case in recent
  // versions).
  auto const removed = [&](std::string const& expression, std::string const& text) {
    std::string out;
    for (auto const& word : made(of(expression), split_behaviour::removed, false, text)) out += word + "|";
    return out;
  };
  std::string const ideograph = "\xf0\xb1\x8d\x90", letter = "\xf0\x90\xb5\x8a", number = "\xf0\x9e\x97\xb1",
                    mark = "\xf0\x90\xb5\xa9", symbol = "\xf0\x9c\xb4\x80", upper = "\xea\x9f\x9a",
                    lower = "\xea\x9f\x9b", late = "\xe1\x83\xbc";
  auto const all = "-" + ideograph + letter + number + mark + symbol + upper + lower + late + "!";
  CHECK(removed("[\\p{L}\\p{M}]+", all) == "-|" + number + "|" + symbol + "|!|");
  CHECK(removed("\\P{L}+", all) == ideograph + letter + "|" + upper + lower + late + "|");
  CHECK(removed("[^\\P{L}]+", all) == "-|" + number + mark + symbol + "|!|");
  CHECK(removed("[-\\P{L}]+", all) == ideograph + letter + "|" + upper + lower + late + "|");
  CHECK(removed("[\\p{N}-]+", all) == ideograph + letter + "|" + mark + symbol + upper + lower + late + "!|");
  CHECK(removed("[^\\s\\p{L}\\p{N}]+", all) == ideograph + letter + number + "|" + upper + lower + late + "|");
  CHECK(removed("\\p{Cn}|\\p{C}", all) == all + "|");
  CHECK(removed("[^\\p{C}]+", all).empty());
  CHECK(removed("\\w+", all) == "-|" + symbol + "|!|");
  CHECK(removed("\\W+", all) == ideograph + letter + number + mark + "|" + upper + lower + late + "|");
  CHECK(removed("[[:lower:]]+", all) == "-" + ideograph + letter + number + mark + symbol + upper + "|!|");
  CHECK(removed("\\p{^Uppercase}+", all) == upper + "|");
  CHECK(removed("[\\-\\p{Zs}]+", "a- b-c") == "a|b|c|");
  // A script contains only characters that belong to it alone: U+3001 belongs to several.
  std::string const comma = "\xe3\x80\x81", han = "\xe6\xbc\xa2";
  CHECK(removed("\\p{Han}+", comma + han + ideograph + letter) == comma + "|" + letter + "|");
  CHECK(removed("[^\\p{HAN}a]+", comma + han + ideograph + letter) == han + ideograph + "|");
  CHECK(removed("\\P{han}", comma + han + ideograph + letter) == han + ideograph + "|");
  // A pattern that would backtrack for years soon gives an error.
  auto const sentence = sentence_of<config_error>([&] {
    static_cast<void>(made(of("(a|a)*b|(a+)+c"), split_behaviour::isolated, false, std::string(60, 'a') + "d"));
  });
  CHECK((sentence.empty() || contains(sentence, "takes too many steps")));
  CHECK(contains(sentence_of<config_error>([&] {
                   static_cast<void>(made(of("(?:a?){40}a{40}(?:a|aa)+$"), split_behaviour::isolated, false,
                                          std::string(60, 'a') + "d"));
                 }),
                 "takes too many steps"));
#endif
}

TEST_CASE("a text that is not UTF-8 is refused", "[formats][tokenizer]") {
  auto const made = tokenizer::read(golden_file("gpt2.json"));
  for (auto const* const bad : {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xf0\x9f\x98"}) {
    CHECK(contains(sentence_of<format_error>([&] { static_cast<void>(made.encode(bad)); }), "byte 2: it is not UTF-8"));
  }
}

TEST_CASE("text without a token is refused if the file has no unknown token", "[formats][tokenizer]") {
  auto const made =
      tokenizer::parse(R"({"model": {"type": "Unigram", "vocab": [["a", -1], ["b", -1], ["ab", -3]]}})", "t");
  CHECK(made.encode("aab") == std::vector<std::int32_t>{0, 0, 1});
  CHECK(
      contains(sentence_of<config_error>([&] { static_cast<void>(made.encode("abc")); }), "no token stands for \"c\""));
}

TEST_CASE("the time for a word of a million characters is proportional to its length", "[formats][tokenizer]") {
  auto const made = tokenizer::read(golden_file("gpt2.json"));
  std::string const word(1'000'000, 'a');
  CHECK(made.decode(made.encode(word)) == word);
  auto const pieces = tokenizer::read(golden_file("t5.json"));
  CHECK(pieces.encode(word).size() > 100'000);
  CHECK(tokenizer::read(golden_file("bert.json")).encode(word).size() == 3);  // [CLS] [UNK] [SEP]
}
