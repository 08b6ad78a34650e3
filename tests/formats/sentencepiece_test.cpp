// test-timeout: 600
#include "trireme/formats/sentencepiece.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "scratch.hpp"
#include "tokenizer_cases.hpp"
#include "trireme/formats/token_stream.hpp"

using namespace trireme;
using tokenizer_cases::golden_file;

namespace {

char const* const kinds[] = {"pieces_unigram", "pieces_bpe"};

void expect_equal(std::string const& folder) {
  auto const inputs = tokenizer_cases::inputs(folder);
  for (auto const* const kind : kinds) {
    auto const made = formats::sentencepiece::read(folder + "/" + kind + ".model");
    // "..." and "." have the score of "." and "...": the result depends on the library's version.
    auto const unigram = kind == std::string("pieces_unigram");
    tokenizer_cases::expect_equal(
        folder + "/" + kind, inputs, made, [&](auto const& input) { return made.encode(input); }, unigram);
  }
}

}  // namespace

TEST_CASE("sentencepiece files give the package's tokens for texts in many scripts", "[formats][sentencepiece]") {
  expect_equal(golden_file(""));
}

TEST_CASE("files of sentencepiece equal the package on lines of a long text and on random inputs",
          "[formats][sentencepiece]") {
  scratch dir;
  if (!tokenizer_cases::make(dir.path(), "--lines --kinds pieces_unigram,pieces_bpe")) return;
  if (!std::filesystem::exists(dir.path() + "/pieces_bpe.model")) {
    missing("the package sentencepiece is missing: the comparison was left out");
    return;
  }
  expect_equal(dir.path());
}

TEST_CASE("tokens of a sentencepiece file have names and numbers", "[formats][sentencepiece]") {
  auto const made = formats::sentencepiece::read(golden_file("pieces_unigram.model"));
  CHECK(made.vocabulary() > 256);
  CHECK(made.begin() == 1);
  CHECK(made.end() == 2);
  CHECK(*made.token_of(0) == "<unk>");
  CHECK(made.token_of(-1) == nullptr);
  CHECK(made.token_of(static_cast<std::int32_t>(made.vocabulary())) == nullptr);
  CHECK(made.id_of("<unk>") == 0);
  CHECK(made.id_of("<0x41>") == 3 + 0x41);
  CHECK_FALSE(made.id_of("no such token"));
  CHECK(made.decode(std::vector<std::int32_t>{-1, 3 + 'a', 1 << 20, 3 + 'b'}) == "ab");
}

TEST_CASE("a stream of sentencepiece's tokens decodes to the same text as all tokens at once",
          "[formats][sentencepiece]") {
  for (auto const* const kind : kinds) {
    auto const made = formats::sentencepiece::read(golden_file(kind) + ".model");
    for (auto const& input : tokenizer_cases::inputs(golden_file(""))) {
      auto const ids = made.encode(input);
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

TEST_CASE("a file that is not sentencepiece's is refused", "[formats][sentencepiece]") {
  auto const bytes = formats::read_text(golden_file("pieces_bpe.model"));
  for (auto const& bad : {std::string(), std::string("{}"), bytes.substr(0, bytes.size() / 2)}) {
    CHECK(contains(sentence_of<format_error>([&] { static_cast<void>(formats::sentencepiece::parse(bad, "x.model")); }),
                   "not a sentencepiece model"));
  }
  CHECK_THROWS_AS(formats::sentencepiece::read("missing.model"), io_error);
}
