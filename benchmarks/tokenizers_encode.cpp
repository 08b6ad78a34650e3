// Encodes a text with a tokenizer file, as a whole and line by line; started by benchmarks/tokenizers.py.
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/formats/tokenizer.hpp"

int main(int count, char** arguments) {
  using namespace trireme;
  if (count != 3) return std::fprintf(stderr, "usage: tokenizers_encode TOKENIZER.json TEXT\n"), 2;
  auto const words = formats::tokenizer::read(arguments[1]);
  auto const text = formats::read_text(arguments[2]);
  auto const rate = [&](auto const& encode) {  // bytes per second of CPU time, in millions
    auto const start = std::clock();
    std::size_t const tokens = encode();
    auto const seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    return std::pair(static_cast<double>(text.size()) / seconds / 1e6, tokens);
  };
  auto const whole = rate([&] { return words.encode(text, formats::special_tokens::without).size(); });
  auto const lines = rate([&] {
    std::size_t tokens = 0;
    formats::word_memory known;
    for (std::string_view left = text; !left.empty();) {
      auto const end = left.find('\n');
      tokens += words.encode(left.substr(0, end), known, formats::special_tokens::without).size();
      left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
    }
    return tokens;
  });
  std::printf("{\"whole\": %.2f, \"whole_tokens\": %zu, \"lines\": %.2f, \"lines_tokens\": %zu}\n", whole.first,
              whole.second, lines.first, lines.second);
}
