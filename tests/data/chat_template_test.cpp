#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "trireme/data/chat_lines.hpp"
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
