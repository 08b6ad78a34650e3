#include "trireme/data/token_shard_writer.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/token_shards.hpp"

using namespace trireme;
using data::document_kind;
using data::token_shard_writer;

namespace {

using tokens = std::vector<std::int32_t>;
constexpr std::int32_t end = 256;  // the separator

/// Each byte is a token.
data::document_encoder bytes() {
  return [](std::string_view text) {
    tokens out;
    for (auto const letter : text) out.push_back(static_cast<unsigned char>(letter));
    return out;
  };
}
tokens of(std::vector<std::string> const& documents) {
  tokens out;
  for (auto const& each : documents) {
    auto const some = bytes()(each);
    out.insert(out.end(), some.begin(), some.end());
    out.push_back(end);
  }
  return out;
}

struct folder : scratch {
  std::string write(std::string const& name, std::string const& content) const {
    std::ofstream(*this / name, std::ios::binary) << content;
    return *this / name;
  }
  [[nodiscard]] std::string content(std::string const& name) const {
    std::ifstream file(*this / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] bool has(std::string const& name) const { return std::filesystem::exists(*this / name); }
  [[nodiscard]] token_shard_writer writer(std::vector<std::string> names) const {
    for (auto& name : names) name = *this / name;
    token_shard_writer out;
    out.from.files = data::file_list(std::move(names));
    out.out = *this / "out";
    out.vocabulary = 257;
    out.separator = end;
    out.workers = 2;
    return out;
  }
  /// The tokens in a directory of shards.
  [[nodiscard]] tokens read(std::string const& name) const {
    auto const all = data::token_shards{.files = *this / name, .context = 1}.open_held_out();
    tokens out(static_cast<std::size_t>(all.token_count()));
    all.read_tokens(0, out);
    return out;
  }
};

/// Ends the process at its n-th operation.
class ending_files : public formats::file_system {
 public:
  explicit ending_files(int at) : left_(at) {}
  int open(int at, char const* path, int flags, ::mode_t mode) override {
    count();
    return file_system::open(at, path, flags, mode);
  }
  ::ssize_t write(int descriptor, void const* from, std::size_t bytes) override {
    count();
    return file_system::write(descriptor, from, std::min<std::size_t>(bytes, 700));  // in pieces
  }
  int truncate(int descriptor, ::off_t bytes) override {
    count();
    return file_system::truncate(descriptor, bytes);
  }
  int rename(int at, char const* from, char const* to) override {
    count();
    return file_system::rename(at, from, to);
  }
  int synchronise(int) override {
    count();
    return 0;
  }
  int make_directory(int at, char const* path, ::mode_t mode) override {
    count();
    return file_system::make_directory(at, path, mode);
  }

 private:
  void count() {
    if (left_-- == 0) ::_exit(7);
  }
  int left_;
};

}  // namespace

TEST_CASE("lines, paragraphs, files and strings of JSON lines are documents", "[data]") {
  folder const in;
  in.write("a.txt", "one\n\ntwo\r\nthree\n\n\nfour");
  auto writer = in.writer({"a.txt"});
  auto const done = writer.write(bytes);
  CHECK(in.read("out") == of({"one", "two", "three", "four"}));
  CHECK(done.documents == 4);
  CHECK(done.empty == 3);
  CHECK(done.tokens == 19);
  CHECK(done.shards == 1);
  CHECK(done.bytes == done.of_bytes);
  CHECK_FALSE(done.resumed);

  writer.from.documents = document_kind::paragraph;
  writer.out = in / "paragraphs";
  writer.write(bytes);
  CHECK(in.read("paragraphs") == of({"one", "two\r\nthree", "\nfour"}));

  writer.from.documents = document_kind::file;
  writer.out = in / "files";
  writer.write(bytes);
  CHECK(in.read("files") == of({"one\n\ntwo\r\nthree\n\n\nfour"}));

  in.write("b.jsonl", "{\"text\": \"a\\nb\", \"id\": 1}\n \n{\"id\": 2, \"text\": \"\"}\r\n{\"text\":\"\\u00e9\"}");
  writer = in.writer({"b.jsonl", "a.txt"});
  writer.out = in / "lines";
  writer.write(bytes);
  CHECK(in.read("lines") == of({"a\nb", "\xc3\xa9", "one", "two", "three", "four"}));
}

TEST_CASE("shards are cut at their number of tokens, and do not depend on threads", "[data]") {
  folder const in;
  std::string text;
  std::vector<std::string> documents;
  for (int i = 0; i < 60'000; ++i) {  // several blocks
    documents.push_back("document number " + std::to_string(i * 7919 % 100'003) +
                        std::string(static_cast<std::size_t>(i % 40), 'x'));
    text += documents.back() + "\n";
  }
  in.write("a.txt", text);
  auto writer = in.writer({"a.txt"});
  writer.shard_tokens = 777'777;
  auto const done = writer.write(bytes);
  auto const expected = of(documents);
  CHECK(in.read("out") == expected);
  CHECK(done.tokens == static_cast<std::int64_t>(expected.size()));
  CHECK(done.shards == (done.tokens + 777'776) / 777'777);
  CHECK(std::filesystem::file_size(in / "out/tokens_000000.bin") == 1024 + 2 * 777'777);
  for (int const workers : {1, 5}) {
    writer.workers = workers;
    writer.out = in / ("out" + std::to_string(workers));
    writer.write(bytes);
    for (std::int64_t i = 0; i < done.shards; ++i) {
      auto const name = "/tokens_00000" + std::to_string(i) + ".bin";
      CHECK(in.content("out" + name) == in.content("out" + std::to_string(workers) + name));
    }
  }
}

TEST_CASE("a document longer than a block is one document", "[data]") {
  folder const in;
  std::string const longer(5 << 20, 'y');
  in.write("a.txt", "first\n" + longer + "\nlast\n");
  in.writer({"a.txt"}).write(bytes);
  CHECK(in.read("out") == of({"first", longer, "last"}));
}

TEST_CASE("a vocabulary of more than 65536 is stored in 32 bits", "[data]") {
  folder const in;
  in.write("a.txt", "word");
  auto writer = in.writer({"a.txt"});
  writer.vocabulary = 65536;
  writer.separator = 65535;
  writer.write(bytes);
  CHECK(std::filesystem::file_size(in / "out/tokens_000000.bin") == 1024 + 5 * 2);
  CHECK(in.read("out").back() == 65535);
  writer.vocabulary = 65537;
  writer.separator = 65536;
  writer.out = in / "wide";
  writer.write(bytes);
  CHECK(std::filesystem::file_size(in / "wide/tokens_000000.bin") == 1024 + 5 * 4);
  CHECK(in.read("wide").back() == 65536);
}

TEST_CASE("a process that ends at any operation is continued with the same bytes", "[data]") {
  folder const in;
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) {  // a block each
    names.push_back("text" + std::to_string(i));
    in.write(names.back(),
             "document " + std::to_string(i) + "\nanother one" + std::string(static_cast<std::size_t>(i * 3), '.'));
  }
  auto writer = in.writer(names);
  writer.shard_tokens = 20;
  writer.save_every = std::chrono::milliseconds(0);
  writer.write(bytes);
  auto const all = [&](std::string const& of) {
    std::vector<std::string> out;
    for (auto const& each : std::filesystem::directory_iterator(in / of)) out.push_back(each.path().filename());
    std::sort(out.begin(), out.end());
    for (auto& name : out) name += in.content(of + "/" + name);
    return out;
  };
  auto const expected = all("out");
  int ended = 0;
  for (int at = 0;; ++at) {
    writer.out = in / "again";
    auto const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ending_files files(at);
      try {
        writer.write(bytes, {}, files);
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    auto const code = WEXITSTATUS(status);
    INFO("operation " << at);
    REQUIRE((code == 0 || code == 7));
    if (!in.has("again")) {
      ++ended;
      bool const begun = in.has("again.partial/tokens.json");
      CHECK(writer.write(bytes).resumed == begun);
    }
    CHECK(all("again") == expected);
    CHECK_FALSE(in.has("again.partial"));
    std::filesystem::remove_all(in / "again");
    if (code == 0) break;
  }
  CHECK(ended > 40);
}

TEST_CASE("after an error nothing appears, and other input does not continue the work", "[data]") {
  folder const in;
  in.write("a.txt", "good\n");
  in.write("b.jsonl", "{\"text\": \"good\"}\n{\"text\": 3}\n");
  auto writer = in.writer({"a.txt", "b.jsonl"});
  auto const said = sentence_of<format_error>([&] { writer.write(bytes); });
  CHECK(contains(said, "b.jsonl: byte 26: expected a string"));
  CHECK_FALSE(in.has("out"));
  in.write("b.jsonl", "{\"text\": \"good\"}\n{\"text\": \"better\"}\n");
  CHECK(contains(sentence_of<config_error>([&] { writer.write(bytes); }),
                 "out.partial was begun with other or changed files"));
  std::filesystem::remove_all(in / "out.partial");
  CHECK(writer.write(bytes).documents == 3);
  CHECK(contains(sentence_of<config_error>([&] { writer.write(bytes); }), "out exists already"));
}

TEST_CASE("a file in the way of the partial directory is not overwritten", "[data]") {
  folder const in;
  in.write("a.txt", "good\n");
  std::filesystem::create_directory(in / "out.partial");
  in.write("out.partial/mine", "precious");
  CHECK(contains(sentence_of<config_error>([&] { in.writer({"a.txt"}).write(bytes); }), "was not written here"));
  CHECK(in.content("out.partial/mine") == "precious");
}

TEST_CASE("what cannot be encoded is one sentence with its place", "[data]") {
  folder const in;
  auto const said = [&](std::string const& name, std::string const& content, data::document_encoder encode = bytes(),
                        auto const&... change) {
    std::filesystem::remove_all(in / "out.partial");
    in.write(name, content);
    auto writer = in.writer({name});
    (change(writer), ...);
    return sentence_of([&] { writer.write([&] { return encode; }); });
  };
  CHECK(contains(said("a.jsonl", "{\"text\": \"a\"}\n{\"body\": \"b\"}"),
                 "a.jsonl: byte 14: the object has no \"text\""));
  CHECK(contains(said("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\""), "a.jsonl: byte 26: "));
  CHECK(contains(said("a.jsonl", "[1]"), "a.jsonl: byte 0: expected an object"));
  CHECK(contains(said("a.jsonl", "{\"text\": \"\xff\"}"), "a.jsonl: byte 10: "));
  CHECK(contains(said("a.txt.gz", "x"), "a.txt.gz is compressed in a way that is not read here"));
  CHECK(contains(said("a.txt", "\n\n"), "the files have no documents"));
  CHECK_FALSE(in.has("out.partial"));
  CHECK(contains(said("a.txt", ""), "the file is empty"));
  CHECK(
      contains(said("a.txt", "abc\nxyz", bytes(), [](auto& writer) { writer.vocabulary = 120, writer.separator = -1; }),
               "a.txt: byte 4: trireme::data::token_shard_writer: the document that begins here has the token 120"));
  auto const small = [](auto& writer) { writer.vocabulary = 120, writer.separator = -1; };
  CHECK(
      contains(said("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"xyz\"}", bytes(), small),
               "a.jsonl: byte 23: trireme::data::token_shard_writer: the document that begins here has the token 120"));
  auto const malformed = [](std::string_view) -> tokens { throw format_error("the text", 2, "it is not UTF-8 here"); };
  CHECK(contains(said("a.txt", "abc", malformed), "a.txt: byte 2: it is not UTF-8 here"));
  auto const unknown = [](std::string_view) -> tokens { throw config_error("no token for \"?\""); };
  CHECK(contains(said("a.txt", "\nabc", unknown), "a.txt: byte 1: the document that begins here cannot be encoded"));
  CHECK(contains(said("a.jsonl", "\n{\"text\": \"abc\"}", unknown), "a.jsonl: byte 10: the document that begins"));
  CHECK(contains(said("a.txt", "abc", bytes(), [](auto& writer) { writer.separator = 257; }), ".separator = 257"));
  CHECK(contains(said("a.txt", "abc", bytes(), [](auto& writer) { writer.shard_tokens = 0; }), ".shard_tokens = 0"));
  CHECK(contains(said("a.txt", "abc", bytes(), [](auto& writer) { writer.vocabulary = 0; }), ".vocabulary = 0"));
}

TEST_CASE("token_shard_writer prints its source", "[data]") {
  token_shard_writer writer;
  writer.from.files = "a.jsonl";
  CHECK(contains(to_string(writer),
                 "trireme::data::token_shard_writer{.from = trireme::data::document_files{.files = "
                 "\"a.jsonl\", .documents = trireme::data::document_kind::line, .key = \"text\"}"));
}
