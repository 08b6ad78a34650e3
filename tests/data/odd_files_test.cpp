// What docs/data.md says of odd files, for each source that needs no library.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/array_files.hpp"
#include "trireme/data/chat_lines.hpp"
#include "trireme/data/cifar.hpp"
#include "trireme/data/csv.hpp"
#include "trireme/data/npz_files.hpp"
#include "trireme/data/tar_samples.hpp"
#include "trireme/data/text_tokens.hpp"
#include "trireme/data/token_shards.hpp"

using namespace trireme;
using data::shard_kind;

namespace {

std::string little(std::uint64_t number, std::size_t width) {
  std::string out;
  for (std::size_t i = 0; i < width; ++i) out += i < 8 ? static_cast<char>(number >> 8 * i & 0xff) : '\0';
  return out;
}
/// The header of numpy's array of one or two axes, of so many bytes.
std::string npy(std::string const& type, std::string const& shape_of, std::size_t bytes = 128) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape_of + ", }";
  header.resize(bytes - 11, ' ');
  return std::string("\x93NUMPY\x01\x00", 8) + little(bytes - 10, 2) + header + "\n";
}
std::string llm_c(std::int64_t count) {
  return little(20240520, 4) + little(1, 4) + little(static_cast<std::uint64_t>(count), 4) + std::string(1012, '\0');
}
/// The beginning of an archive's member, and what follows the last one.
std::string zip_begin(std::string const& name, std::uint64_t bytes) {
  return "PK\3\4" + little(20, 2) + little(0, 8) + little(0, 4) + little(bytes, 4) + little(bytes, 4) +
         little(name.size(), 2) + little(0, 2) + name;
}
std::string zip_end(std::string const& name, std::uint64_t bytes, std::uint64_t end) {
  auto const entry = "PK\1\2" + little(20, 2) + little(20, 2) + little(0, 8) + little(0, 4) + little(bytes, 4) +
                     little(bytes, 4) + little(name.size(), 2) + little(0, 16) + name;
  return entry + "PK\5\6" + little(0, 4) + little(1, 2) + little(1, 2) + little(entry.size(), 4) + little(end, 4) +
         little(0, 2);
}
std::string tar_entry(std::string const& name, std::uint64_t bytes) {
  std::string header(512, '\0'), octal;
  for (auto left = bytes; octal.size() < 11; left /= 8) octal.insert(octal.begin(), static_cast<char>('0' + left % 8));
  header.replace(0, name.size(), name);
  header.replace(124, 11, octal);
  header[156] = '0';
  header.replace(257, 8, std::string("ustar\00000", 8));
  header.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (auto const letter : header) sum += static_cast<unsigned char>(letter);
  octal.clear();
  for (; octal.size() < 6; sum /= 8) octal.insert(octal.begin(), static_cast<char>('0' + sum % 8));
  header.replace(148, 8, octal + std::string("\0 ", 2));
  return header;
}
std::string const record(3073, '\x05');

struct folder : scratch {
  std::string write(std::string const& name, std::string const& content) const {
    std::ofstream(*this / name, std::ios::binary) << content;
    return *this / name;
  }
  /// A file with a hole between what it begins with and what follows it.
  std::string sparse(std::string const& name, std::string const& begin, std::int64_t at,
                     std::string const& then) const {
    std::ofstream file(*this / name, std::ios::binary);
    file << begin;
    file.seekp(at);
    file << then;
    return *this / name;
  }
};

std::vector<std::int32_t> encode(std::string_view text) { return {text.begin(), text.end()}; }

/// Opens a source and reads its first and last sample.
template <class Open>
std::string said(Open const& open) {
  return sentence_of([&] {
    auto const samples = open();
    auto const bytes = [](dtype type, shape const& one) {
      return static_cast<std::size_t>(one.size()) * size_of(type);
    };
    std::vector<std::byte> in(bytes(samples.input_type(), samples.input_shape())),
        out(bytes(samples.target_type(), samples.target_shape()));
    for (auto const id : {std::int64_t{0}, samples.size() - 1}) {
      samples.read(std::span<std::int64_t const>(&id, 1), in.data(), out.data());
    }
  });
}

}  // namespace

TEST_CASE("odd files of each source are read, or refused in the sentence that the documentation names", "[data]") {
  folder const here;
  auto const shards = [&](std::string const& content, shard_kind kind = shard_kind::recognised) {
    return said(
        [&] { return data::token_shards{.files = here.write("a.bin", content), .context = 2, .kind = kind}.open(); });
  };
  auto const arrays = [&](std::string const& content) {
    auto const name = here.write("a.npy", content);
    return said([&] {
      return data::array_files{.features = name, .targets = name, .features_as = dtype::f32, .targets_as = dtype::f32}
          .open();
    });
  };
  auto const archives = [&](std::string const& content) {
    auto const name = here.write("a.npz", content);
    return said([&] {
      return data::npz_files{.files = name, .features = "x", .targets = "x", .features_as = dtype::f32, .check = false}
          .open();
    });
  };
  auto const tables = [&](std::string const& content) {
    return said(
        [&] { return data::csv{.files = here.write("a.csv", content), .features = {"x"}, .targets = {"y"}}.open(); });
  };
  auto const pictures = [&](std::string const& content) {
    return said([&] { return data::cifar{.files = here.write("a_cifar.bin", content)}.open(); });
  };
  auto const tars = [&](std::string const& content) {
    auto const name = here.write("a.tar", content);
    return said([&] {
      return data::tar_samples{.files = name}.open(
          {}, [](data::tar_sample const& from, std::span<float> inputs, std::span<std::int32_t> targets) {
            inputs[0] = 0;
            targets[0] = from.label("cls");
          });
    });
  };
  auto const chats = [&](std::string const& content) {
    return said([&] {
      return data::chat_lines{.files = here.write("a.jsonl", content), .format = data::chat_template::plain, .end = "!"}
          .open(encode);
    });
  };
  auto const texts = [&](std::string const& content) {
    return said([&] { return data::text_tokens{.path = here.write("a.txt", content), .context = 2}.open(encode); });
  };
  auto const expect = [&](std::string const& got, std::string const& wanted) {
    CAPTURE(got, wanted);
    CHECK((wanted.empty() ? got.empty() : contains(got, wanted)));
  };
  std::string const end(1024, '\0'), one_tar = tar_entry("1.cls", 1) + "7" + std::string(511, '\0');
  std::string const chat = R"({"prompt": "a", "completion": "b"})", numbers = little(0x3f800000, 4);
  auto const zip = [&](std::string const& member) {
    auto const begin = zip_begin("x.npy", member.size()) + member;
    return begin + zip_end("x.npy", member.size(), begin.size());
  };

  SECTION("empty") {
    for (auto const& each :
         {shards(""), arrays(""), archives(""), tables(""), pictures(""), tars(""), chats(""), texts("")}) {
      expect(each, "the file is empty");
    }
    expect(shards(llm_c(0)), "says that there are 0 tokens");
    expect(arrays(npy("<f4", "(0, 1)")), "a.npy");
    expect(archives(zip(npy("<f4", "(0, 1)"))), "x");
    expect(tables("x,y\n"), "has no record besides the names of its columns");
    expect(tars(end), "a.tar");
    expect(chats("\n\n"), "no sample is left");
  }
  SECTION("one sample") {
    expect(shards(llm_c(3) + std::string(6, '\1')), "");
    expect(shards(std::string(6, '\1'), shard_kind::u16), "");
    expect(arrays(npy("<f4", "(1, 1)") + numbers), "");
    expect(archives(zip(npy("<f4", "(1, 1)") + numbers)), "");
    expect(tables("x,y\n1,2"), "");
    expect(pictures(record), "");
    expect(tars(one_tar + end), "");
    expect(chats(chat), "");
    expect(texts("abc"), "");
  }
  SECTION("truncated") {
    expect(shards(llm_c(3) + std::string(5, '\1')), "says that 3 tokens of 2 bytes follow, but 5 bytes follow");
    expect(shards(std::string(7, '\1'), shard_kind::u16), "do not divide into numbers of 2 bytes");
    expect(arrays(npy("<f4", "(2, 1)") + numbers), "a.npy: byte ");
    expect(archives(zip(npy("<f4", "(1, 1)") + numbers).substr(0, 200)), "the end record of a ZIP archive is missing");
    expect(tables("x,y\n1,2\n3"), "line 3");
    expect(tables("x,y\n1,\"2"), "a.csv: byte ");
    expect(pictures(record + record.substr(0, 100)), "a_cifar.bin: byte 3073");
    expect(tars(one_tar.substr(0, 700)), "truncated");
    expect(chats(chat + "\n" + chat.substr(0, 20)), "a.jsonl: byte 55");
    expect(texts("ab\xe2\x82"), "2 tokens");  // half of a character is left out
  }
  SECTION("a header that lies") {
    expect(shards(llm_c(4) + std::string(6, '\1')), "a.bin: byte 8");
    expect(arrays(npy("<f4", "(9223372036854775807, 9)") + numbers), "a.npy: byte ");
    expect(archives(zip(npy("<f4", "(1000, 1)") + numbers)), "a.npz");
    expect(tars(tar_entry("1.cls", 1ULL << 32) + "7" + std::string(511, '\0') + end), "truncated");
    expect(tables("x,x\n1,2\n"), "x");
  }
  SECTION("numbers that are not aligned") {
    expect(arrays(npy("<f4", "(2, 1)", 97) + numbers + numbers), "");
    expect(archives(zip(npy("<f8", "(1, 1)", 101) + little(0, 8))), "");
    expect(shards(npy("<u4", "(3,)", 99) + little(1, 4) + little(2, 4) + little(3, 4)), "nothing says how");
    expect(said([&] {
             return data::token_shards{
                 .files = here.write("b.npy", npy("<u4", "(3,)", 99) + little(1, 4) + little(2, 4) + little(3, 4)),
                 .context = 2}
                 .open();
           }),
           "");
  }
  SECTION("another type") {
    expect(arrays(npy(">f4", "(1, 1)") + numbers), "big-endian");
    expect(arrays(npy("|O", "(1, 1)") + numbers), "object");
    expect(arrays(npy("<U1", "(1, 1)") + numbers), "elements of type \"<U1\" are not read");
    expect(arrays(npy("<c8", "(1, 1)") + numbers + numbers), "elements of type \"<c8\" are not read");
    expect(archives(zip("not an array")), "begins with");
    expect(said([&] { return data::token_shards{.files = here.write("f.npy", npy("<f4", "(1,)") + numbers)}.open(); }),
           "but tokens are one axis of integers");
    expect(tables("x,y\n1,two\n"), "is not a finite number");
    expect(pictures(std::string(1, '\x0b') + record.substr(1)), "a_cifar.bin: byte 0");
    expect(tars(tar_entry("1.cls", 1) + "x" + std::string(511, '\0') + end), "is not a whole number");
    expect(chats("{\"text\": \"a\"}"), "byte 0: a line is an object with \"messages\"");
    expect(chats("\xff\xfe"), "a.jsonl: byte 0");
    expect(shards("PK\3\4abcd"), "nothing says how the tokens are stored");
  }
  SECTION("3 GB, almost all of it a hole") {
    auto const start = std::chrono::steady_clock::now();
    std::int64_t const bytes = 3'000'000'000;
    std::int32_t label = -1;
    std::vector<float> in(3072);
    auto const last = [&](auto const& samples, void* inputs, void* targets) {
      auto const id = samples.size() - 1;
      samples.read(std::span<std::int64_t const>(&id, 1), inputs, targets);
    };
    std::int32_t ahead = 0;
    last(data::token_shards{.files = here.sparse("h.bin", llm_c(bytes / 2), 1024 + bytes - 4, little(0x00020001, 4)),
                            .context = 1}
             .open(),
         &label, &ahead);
    CHECK(label == 1);
    CHECK(ahead == 2);
    float value = 0, other = 0;
    auto const array = here.sparse("h.npy", npy("<f4", "(750000000, 1)"), 128 + bytes - 4, numbers);
    last(data::array_files{.features = array, .targets = array}.open(), &value, &other);
    CHECK(value == 1);
    std::filesystem::remove(array);
    auto const begin = zip_begin("x.npy", 128 + bytes) + npy("<f4", "(750000000, 1)");
    auto const size = static_cast<std::uint64_t>(bytes) + begin.size();
    auto const archive = here.sparse("h.npz", begin, static_cast<std::int64_t>(size) - 4,
                                     numbers + zip_end("x.npy", 128 + static_cast<std::uint64_t>(bytes), size));
    last(data::npz_files{.files = archive, .features = "x", .targets = "x", .check = false}.open(), &other, &value);
    CHECK(other == 1);
    std::int64_t const records = 10'000;  // the label of each is read once
    last(data::cifar{.files = here.sparse("h_cifar.bin", "", 3073 * (records - 1), record)}.open(), in.data(), &label);
    CHECK(label == 5);
    auto const tar = here.sparse("h.tar", tar_entry("0.big", static_cast<std::uint64_t>(bytes)),
                                 512 + (bytes + 511) / 512 * 512, one_tar + end);
    CHECK(data::tar_samples{.files = tar}.open().size() == 2);
    expect(said([&] {
             return data::csv{.files = here.sparse("h.csv", "x,y\n", bytes, "\n"), .features = {"x"}, .targets = {"y"}}
                 .open();
           }),
           "16");
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
  }
}
