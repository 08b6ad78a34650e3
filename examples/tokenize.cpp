// Writes the tokens of texts as shards, which data::token_shards and scripts/train --data read: see `usage`.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/token_shard_writer.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/file_system.hpp"
#include "trireme/formats/tokenizer.hpp"
#include "trireme/formats/zstd.hpp"
#ifdef TOKENIZE_ZLIB  // where zlib is
#include "gzip.hpp"
#endif

using namespace trireme;

namespace {

constexpr char const* usage =
    R"(tokenize --tokenizer tokenizer.json --out DIR [options] FILE...

Writes the tokens of texts as shards in llm.c's format, which data::token_shards and scripts/train --data read. A
FILE that ends in .jsonl holds a JSON object in each line, whose string "text" (--key) is a document; any other file
is text in UTF-8, and each line that is not empty is a document. Files whose names go on with .gz or .zst are
decompressed.

  --tokenizer FILE   a tokenizer.json of Hugging Face
  --out DIR          the folder of the shards
  --documents D      of text files: line | paragraph (between empty lines) | file
  --key KEY          of JSON lines: the member that is the text
  --separator T      the token after each document, or none; without it <|endoftext|>, <|end_of_text|>, that of
                     DeepSeek or </s>, the first that the tokenizer has
  --shard-tokens N   tokens of a file (100000000)
  --workers N        threads (one for each core)
  --help             this

DIR appears when it is complete. After an interruption the same command continues, and the files have the same bytes.
)";

struct options {
  std::string tokenizer, separator;
  data::token_shard_writer writer;
};

std::int64_t number(std::string_view name, std::string_view value) {
  std::int64_t out = 0;
  auto const* const end = value.data() + value.size();
  auto const [stopped, problem] = std::from_chars(value.data(), end, out);
  if (problem != std::errc{} || stopped != end || out < 1) {
    throw config_error(text(name, " is \"", value, "\"; it takes a whole number of at least 1"));
  }
  return out;
}

data::document_kind kind(std::string_view value) {
  for (auto const each : {data::document_kind::line, data::document_kind::paragraph, data::document_kind::file}) {
    if (value == name_of(each)) return each;
  }
  throw config_error(text("--documents is \"", value, "\"; it is line, paragraph or file"));
}

options parse(std::vector<std::string_view> const& given) {
  options out;
  for (std::size_t i = 0; i < given.size(); ++i) {
    auto const name = given[i];
    if (!name.starts_with("--")) {
      out.writer.from.files.patterns.emplace_back(name);
      continue;
    }
    if (i + 1 == given.size()) throw config_error(text(name, " needs a value"));
    auto const value = given[++i];
    if (name == "--tokenizer") {
      out.tokenizer = value;
    } else if (name == "--out") {
      out.writer.out = value;
      while (out.writer.out.size() > 1 && out.writer.out.ends_with('/')) out.writer.out.pop_back();
    } else if (name == "--key") {
      out.writer.from.key = value;
    } else if (name == "--documents") {
      out.writer.from.documents = kind(value);
    } else if (name == "--separator") {
      out.separator = value;
    } else if (name == "--shard-tokens") {
      out.writer.shard_tokens = number(name, value);
    } else if (name == "--workers") {
      out.writer.workers = static_cast<int>(std::min<std::int64_t>(number(name, value), 1025));
    } else {
      throw config_error(text("unknown option ", name, "; see --help"));
    }
  }
  if (out.tokenizer.empty() || out.writer.out.empty() || out.writer.from.files.patterns.empty()) {
    throw config_error("--tokenizer FILE, --out DIR and a FILE of text are needed; see --help");
  }
  return out;
}

std::int32_t separator_of(formats::tokenizer const& words, std::string const& asked) {
  if (asked == "none") return -1;
  if (!asked.empty()) {
    auto const id = words.id_of(asked);
    if (!id) throw config_error(text("--separator is \"", asked, "\", which is not a token of this tokenizer"));
    return *id;
  }
  for (auto const* const usual :
       {"<|endoftext|>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>"}) {
    if (auto const id = words.id_of(usual)) return *id;
  }
  throw config_error(
      "none of the usual tokens ends a document in this tokenizer; give --separator TOKEN, or "
      "--separator none");
}

int run(options given) {
  auto const content = formats::read_text(given.tokenizer, std::uint64_t{1} << 28);
  auto const words = std::make_shared<formats::tokenizer const>(formats::tokenizer::parse(content, given.tokenizer));
  auto& writer = given.writer;
  writer.encoder = sha256().update(std::as_bytes(std::span(content))).hexadecimal();
  writer.vocabulary = words->vocabulary();
  writer.separator = separator_of(*words, given.separator);
  using clock = std::chrono::steady_clock;
  auto const start = clock::now();
  auto said = start;
  bool const speaks = ::isatty(STDERR_FILENO) != 0;
  std::vector<formats::decompressor> can_read{formats::unzstd};
#ifdef TOKENIZE_ZLIB
  can_read.push_back(formats::gunzip);
#endif
  auto const done = writer.write(
      [&] {
        return [words, known = std::make_shared<formats::word_memory>()](std::string_view document) {
          return words->encode(document, *known, formats::special_tokens::without);
        };
      },
      [&](data::tokens_written const& now) {
        if (!speaks || clock::now() - said < std::chrono::seconds(1)) return;
        said = clock::now();
        std::fprintf(stderr, "\r%.0f %% of %.2f GB, %.1f million tokens ",
                     100 * static_cast<double>(now.bytes) / static_cast<double>(now.of_bytes),
                     static_cast<double>(now.of_bytes) / 1e9, static_cast<double>(now.tokens) / 1e6);
      },
      formats::real_files(), can_read);
  auto const seconds = std::chrono::duration<double>(clock::now() - start).count();
  if (speaks) std::fprintf(stderr, "\n");
  std::printf("%s%s: %s in %s, from %s (%s without text); %.1f s\n", done.resumed ? "continued " : "wrote ",
              writer.out.c_str(), how_many(done.tokens, "token").c_str(), how_many(done.shards, "shard").c_str(),
              how_many(done.documents, "document").c_str(), text(done.empty).c_str(), seconds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::find(argv + 1, argv + argc, std::string_view("--help")) != argv + argc) {
    std::fputs(usage, stdout);
    return 0;
  }
  options given;
  try {
    given = parse({argv + 1, argv + argc});
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "tokenize: %s\n", problem.what());
    return 2;
  }
  try {
    return run(std::move(given));
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "tokenize: %s\n", problem.what());
    return 1;
  }
}
