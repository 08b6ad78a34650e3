#include "trireme/data/npz_files.hpp"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;
using data::npz_files;

namespace {

std::string little(std::uint64_t number, std::size_t width) {
  std::string out;
  for (std::size_t i = 0; i < width; ++i) out += i < 8 ? static_cast<char>(number >> 8 * i & 0xff) : '\0';
  return out;
}

/// An archive of members that are not compressed.
std::string zip_of(std::vector<std::pair<std::string, std::string>> const& members) {
  std::string out, directory;
  for (auto const& [name, content] : members) {
    auto const common = little(20, 2) + little(0, 8) +
                        little(formats::zip::crc32(0, std::as_bytes(std::span(content))), 4) +
                        little(content.size(), 4) + little(content.size(), 4) + little(name.size(), 2) + little(0, 2);
    directory += "PK\1\2" + little(20, 2) + common + little(0, 10) + little(out.size(), 4) + name;
    out += "PK\3\4" + common + name + content;
  }
  auto const at = out.size();
  return out + directory + "PK\5\6" + little(0, 4) + little(members.size(), 2) + little(members.size(), 2) +
         little(directory.size(), 4) + little(at, 4) + little(0, 2);
}

/// 0, 1, ... as numpy.save writes them.
std::string array_of(int count) {
  auto header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(count) + ", 1), }";
  header.resize(117, ' ');
  std::vector<float> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<float>(i));
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" +
         std::string(reinterpret_cast<char const*>(numbers.data()), 4 * numbers.size());
}

void write(std::string const& path, std::string const& content) { std::ofstream(path, std::ios::binary) << content; }

std::string refusal(npz_files const& from) {
  return sentence_of([&] { static_cast<void>(from.open()); });
}

}  // namespace

TEST_CASE("members of an archive are read by rows", "[data][npz_files]") {
  static_assert(dataset<data::npz_samples>);
  scratch const here;
  npz_files const from{.files = here / "a.npz", .features = "x", .targets = "y.npy"};
  auto const content = zip_of({{"x.npy", array_of(3)}, {"y.npy", array_of(3)}});
  write(here / "a.npz", content);
  auto const samples = from.open();
  CHECK(samples.size() == 3);
  CHECK(samples.input_shape() == shape{1});
  std::vector<float> in(2), out(2);
  samples.read(std::vector<std::int64_t>{2, 1}, in.data(), out.data());
  CHECK(in == std::vector<float>{2, 1});
  CHECK(out == in);
  CHECK(to_string(npz_files{.files = "a.npz", .features = "x", .targets = "y"}) ==
        "trireme::data::npz_files{.files = \"a.npz\", .features = \"x\", .targets = \"y\"}");
  CHECK(contains(refusal({.files = here / "a.npz", .features = "z", .targets = "y"}),
                 "has no member \"z\", which .features names; it has \"x\", \"y\""));

  // No damage of one byte, and no end that is missing, gives other numbers.
  int refused = 0;
  for (std::size_t i = 0; i < content.size(); ++i) {
    auto changed = content;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    write(here / "a.npz", changed);
    auto const problem = sentence_of([&] {
      auto const again = from.open();
      again.read(std::vector<std::int64_t>{2, 1}, in.data(), out.data());
    });
    if (!problem.empty()) ++refused;
    if (in != std::vector<float>{2, 1} || out != in) FAIL(i);
    write(here / "a.npz", content.substr(0, i));
    if (refusal(from).empty()) FAIL(i);
  }
  CHECK(refused > static_cast<int>(2 * array_of(3).size()));
}

TEST_CASE("an archive of 65535 members needs no zip64, and one of more does", "[data][npz_files]") {
  auto const member = zip_of({{"x", ""}});
  auto const entry = member.substr(31, 47);  // between the member of 31 bytes and the end record
  auto const members_of = [&](int count, int stated) {
    auto archive = member.substr(0, 31);
    for (int i = 0; i < count; ++i) archive += entry;
    archive += "PK\5\6" + little(0, 4) + little(static_cast<std::uint64_t>(stated), 2) +
               little(static_cast<std::uint64_t>(stated), 2) +
               little(entry.size() * static_cast<std::size_t>(count), 4) + little(31, 4) + little(0, 2);
    auto const read = [&](std::uint64_t at, std::span<std::byte> to) {
      std::memcpy(to.data(), archive.data() + at, to.size());
    };
    return formats::zip::read_directory(read, archive.size(), "a.npz").members.size();
  };
  CHECK(members_of(65535, 65535) == 65535);
  CHECK(
      contains(sentence_of([&] { static_cast<void>(members_of(65536, 65535)); }), "something follows the last entry"));
}

TEST_CASE("archives that numpy wrote are read, and odd ones are refused by one sentence", "[data][npz_files]") {
  scratch const here;
  if (!python_ran("write_npz.py", here.path())) return;
  std::vector<std::int64_t> const ids{4, 0, 3};
  std::vector<float> in(3 * 6), expected;
  for (auto const s : ids) {
    for (int j = 0; j < 2; ++j) {
      for (int k = 0; k < 3; ++k) expected.push_back(static_cast<float>(100 * s + 10 * j + k));
    }
  }
  auto const of = [&](std::string const& name) {
    return npz_files{.files = here / name, .features = "x", .targets = "y", .targets_as = dtype::i32};
  };
  for (auto const* const name :
       {"stored.npz", "columns.npz", "cut_*.npz", "descriptors.npz", "zip64.npz", "comment.npz"}) {
    CAPTURE(name);
    auto const samples = of(name).open();
    CHECK(samples.size() == 5);
    CHECK(samples.input_shape() == shape{2, 3});
    CHECK(samples.target_shape() == shape{});
    std::vector<std::int32_t> out(3);
    samples.read(ids, in.data(), out.data());
    CHECK(in == expected);
    CHECK(out == std::vector<std::int32_t>{4, 0, 3});
  }
  auto const expect = [&](std::string const& name, std::string const& words) {
    CAPTURE(name, refusal(of(name)));
    CHECK(contains(refusal(of(name)), words));
  };
  expect("deflated.npz", "member \"x.npy\" is compressed; save it with numpy.savez");
  expect("bzip2.npz", "compressed by method 12, which is not read");
  expect("twice.npz", "has two members that .features = \"x\" may mean");
  expect("text.npz", "text.npz/x.npy: byte 0: an array of numpy begins with");
  expect("short.npz", "there are 5 rows of \"x\" but 4 of \"y\"");
  expect("none.npz", "it has none");
  expect("truncated.npz", "the end record of a ZIP archive is missing");
  expect("half.npz", "the end record of a ZIP archive is missing");
  expect("prefix.npz", "bytes before the archive");
  expect("crc.npz", "member \"x.npy\" is damaged: its bytes do not have the checksum");
  expect("encrypted.npz", "member \"x.npy\" is encrypted");
  expect("empty.npz", "the file is empty");
  expect("nothing.npz", "no file matches");
  auto unchecked = of("crc.npz");
  unchecked.check = false;
  CHECK(unchecked.open().size() == 5);
}
