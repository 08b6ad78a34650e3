#include "trireme/data/text_tokens.hpp"

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;

namespace {

struct folder : scratch {
  [[nodiscard]] std::string write(std::string const& content) const {
    std::ofstream(*this / "text", std::ios::binary) << content;
    return *this / "text";
  }
};

/// Each byte is a token, except those below 'a'.
std::vector<std::int32_t> letters(std::string_view text) {
  std::vector<std::int32_t> out;
  for (auto const letter : text) out.push_back(static_cast<unsigned char>(letter) - 'a');
  return out;
}

std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> read(data::packed_windows const& windows,
                                                                     std::vector<std::int64_t> const& ids) {
  auto const count = ids.size() * static_cast<std::size_t>(windows.input_shape().size());
  std::vector<std::int32_t> in(count, -7), out(count, -7);
  windows.read(ids, in.data(), out.data());
  return {in, out};
}
using tokens = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("tokens of a text are windows whose targets are one token ahead", "[data][text_tokens]") {
  folder const here;
  data::text_tokens const text{.path = here.write("abcdefghij"), .context = 3};
  static_assert(dataset<data::packed_windows>);
  auto const training = text.open(letters);
  CHECK(training.size() == 3);
  CHECK(read(training, {2, 0}) == std::pair(tokens{6, 7, 8, 0, 1, 2}, tokens{7, 8, 9, 1, 2, 3}));
  auto const held_out = text.open_held_out(letters);
  CHECK(held_out.size() == 3);
  CHECK(read(held_out, {1}) == std::pair(tokens{3, 4, 5}, tokens{4, 5, -1}));
  CHECK(held_out.first(2).size() == 2);
  CHECK(held_out.first(9).size() == 3);
  CHECK(held_out.token_count() == 10);
}

TEST_CASE("documents are packed with a separator, after which there is no target", "[data][text_tokens]") {
  folder const here;
  data::text_tokens const text{
      .path = here.write("abc\n\nd\n\n\n\nef"), .context = 4, .document_end = "\n\n", .separator = 99};
  auto const training = text.open(letters);
  CHECK(tokens(training.tokens().begin(), training.tokens().end()) == tokens{0, 1, 2, 99, 3, 99, 4, 5, 99});
  CHECK(read(training, {0, 1}) == std::pair(tokens{0, 1, 2, 99, 3, 99, 4, 5}, tokens{1, 2, 99, -1, 99, -1, 5, 99}));
}

TEST_CASE("a character that the border of a range cuts is in neither part", "[data][text_tokens]") {
  folder const here;
  std::string const euro = "\xe2\x82\xac";
  auto const path = here.write("ab" + euro + "cd");
  auto const from = [&](std::int64_t first, std::int64_t last) {
    std::string seen;
    static_cast<void>(
        data::text_tokens{.path = path, .context = 1, .first_byte = first, .last_byte = last}.open_held_out(
            [&](std::string_view part) {
              seen = part;
              return letters(part);
            }));
    return seen;
  };
  CHECK(from(0, -1) == "ab" + euro + "cd");
  CHECK(from(0, 1) == "ab");
  CHECK(from(0, 2) == "ab");
  CHECK(from(0, 3) == "ab");
  CHECK(from(0, 4) == "ab" + euro);
  CHECK(from(2, 5) == euro + "c");
  CHECK(from(3, 6) == "cd");
  CHECK(from(4, 6) == "cd");
}

TEST_CASE("a text of too few tokens, and a range outside the file, are refused", "[data][text_tokens]") {
  folder const here;
  auto const path = here.write("abc");
  CHECK(contains(sentence_of<config_error>(
                     [&] { static_cast<void>(data::text_tokens{.path = path, .context = 3}.open(letters)); }),
                 "3 tokens, but one window of .context = 3 needs one more than that many"));
  CHECK(contains(sentence_of<config_error>([&] {
                   static_cast<void>(data::text_tokens{.path = path, .context = 1, .last_byte = 3}.open(letters));
                 }),
                 "bytes 0 to 3 are not a range of the file, which has 3 bytes"));
}
