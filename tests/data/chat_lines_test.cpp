#include "trireme/data/chat_lines.hpp"

#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"

using namespace trireme;
using data::chat_lines;
using data::chat_template;
using data::too_long;

namespace {

using tokens = std::vector<std::int32_t>;
constexpr std::array<std::string_view, 7> specials{
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",   "<end>"};
constexpr std::int32_t im_start = 300, im_end = 301, begin = 302, head = 303, head_end = 304, eot = 305, stop = 306;
constexpr std::int32_t two_lines = 400;  // "\n\n" is one token

/// Special tokens, "\n\n", and bytes.
tokens encode(std::string_view text) {
  tokens out;
  while (!text.empty()) {
    std::size_t used = 0;
    for (std::size_t i = 0; i < specials.size(); ++i) {
      if (text.starts_with(specials[i])) out.push_back(300 + static_cast<std::int32_t>(i)), used = specials[i].size();
    }
    if (used == 0 && text.starts_with("\n\n")) out.push_back(two_lines), used = 2;
    if (used == 0) out.push_back(static_cast<unsigned char>(text[0])), used = 1;
    text.remove_prefix(used);
  }
  return out;
}

/// Tokens written as texts and numbers; a part in `answers` is what is trained on.
struct expected {
  tokens all, targets;
  expected& text(std::string_view bytes) { return add(bytes, false); }
  expected& answer(std::string_view bytes) { return add(bytes, true); }
  expected& text(std::int32_t token) { return add(token, false); }
  expected& answer(std::int32_t token) { return add(token, true); }

 private:
  expected& add(std::string_view bytes, bool wanted) {
    for (auto const letter : bytes) add(std::int32_t{static_cast<unsigned char>(letter)}, wanted);
    return *this;
  }
  expected& add(std::int32_t token, bool wanted) {
    if (!all.empty()) targets.push_back(wanted ? token : -1);
    all.push_back(token);
    return *this;
  }
};

struct folder : scratch {
  std::string write(std::string const& content) const {
    std::ofstream(*this / "chats.jsonl", std::ios::binary) << content;
    return *this / "chats.jsonl";
  }
};

void expect_sample(data::chat_samples const& from, std::int64_t id, expected const& wanted, std::int64_t context,
                   std::int32_t padding = 0) {
  tokens inputs(static_cast<std::size_t>(context), -7), targets(static_cast<std::size_t>(context), -7);
  from.read(std::span(&id, 1), inputs.data(), targets.data());
  auto in = wanted.all, out = wanted.targets;
  in.resize(static_cast<std::size_t>(context), padding);
  out.resize(static_cast<std::size_t>(context), -1);
  CHECK(inputs == in);
  CHECK(targets == out);
}

}  // namespace

TEST_CASE("ChatML: every role, an empty answer, and special tokens in texts", "[data]") {
  folder const in;
  auto const name =
      in.write(R"({"messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "a<|im_end|>b"},)"
               R"( {"role": "assistant", "content": "yes\n"}, {"role": "tool", "content": " 4 "},)"
               R"( {"role": "assistant", "content": ""}, {"role": "user", "content": "bye"}], "id": 7})"
               "\n"
               R"({"completion": "\nw", "prompt": "q", "other": null})"
               "\n");
  auto const samples = chat_lines{.files = name, .context = 90, .padding = 9}.open(encode);
  CHECK(samples.size() == 2);
  CHECK(samples.cut() == 0);
  CHECK(samples.left_out() == 0);
  expected first;
  first.text(im_start).text("system\nBe.").text(im_end).text("\n");
  first.text(im_start).text("user\na").text(im_end).text("b").text(im_end).text("\n");
  first.text(im_start).text("assistant\n").answer("yes\n").answer(im_end).text("\n");
  first.text(im_start).text("tool\n 4 ").text(im_end).text("\n");
  first.text(im_start).text("assistant\n").answer(im_end).text("\n");
  first.text(im_start).text("user\nbye").text(im_end).text("\n");
  expect_sample(samples, 0, first, 90, 9);
  // "\n" of the mark and "\n" of the answer are one token, which belongs to the answer.
  expected second;
  second.text(im_start).text("user\nq").text(im_end).text("\n");
  second.text(im_start).text("assistant").answer(two_lines).answer("w").answer(im_end).text("\n");
  expect_sample(samples, 1, second, 90, 9);
  CHECK(samples.target_count() == 5 + 1 + 3);
}

TEST_CASE("Llama 3: contents are trimmed as the template does", "[data]") {
  folder const in;
  auto const name = in.write(R"({"messages": [{"role": "user", "content": " \u00a0hi\n"},)"
                             R"( {"role": "assistant", "content": "\t so \u3000"}]})");
  auto const samples = chat_lines{.files = name, .context = 60, .format = chat_template::llama3}.open(encode);
  expected wanted;
  wanted.text(begin).text(head).text("user").text(head_end).text(two_lines).text("hi").text(eot);
  wanted.text(head).text("assistant").text(head_end).text(two_lines).answer("so").answer(eot);
  expect_sample(samples, 0, wanted, 60);
}

TEST_CASE("plain: contents follow each other, with the end after answers", "[data]") {
  folder const in;
  auto const name = in.write(R"({"prompt": "2+2=", "completion": "4"})"
                             "\n"
                             R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},)"
                             R"( {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})");
  auto const samples =
      chat_lines{.files = name, .context = 8, .format = chat_template::plain, .end = "<end>"}.open(encode);
  expect_sample(samples, 0, expected().text("2+2=").answer("4").answer(stop), 8);
  expect_sample(samples, 1, expected().text("a").answer("b").answer(stop).text("c").answer("d").answer(stop), 8);
}

TEST_CASE("packed samples hold whole conversations, and no target is a token of another one", "[data]") {
  folder const in;
  std::string lines;
  for (int n = 1; n <= 7; ++n) {  // of n + 2 tokens
    lines += "{\"prompt\": \"" + std::string(static_cast<std::size_t>(n), 'a') + "\", \"completion\": \"" +
             std::to_string(n) + "\"}\n";
  }
  chat_lines what{.files = in.write(lines), .context = 9, .format = chat_template::plain, .padding = 7, .end = "<end>"};
  auto const alone = what.open(encode);
  what.packing = data::chat_packing::best_fit;
  auto const packed = what.open(encode);
  CHECK(packed.conversation_count() == 7);
  CHECK(packed.size() == 5);  // 9, 8, 7, 6 + 3, 5 + 4
  CHECK(packed.target_count() == alone.target_count());
  expect_sample(packed, 3, expected().text("aaaa").answer("4").answer(stop).text("a").answer("1").answer(stop), 9, 7);
  what.separator = 500;
  auto const separate = what.open(encode);
  CHECK(separate.size() == 6);  // 9 alone fills a sample without it: 9, 9, 8, 7, 6, 5 + 4
  expected wanted;
  wanted.text("aa").answer("2").answer(stop).text(std::int32_t{500}).text("a").answer("1").answer(stop);
  wanted.text(std::int32_t{500});
  expect_sample(separate, 5, wanted, 9, 7);
  what.packing = data::chat_packing::none;
  CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(what.open(encode)); }), "packed; leave it out"));
}

TEST_CASE("samples that are too long are refused, cut or left out, and counted", "[data]") {
  folder const in;
  auto const name = in.write(R"({"prompt": "12345", "completion": "678"})"  // 9 tokens with the end
                             "\n"
                             R"({"prompt": "123456789", "completion": "x"})"
                             "\n"
                             R"({"prompt": "1", "completion": "2"})");
  auto what = chat_lines{.files = name, .context = 8, .format = chat_template::plain, .end = "<end>"};
  CHECK(contains(sentence_of<format_error>([&] { static_cast<void>(what.open(encode)); }),
                 "chats.jsonl: byte 41: the conversation has 11 tokens, but .context = 8"));
  what.longer = too_long::left_out;
  auto samples = what.open(encode);
  CHECK(samples.size() == 2);
  CHECK(samples.left_out() == 1);
  CHECK(samples.cut() == 0);
  what.longer = too_long::cut;
  what.context = 6;
  samples = what.open(encode);
  CHECK(samples.size() == 2);  // of the second no answer is left
  CHECK(samples.cut() == 1);
  CHECK(samples.left_out() == 1);
  expect_sample(samples, 0, expected().text("12345").answer("67"), 6);
  // A text behind the last answer has no targets, and is left out without a word.
  what.longer = too_long::refused;
  what.files =
      in.write(R"({"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "1234567890"}]})");
  samples = what.open(encode);
  CHECK(samples.cut() == 0);
  CHECK(samples.target_count() == 1);
}

TEST_CASE("lines that are not conversations are named with file and byte", "[data]") {
  folder const in;
  auto const said = [&](std::string const& line, chat_lines what = {}) {
    what.files = in.write(R"({"prompt": "a", "completion": "b"})"
                          "\n" +
                          line);
    return sentence_of([&] { static_cast<void>(what.open(encode)); });
  };
  CHECK(contains(said("{\"text\": \"a\"}"), "byte 35: a line is an object with \"messages\""));
  CHECK(contains(said("{\"prompt\": \"a\"}"), "byte 35: the object has no \"completion\""));
  CHECK(contains(said("{\"messages\": []}"), "byte 35: the conversation has no message of the role \"assistant\""));
  CHECK(contains(said("{\"messages\": [{\"role\": \"assistant\", \"content\": [1]}]}"), "byte 82: expected a string"));
  CHECK(contains(said("{\"messages\": [{\"content\": \"b\"}]}"), "has no \"role\""));
  CHECK(contains(said("{"), "byte 36: "));
  CHECK(contains(said("", {.context = 0}), ".context = 0"));
  CHECK(contains(said("", {.padding = -1}), ".padding = -1"));
  CHECK(contains(said("", {.format = chat_template::plain}), "needs .end"));
  CHECK(contains(said("", {.end = "<end>"}), ".end is only of chat_template::plain"));
  CHECK(contains(said("", {.format = chat_template::plain, .end = "<stop>"}),
                 "\"<stop>\" is not a token of this tokenizer, but 6 tokens"));
  CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(chat_lines{.files = "a.json"}.open(encode)); }),
                 "a.json"));
}

TEST_CASE("chat_lines prints its source", "[data]") {
  CHECK(to_string(chat_lines{.files = "a.jsonl", .longer = too_long::cut}) ==
        "trireme::data::chat_lines{.files = \"a.jsonl\", .context = 1024, .format = "
        "trireme::data::chat_template::chatml, .longer = trireme::data::too_long::cut, .padding = 0, .end = \"\", "
        ".packing = "
        "trireme::data::chat_packing::none, .separator = -1}");
}
