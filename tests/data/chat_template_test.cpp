#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/chat_lines.hpp"
#include "trireme/data/chat_template.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/tokenizer.hpp"

using namespace trireme;

TEST_CASE("conversations are the tokens and answers of transformers' apply_chat_template", "[data]") {
  scratch const here;
  if (!python_ran("write_chats.py", here.path())) return;
  constexpr std::int64_t context = 512;
  for (auto const format : {data::chat_template::chatml, data::chat_template::llama3}) {
    auto const name = std::string(name_of(format));
    CAPTURE(name);
    auto const words = formats::tokenizer::read(here / (name + ".json"));
    auto const samples = data::chat_lines{.files = here / "chats.jsonl", .context = context, .format = format}.open(
        [&](std::string_view text) { return words.encode(text, formats::special_tokens::without); });
    auto const bytes = formats::read_text(here / (name + ".ids"), 1 << 28);
    std::vector<std::int32_t> expected(bytes.size() / 4);
    std::memcpy(expected.data(), bytes.data(), bytes.size());
    std::vector<std::int32_t> in(context), out(context);
    std::int64_t id = 0, answers = 0;
    for (std::size_t at = 0; at < expected.size(); ++id) {
      REQUIRE(id < samples.size());
      samples.read(std::span(&id, 1), in.data(), out.data());
      auto const count = static_cast<std::size_t>(expected[at]);
      REQUIRE(count <= static_cast<std::size_t>(context));
      auto const* const ids = expected.data() + at + 1;
      auto const* const mask = ids + count;
      std::vector<std::int32_t> inputs(ids, ids + count), targets;
      for (std::size_t t = 1; t < count; ++t) targets.push_back(mask[t] != 0 ? ids[t] : -1);
      for (auto const target : targets) answers += target != -1 ? 1 : 0;
      inputs.resize(in.size(), 0);
      targets.resize(out.size(), -1);
      CAPTURE(id);
      CHECK(in == inputs);
      CHECK(out == targets);
      at += 1 + 2 * count;
    }
    CHECK(id == samples.size());
    CHECK(samples.target_count() == answers);
    CHECK(answers > 1000);
  }
}

TEST_CASE("the usual spellings of templates are recognised, and others are not taken for them", "[data]") {
  using data::chat_template;
  using data::chat_template_of;
  std::string const chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
      "'\\n'}}{% endfor %}";
  CHECK(chat_template_of(chatml) == chat_template::chatml);
  CHECK(chat_template_of(chatml + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}") ==
        chat_template::chatml);
  CHECK(
      chat_template_of("{%- for message in messages %}\n    {{- \"<|im_start|>\" + message[\"role\"] + \"\\n\" + "
                       "message['content'] + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
                       "    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n") == chat_template::chatml);
  std::string const llama3 =
      "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
      "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 "
      "%}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}";
  CHECK(chat_template_of("{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
                         "'<|im_end|>\\n' }}{% endfor %}") == chat_template::chatml);
  CHECK(chat_template_of(llama3) == chat_template::llama3);
  // JSON's "\n" is a line end in the template's quotes, as in most files of models.
  for (auto const& [spelled, kind] :
       {std::pair(chatml, chat_template::chatml), std::pair(llama3, chat_template::llama3)}) {
    auto raw = spelled;
    for (auto at = raw.find("\\n"); at != std::string::npos; at = raw.find("\\n")) raw.replace(at, 2, "\n");
    CHECK(chat_template_of(raw) == kind);
  }
  for (auto const& other :
       {chatml + "!", "x" + chatml, chatml.substr(1), chatml.substr(0, 40), std::string(), "{{ 'Today is ' }}" + llama3,
        "{{ bos_token }}\n" + chatml, chatml.substr(0, 29) + "\n {{ message }}" + chatml.substr(29)}) {
    CAPTURE(other);
    CHECK(!chat_template_of(other));
  }
  scratch const here;
  auto const said = [&] { return sentence_of([&] { static_cast<void>(data::chat_template_in(here.path())); }); };
  CHECK(contains(said(), "has neither chat_template.jinja nor tokenizer_config.json"));
  std::ofstream(here / "tokenizer_config.json") << "{\"a\": 1}";
  CHECK(contains(said(), "has no \"chat_template\""));
  std::ofstream(here / "tokenizer_config.json") << "{\"chat_template\": \"{{ 1 }}\"}";
  CHECK(contains(said(), "is not one of those that are known here"));
  std::ofstream(here / "chat_template.jinja") << llama3;
  CHECK(data::chat_template_in(here.path()) == chat_template::llama3);
}
