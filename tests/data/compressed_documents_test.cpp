#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/missing.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/chat_lines.hpp"
#include "trireme/data/documents.hpp"
#include "trireme/data/token_shard_writer.hpp"
#include "trireme/formats/gzip.hpp"
#include "trireme/formats/zstd.hpp"

using namespace trireme;

namespace {

std::string gzip(std::string const& text) {
  std::string out(text.size() + 1000, '\0');
  ::z_stream zip{};
  REQUIRE(::deflateInit2(&zip, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::vector<unsigned char> in(text.begin(), text.end());
  zip.next_in = in.data();
  zip.avail_in = static_cast<uInt>(in.size());
  zip.next_out = reinterpret_cast<unsigned char*>(out.data());
  zip.avail_out = static_cast<uInt>(out.size());
  REQUIRE(::deflate(&zip, Z_FINISH) == Z_STREAM_END);
  out.resize(zip.total_out);
  ::deflateEnd(&zip);
  return out;
}
/// A frame of Zstandard whose blocks are not compressed.
std::string zstd(std::string_view text) {
  std::string out("\x28\xb5\x2f\xfd\x00\x58", 6);  // the window is 2 MiB
  do {
    auto const part = text.substr(0, 1 << 16);
    text.remove_prefix(part.size());
    auto const header = part.size() << 3 | (text.empty() ? 1U : 0U);
    for (unsigned i = 0; i < 3; ++i) out += static_cast<char>(header >> 8 * i & 0xff);
    out += part;
  } while (!text.empty());
  return out;
}
void write(std::string const& path, std::string const& content) { std::ofstream(path, std::ios::binary) << content; }
std::string content_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
std::vector<std::int32_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

}  // namespace

TEST_CASE("compressed documents give the shards of their content, after an interruption too", "[data]") {
  scratch const here;
  std::string text;
  for (int i = 0; text.size() < 2'500'000; ++i)
    text += std::to_string(std::int64_t{i} * 7919 % 10007) + (i % 100 == 0 ? "\n" : " ");
  auto const half = text.find('\n', text.size() / 2) + 1;
  std::filesystem::create_directory(here / "in");
  write(here / "in/a.txt", text);
  auto const shards_of = [&](std::string const& file, std::string const& out, bool interrupted) {
    data::token_shard_writer writer;
    writer.from.files = here / ("in/" + file);
    writer.out = here / out;
    writer.vocabulary = 128;
    writer.separator = 0;
    writer.workers = 2;
    writer.save_every = std::chrono::milliseconds(0);
    std::vector<formats::decompressor> const can_read{formats::gunzip, formats::unzstd};
    auto const run = [&](std::int64_t stop) {
      return writer.write([] { return bytes_of; },
                          [&](data::tokens_written const& now) {
                            if (now.tokens >= stop) throw io_error("test", "stop");
                          },
                          formats::real_files(), can_read);
    };
    if (interrupted) CHECK(contains(sentence_of<io_error>([&] { static_cast<void>(run(1'500'000)); }), "stop"));
    auto const done = run(std::int64_t{1} << 40);
    CHECK(done.resumed == interrupted);
    CHECK(done.bytes == done.of_bytes);
    return content_of(here / out + "/tokens_000000.bin");
  };
  auto const expected = shards_of("a.txt", "plain", false);
  write(here / "in/b.txt.gz", gzip(text.substr(0, half)) + gzip(text.substr(half)));  // two members
  CHECK(shards_of("b.txt.gz", "gz", false) == expected);
  CHECK(shards_of("b.txt.gz", "gz_again", true) == expected);
  if (!formats::detail::zstd_library::instance().found) {
    missing("libzstd.so.1 is not here");
    return;
  }
  write(here / "in/c.txt.zst", zstd(text.substr(0, half)) + zstd(text.substr(half)));
  CHECK(shards_of("c.txt.zst", "zst", false) == expected);
  CHECK(shards_of("c.txt.zst", "zst_again", true) == expected);
}

TEST_CASE("compressed JSON lines are read, and damaged files are one sentence with the place", "[data]") {
  scratch const here;
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += R"({"prompt": ")" + std::to_string(i) + R"(", "completion": "b"})" + "\n";
  auto const open = [&](std::string const& name, std::string const& content,
                        std::vector<formats::decompressor> const& can_read) {
    write(here / name, content);
    return data::chat_lines{.files = here / name, .format = data::chat_template::plain, .end = "!"}.open(
        [](std::string_view part) { return bytes_of(part); }, can_read);
  };
  auto const packed = gzip(lines);
  CHECK(open("a.jsonl.gz", packed, {formats::gunzip}).size() == 2000);
  auto const said = [&](std::string const& name, std::string const& content,
                        std::vector<formats::decompressor> const& can_read) {
    return sentence_of([&] { static_cast<void>(open(name, content, can_read)); });
  };
  CHECK(contains(said("a.jsonl.gz", packed, {}), "a.jsonl.gz is compressed in a way that is not read here"));
  CHECK(contains(said("a.jsonl.gz", packed.substr(0, 100), {formats::gunzip}),
                 "a.jsonl.gz: byte 100: the compressed data end too early"));
  CHECK(contains(said("a.jsonl.gz", lines, {formats::gunzip}), "a.jsonl.gz: byte "));
  auto damaged = packed;
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);  // of the checksum
  CHECK(contains(said("a.jsonl.gz", damaged, {formats::gunzip}),
                 "the compressed data are damaged: incorrect data check"));
  CHECK(
      contains(said("a.jsonl.gz", gzip(lines + "{"), {formats::gunzip}), ": byte " + std::to_string(lines.size() + 1)));
  if (!formats::detail::zstd_library::instance().found) return;
  CHECK(open("a.jsonl.zst", zstd(lines), {formats::unzstd}).size() == 2000);
  CHECK(contains(said("a.jsonl.zst", zstd(lines).substr(0, 1000), {formats::unzstd}),
                 "a.jsonl.zst: byte 1000: the compressed data end too early"));
  CHECK(contains(said("a.jsonl.zst", lines, {formats::unzstd}), "a.jsonl.zst: byte "));
}
