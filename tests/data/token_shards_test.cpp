#include "trireme/data/token_shards.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/data/loader.hpp"

using namespace trireme;
using data::shard_kind;
using data::shard_windows;
using data::token_shards;

namespace {

using tokens = std::vector<std::int32_t>;

template <class T>
std::string bytes_of(std::vector<T> const& numbers) {
  return {reinterpret_cast<char const*>(numbers.data()), numbers.size() * sizeof(T)};
}
template <class T>
std::string as(tokens const& from) {
  std::vector<T> out;
  for (auto const each : from) out.push_back(static_cast<T>(each));
  return bytes_of(out);
}
template <class T>
std::vector<T> numbers_in(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  std::string const all(std::istreambuf_iterator<char>(file), {});
  std::vector<T> out(all.size() / sizeof(T));
  std::memcpy(out.data(), all.data(), out.size() * sizeof(T));
  return out;
}

struct folder : scratch {
  [[nodiscard]] std::string write(std::string const& name, std::string const& content) const {
    std::ofstream(*this / name, std::ios::binary) << content;
    return *this / name;
  }
  [[nodiscard]] std::string llm_c(std::string const& name, tokens const& from) const {
    auto const header =
        formats::token_files::llm_c_bytes({formats::token_files::number::u16, static_cast<std::int64_t>(from.size())});
    return write(name,
                 std::string(reinterpret_cast<char const*>(header.data()), header.size()) + as<std::uint16_t>(from));
  }
  /// NAME.bin and NAME.idx of uint16.
  [[nodiscard]] std::string megatron(std::string const& name, std::vector<tokens> const& documents) const {
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> pointers, ends{0};
    std::string all;
    for (auto const& each : documents) {
      lengths.push_back(static_cast<std::int32_t>(each.size()));
      pointers.push_back(static_cast<std::int64_t>(all.size()));
      ends.push_back(static_cast<std::int64_t>(lengths.size()));
      all += as<std::uint16_t>(each);
    }
    std::vector<std::uint64_t> const version{1}, counts{lengths.size(), ends.size()};
    static_cast<void>(write(name + ".idx", std::string("MMIDIDX\0\0", 9) + bytes_of(version) + '\x08' +
                                               bytes_of(counts) + bytes_of(lengths) + bytes_of(pointers) +
                                               bytes_of(ends)));
    return write(name + ".bin", all);
  }
};

template <class Windows>
std::pair<tokens, tokens> read(Windows const& windows, std::vector<std::int64_t> const& ids) {
  auto const count = ids.size() * static_cast<std::size_t>(windows.input_shape().size());
  tokens in(count, -7), out(count, -7);
  windows.read(ids, in.data(), out.data());
  return {in, out};
}
tokens counting(std::int32_t count) {
  tokens out;
  for (std::int32_t i = 0; i < count; ++i) out.push_back(i);
  return out;
}
std::string refusal(token_shards const& from) {
  return sentence_of([&] { static_cast<void>(from.open()); });
}
tokens all_of(token_shards from) {
  from.context = 1;
  auto const windows = from.open_held_out();
  tokens out(static_cast<std::size_t>(windows.token_count()));
  windows.read_tokens(0, out);
  return out;
}

}  // namespace

TEST_CASE("windows of shards are those of one sequence, however it is cut into files", "[data][token_shards]") {
  static_assert(dataset<data::token_shard_windows>);
  folder const here;
  auto const first = here.llm_c("a_0.bin", {0, 1, 2, 3, 4});
  auto const second = here.llm_c("a_1.bin", {5, 6, 7});
  auto const third = here.llm_c("a_2.bin", {8, 9});
  token_shards const from{.files = here / "a_*.bin", .context = 3};
  auto const training = from.open();
  CHECK(training.size() == 3);
  CHECK(training.token_count() == 10);
  CHECK(read(training, {1, 0, 2}) == std::pair(tokens{3, 4, 5, 0, 1, 2, 6, 7, 8}, tokens{4, 5, 6, 1, 2, 3, 7, 8, 9}));
  CHECK(read(from.open_held_out(), {2}) == std::pair(tokens{6, 7, 8}, tokens{7, 8, -1}));
  token_shards listed = from;
  listed.files = {third, first};
  CHECK(all_of(listed) == tokens{8, 9, 0, 1, 2, 3, 4});
  listed.files = here.path();
  CHECK(all_of(listed) == counting(10));
  SECTION("a range, a split and nanoGPT's windows") {
    auto range = from;
    range.first_token = 2, range.last_token = 8, range.context = 2;
    CHECK(range.open().size() == 3);
    CHECK(range.open_held_out().size() == 3);
    CHECK(read(range.open(), {2}) == std::pair(tokens{6, 7}, tokens{7, 8}));
    auto const parts = from.split(0.4);
    CHECK(parts.tokens == 10);
    CHECK(parts.held_out_begin == 6);
    CHECK(parts.training.size() == 1);
    CHECK(read(parts.training, {0}) == std::pair(tokens{0, 1, 2}, tokens{1, 2, 3}));
    CHECK(read(parts.held_out, {0}) == std::pair(tokens{6, 7, 8}, tokens{7, 8, -1}));
    auto every = from;
    every.stride = 1;
    CHECK(every.open().size() == 7);  // data[i : i + 3] for i < len(data) - 3
    CHECK(read(every.open(), {6}) == std::pair(tokens{6, 7, 8}, tokens{7, 8, 9}));
  }
}

TEST_CASE("after a separator there is no target, and documents kept apart fill their last window",
          "[data][token_shards]") {
  folder const here;
  token_shards from{.files = here.llm_c("a.bin", {1, 2, 9, 3, 9, 4, 5, 6, 7, 9}), .context = 3, .separator = 9};
  CHECK(read(from.open(), {0, 1}) == std::pair(tokens{1, 2, 9, 3, 9, 4}, tokens{2, 9, -1, 9, -1, 5}));
  from.documents = shard_windows::apart;
  auto const apart = from.open();
  CHECK(apart.size() == 4);
  CHECK(apart.document_count() == 3);
  CHECK(read(apart, {0, 1, 2, 3}) ==
        std::pair(tokens{1, 2, 9, 3, 9, 9, 4, 5, 6, 7, 9, 9}, tokens{2, 9, -1, 9, -1, -1, 5, 6, 7, 9, -1, -1}));
  token_shards of_megatron{
      .files = here.megatron("m", {{1, 2, 3, 4, 5}, {6}, {}, {7, 8}}), .context = 3, .documents = shard_windows::apart};
  auto const windows = of_megatron.open();
  CHECK(windows.size() == 3);  // one token alone predicts nothing
  CHECK(read(windows, {0, 1, 2}) ==
        std::pair(tokens{1, 2, 3, 4, 5, 0, 7, 8, 0}, tokens{2, 3, 4, 5, -1, -1, 8, -1, -1}));
  of_megatron.files = from.files;
  CHECK(contains(refusal(of_megatron), "does not say where documents end; give .separator"));
}

TEST_CASE("with best fit no document is cut that fits in a window, and each token is predicted once",
          "[data][token_shards]") {
  folder const here;
  std::vector<tokens> documents;
  tokens all;
  for (std::int32_t i = 0; i < 200; ++i) {
    auto const length = i < 3 ? i : i * 37 % 29 + 1;  // up to 29 in windows of 8
    tokens one;
    for (std::int32_t t = 0; t + 1 < length; ++t) one.push_back(10 * i + t % 10 + 1);
    if (length > 0) one.push_back(0);
    documents.push_back(one);
    all.insert(all.end(), one.begin(), one.end());
  }
  token_shards by_index{
      .files = here.megatron("m", documents), .context = 8, .documents = data::shard_windows::best_fit};
  token_shards by_token{
      .files = here.llm_c("a.bin", all), .context = 8, .separator = 0, .documents = data::shard_windows::best_fit};
  for (auto const& from : {by_index, by_token}) {
    auto const windows = from.open();
    std::vector<std::pair<std::int32_t, std::int32_t>> wanted, found;
    std::int64_t places = 0;
    for (auto const& each : documents) {
      for (std::size_t t = 0; t + 1 < each.size(); ++t) wanted.emplace_back(each[t], each[t + 1]);
    }
    for (std::int64_t id = 0; id < windows.size(); ++id) {
      auto const [in, out] = read(windows, {id});
      for (std::size_t t = 0; t < in.size(); ++t) {
        ++places;
        if (out[t] != -1) found.emplace_back(in[t], out[t]);
        if (out[t] == 0) CHECK((t + 1 == in.size() || in[t + 1] == 0));  // the document ends in its window
      }
    }
    std::sort(wanted.begin(), wanted.end());
    std::sort(found.begin(), found.end());
    CHECK(found == wanted);
    CHECK(windows.filler_count() * 20 < places);  // less than 5 %
    auto apart = from;
    apart.documents = shard_windows::apart;
    CHECK(apart.open().size() > windows.size());
    CHECK(apart.open().filler_count() > windows.filler_count());
  }
  // 9 tokens: a window of 8 that predicts the 9th. Rests of 2, 3 and 5 tokens: 5 + 3, then 2.
  token_shards small{.files = here.llm_c("b.bin", {1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2, 3, 0, 4, 5, 6, 7, 0}),
                     .context = 8,
                     .separator = 0,
                     .documents = data::shard_windows::best_fit};
  auto const windows = small.open();
  CHECK(windows.size() == 3);
  CHECK(windows.filler_count() == 6);
  CHECK(windows.document_count() == 4);
  CHECK(read(windows, {2, 1, 0}) ==
        std::pair(tokens{1, 0, 0, 0, 0, 0, 0, 0, 4, 5, 6, 7, 0, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8},
                  tokens{0, -1, -1, -1, -1, -1, -1, -1, 5, 6, 7, 0, -1, 3, 0, -1, 2, 3, 4, 5, 6, 7, 8, 0}));
  CHECK(read(small.open_held_out(), {1}) == read(windows, {1}));
  small.context = std::int64_t{1} << 30;
  CHECK(contains(refusal(small), "takes less than 2^30"));
}

TEST_CASE("every layout that numpy wrote gives the same tokens", "[data][token_shards]") {
  folder const here;
  if (!python_ran("write_token_shards.py", here.path())) return;
  auto const expected = numbers_in<std::int32_t>(here / "expected");
  for (auto const* const name : {"gpt2_*.bin", "llama3_*.bin", "array16.npy", "array64.npy", "megatron_u16.*",
                                 "megatron_i32.bin", "megatron_i64.bin"}) {
    CAPTURE(name);
    CHECK(all_of({.files = here / name}) == expected);
  }
  CHECK(all_of({.files = here / "nano.bin", .kind = shard_kind::u16}) == expected);
  CHECK(all_of({.files = here / "wide.bin", .kind = shard_kind::u32}) == expected);
  if (std::filesystem::exists(here / "tensor.safetensors")) {
    CHECK(all_of({.files = here / "tensor.safetensors"}) == expected);
    CHECK(all_of({.files = here / "tensor.safetensors", .tensor = "tokens"}) == expected);
  }
  auto const by_index =
      token_shards{.files = here / "megatron_u16.bin", .context = 64, .documents = shard_windows::apart}.open();
  auto const by_token =
      token_shards{.files = here / "gpt2_*", .context = 64, .separator = 0, .documents = shard_windows::apart}.open();
  CHECK(by_index.document_count() == 50);
  REQUIRE(by_index.size() == by_token.size());
  std::vector<std::int64_t> ids(static_cast<std::size_t>(by_index.size()));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  CHECK(read(by_index, ids) == read(by_token, ids));
}

TEST_CASE("an id beyond the vocabulary is named with its file and its byte", "[data][token_shards]") {
  folder const here;
  auto const second = here.llm_c("b_1.bin", {4, 5, 60, 7});
  token_shards from{.files = {here.llm_c("b_0.bin", {0, 1, 2, 3}), second}, .context = 3, .vocabulary = 50};
  auto const windows = from.open();
  CHECK(read(windows, {0}).first == tokens{0, 1, 2});
  CHECK(sentence_of<format_error>([&] { read(windows, {1}); }) ==
        second +
            ": byte 1028: trireme::data::token_shards: the token is 60, but ids are from 0 to 49; use the "
            "tokenizer's vocabulary, or the .kind in which the file was written");
  from.files = here.write("c.bin", as<std::uint32_t>({1, 2, -1, 4}));
  from.kind = shard_kind::u32;
  from.vocabulary = 0;
  CHECK(contains(sentence_of([&] { read(from.open(), {0}); }),
                 "byte 8: trireme::data::token_shards: the token is "
                 "4294967295, but ids are from 0 to 2147483647"));
}

TEST_CASE("a damaged shard is one sentence with its name and the byte", "[data][token_shards]") {
  folder const here;
  auto const good = here.llm_c("good.bin", counting(20));
  auto const with = [&](std::string const& content, shard_kind kind = shard_kind::recognised) {
    return refusal({.files = {good, here.write("bad.bin", content)}, .context = 4, .kind = kind});
  };
  auto const header = [](std::vector<std::int32_t> start) {
    start.resize(256);
    return bytes_of(start);
  };
  CHECK(contains(with(""), "bad.bin: trireme::data::token_shards: the file is empty"));
  CHECK(contains(with("abcd"), "bad.bin: byte 0: trireme::data::token_shards: nothing says how the tokens are stored"));
  CHECK(contains(with(header({20240520, 2, 2}) + "abcd"), "bad.bin: byte 4: llm.c's header has version 2; 1 is read"));
  CHECK(contains(with(header({20240520, 1, 3}) + "abcd"),
                 "bad.bin: byte 8: llm.c's header says that 3 tokens of 2 bytes follow, but 4 bytes follow"));
  CHECK(contains(with(header({20240801, 7, -1}) + "abcd"), "byte 8: llm.c's header says that there are -1 tokens"));
  CHECK(contains(with(header({20240520, 1, 2}).substr(0, 500)), "byte 500: the file ends within llm.c's header"));
  CHECK(contains(refusal({.files = here.write("odd.bin", "abc"), .context = 1, .kind = shard_kind::u16}),
                 "odd.bin: byte 2: trireme::data::token_shards: 3 bytes do not divide into numbers of 2 bytes"));
  CHECK(contains(refusal({.files = good, .kind = shard_kind::u16}), "begins with llm.c's header"));
  CHECK(contains(refusal({.files = here / "none*.bin"}), "no file matches"));
  CHECK(contains(refusal({.files = {good, good}}), "twice"));
  CHECK(contains(refusal({}), ".files names no file"));
  CHECK(contains(refusal({.files = good, .context = 20}), "the range has 20 tokens, but one window of .context = 20"));
  CHECK(contains(refusal({.files = good, .context = 0}), ".context = 0"));
  CHECK(contains(refusal({.files = good, .context = 4, .last_token = 20}), "are not a range of the files"));
  CHECK(contains(refusal({.files = good, .context = 4, .documents = shard_windows::apart, .stride = 1}), ".stride"));

  auto const windows = token_shards{.files = good, .context = 4}.open();
  std::filesystem::resize_file(good, 1030);
  CHECK(contains(sentence_of<io_error>([&] { read(windows, {3}); }), "when it was opened, but byte"));
}

TEST_CASE("a damaged index of Megatron is one sentence with its name and the byte", "[data][token_shards]") {
  folder const here;
  token_shards const from{.files = here.megatron("m", {{1, 2, 3}, {4, 5}, {6, 7, 8}}), .context = 2};
  CHECK(all_of(from) == tokens{1, 2, 3, 4, 5, 6, 7, 8});
  std::string index;
  {
    std::ifstream file(here / "m.idx", std::ios::binary);
    index.assign(std::istreambuf_iterator<char>(file), {});
  }
  auto const with = [&](std::size_t at, std::string const& bytes) {
    auto changed = index;
    changed.replace(at, bytes.size(), bytes);
    static_cast<void>(here.write("m.idx", changed));
    return refusal(from);
  };
  CHECK(contains(with(0, "X"), "m.idx: byte 0: an index of Megatron begins with"));
  CHECK(contains(with(9, "\x02"), "m.idx: byte 9: the index has version 2"));
  CHECK(contains(with(17, "\x06"), "m.idx: byte 17: the type code 6 means floating-point numbers"));
  CHECK(contains(with(17, "\x09"), "m.idx: byte 17: the type code is 9"));
  CHECK(contains(with(17, "\x04"), "m.idx: byte 54: trireme::data::token_shards: sequence 1 begins at byte 6"));
  CHECK(contains(with(18, "\x04"), "m.idx: byte 26: the header says that the index has 4 sequences"));
  CHECK(contains(with(33, "\x40"), "m.idx: byte 26"));
  CHECK(contains(with(34, "\xff\xff\xff\xff"),
                 "m.idx: byte 34: trireme::data::token_shards: sequence 0 has the length -1"));
  CHECK(contains(with(42, "\x09"),
                 "m.bin: byte 16: trireme::data::token_shards: the index says that there are at least"));
  CHECK(contains(with(78, "\x09"),
                 "m.idx: byte 78: trireme::data::token_shards: number 1 in the list of documents is 9"));
  static_cast<void>(here.write("m.idx", index.substr(0, index.size() - 1)));
  CHECK(contains(refusal(from), "m.idx: byte 26"));
  static_cast<void>(here.write("m.idx", index.substr(0, 20)));
  CHECK(contains(refusal(from), "m.idx: byte 20: the file ends within the header"));
  static_cast<void>(here.write("m.idx", index));
  std::filesystem::resize_file(here / "m.bin", 14);
  CHECK(contains(refusal(from), "the index says that there are at least 16 bytes, but the file has 14"));
}

TEST_CASE("a sample behind byte 3e9 of a sparse file is read at once", "[data][token_shards]") {
  folder const here;
  auto const path = here / "sparse.bin";
  constexpr std::int64_t count = 1'500'000'000;
  {
    std::ofstream file(path, std::ios::binary);
    file.seekp(2 * (count - 4));
    file << as<std::uint16_t>({5, 6, 7, 8});
  }
  auto const start = std::chrono::steady_clock::now();
  auto const windows = token_shards{.files = path, .context = 1, .kind = shard_kind::u16}.open();
  CHECK(windows.size() == count - 1);
  CHECK(read(windows, {count - 3, 1'000'000'000}) == std::pair(tokens{6, 0}, tokens{7, 0}));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500));  // takes less than 1
}

TEST_CASE("shards beyond the number of files that stay open are opened when they are read", "[data][token_shards]") {
  folder const here;
  for (int i = 0; i < 300; ++i) {
    static_cast<void>(here.write("n_" + std::to_string(1000 + i), as<std::uint16_t>({2 * i, 2 * i + 1})));
  }
  token_shards const from{.files = here / "n_*", .context = 100, .kind = shard_kind::u16};
  CHECK(all_of(from) == counting(600));
  auto const windows = from.open();
  static_cast<void>(here.write("n_1000", "abcdef"));
  CHECK(contains(sentence_of<io_error>([&] { read(windows, {0}); }), "had 4 bytes at first and has 6 now"));
}

TEST_CASE("a loader of shards resumes on another number of ranks", "[data][token_shards]") {
  folder const here;
  auto const windows = token_shards{.files = here.llm_c("a.bin", counting(100)), .context = 3}.open();
  data::loader_options const options{.batch = 8, .micro_batches = 2, .seed = 4};
  data::loader whole(windows, options);
  static_cast<void>(whole.next());
  auto const place = whole.position();
  auto const& expected = whole.next();
  data::loader part(windows, options, 1, 2);
  part.seek(place);
  auto const& got = part.next();
  REQUIRE(got.micro_batches.size() == 1);
  CHECK(std::ranges::equal(got.micro_batches[0].ids, expected.micro_batches[1].ids));
  CHECK(std::ranges::equal(got.micro_batches[0].targets.as<std::int32_t>().span(),
                           expected.micro_batches[1].targets.as<std::int32_t>().span()));
}

TEST_CASE("a grown list of shards is refused within an epoch, and used from the next one on", "[data][token_shards]") {
  folder const here;
  auto const first = here.llm_c("a.bin", counting(100));
  data::loader_options const options{.batch = 4, .seed = 4};
  auto const before = token_shards{.files = first, .context = 3}.open();
  data::loader<data::token_shard_windows> run(before, options);
  static_cast<void>(run.next());
  auto const place = run.position();

  auto const grown = token_shards{.files = {first, here.llm_c("b.bin", counting(50))}, .context = 3}.open();
  data::loader<data::token_shard_windows> next(grown, options);
  auto const sentence = sentence_of<config_error>([&] { next.seek(place); });
  CHECK(contains(sentence, ".samples = 33, .seed = 4} with 49 samples"));
  CHECK(contains(sentence, "seek(place.next_epoch())"));
  next.seek(place.next_epoch());
  CHECK(next.next().epoch == 1);

  // The same tokens in more files, with other reading threads: the same samples.
  auto cut = counting(100);
  cut.erase(cut.begin(), cut.begin() + 41);
  auto const parts = token_shards{.files = {here.llm_c("c.bin", counting(41)), here.llm_c("d.bin", cut)}, .context = 3};
  auto const same = parts.open();
  data::loader_options const threads{.batch = 4, .seed = 4, .workers = 3};
  data::loader<data::token_shard_windows> resumed(same, threads);
  resumed.seek(place);
  for (int step = 0; step < 20; ++step) {
    auto const& expected = run.next();
    auto const& got = resumed.next();
    CHECK(std::ranges::equal(got.micro_batches[0].inputs.as<std::int32_t>().span(),
                             expected.micro_batches[0].inputs.as<std::int32_t>().span()));
    CHECK(std::ranges::equal(got.micro_batches[0].targets.as<std::int32_t>().span(),
                             expected.micro_batches[0].targets.as<std::int32_t>().span()));
  }
}

TEST_CASE("windows are read with the token after them wherever files end", "[data][token_shards]") {
  folder const here;
  tokens all;
  std::vector<std::string> narrow, wide;
  for (int i = 0; i < 9; ++i) {
    tokens part;
    for (int t = 0; t < 700 + i; ++t) part.push_back(static_cast<std::int32_t>(all.size()) + t * 7);
    narrow.push_back(here.write(text(i, ".u16"), as<std::uint16_t>(part)));
    wide.push_back(here.write(text(i, ".u32"), as<std::uint32_t>(part)));
    all.insert(all.end(), part.begin(), part.end());
  }
  for (std::int64_t const context : {1, 3, 63, 64, 65, 200, 5000}) {
    for (std::int64_t const vocabulary : {0, 20000}) {
      for (auto const kind : {shard_kind::u16, shard_kind::u32}) {
        CAPTURE(context, vocabulary, kind);
        auto const windows = token_shards{.files = kind == shard_kind::u16 ? narrow : wide,
                                          .context = context,
                                          .kind = kind,
                                          .vocabulary = vocabulary,
                                          .stride = 61}
                                 .open();
        for (std::int64_t id = 0; id < windows.size(); ++id) {
          auto const [in, out] = read(windows, {id});
          auto const at = all.begin() + id * 61;
          REQUIRE(std::equal(in.begin(), in.end(), at));
          REQUIRE(std::equal(out.begin(), out.end(), at + 1));
        }
      }
    }
  }
}

TEST_CASE("a description of shards prints as its source", "[data][token_shards]") {
  token_shards const from{.files = {"a", "b"}, .context = 8, .kind = shard_kind::u16, .separator = 3};
  CHECK(to_string(from) ==
        "trireme::data::token_shards{.files = {\"a\", \"b\"}, .context = 8, .kind = trireme::data::shard_kind::u16, "
        ".vocabulary = 0, .separator = 3, .documents = trireme::data::shard_windows::packed, .stride = 0, "
        ".first_token = 0, .last_token = -1, .tensor = \"\"}");
  CHECK(from == token_shards{.files = {"a", "b"}, .context = 8, .kind = shard_kind::u16, .separator = 3});
}
