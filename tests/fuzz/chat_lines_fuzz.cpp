// JSON lines as documents and as conversations. Besides not crashing: answers are parts of the text, in order, and each
// error has its place in the input.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "trireme/data/chat_lines.hpp"
#include "trireme/data/documents.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace trireme::data;
  detail::document_block const block{{}, {reinterpret_cast<char const*>(data), size}};
  auto const try_it = [&](auto parse) {
    try {
      parse();
    } catch (trireme::format_error const& error) {
      if (error.path() != "input.jsonl" || error.offset() > size) std::abort();
    }
  };
  for (auto const format : {chat_template::chatml, chat_template::llama3, chat_template::plain}) {
    chat_lines const from{.format = format, .end = format == chat_template::plain ? "</s>" : ""};
    try_it([&] {
      auto const read = [&](trireme::formats::json::value const& line) { return detail::chat_text_of(from, line); };
      detail::for_each_json_line(block, "input.jsonl", read, [&](detail::chat_text const& chat, std::uint64_t at) {
        if (at >= size) std::abort();
        std::size_t done = 0;
        for (auto const& answer : chat.answers) {
          if (answer.begin < done || answer.end <= answer.begin || answer.end > chat.text.size()) std::abort();
          auto const part = std::string_view(chat.text).substr(answer.begin, answer.end - answer.begin);
          if (!part.ends_with(detail::end_mark(from))) std::abort();
          done = answer.end;
        }
        if (done == 0) std::abort();
      });
    });
  }
  for (auto const* const name : {"input.jsonl", "input.txt"}) {
    try_it([&] {
      detail::for_each_document({}, block, name, [&](std::string_view, std::uint64_t at) {
        if (at > size) std::abort();
      });
    });
  }
  return 0;
}
