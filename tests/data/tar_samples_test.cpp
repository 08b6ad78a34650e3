// test-sanitize: address
#include "trireme/data/tar_samples.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/formats/zip.hpp"

using namespace trireme;
using data::tar_samples;

namespace {

std::string octal(std::uint64_t number, int digits) {
  std::string out;
  for (; digits > 0; --digits, number /= 8) out.insert(out.begin(), static_cast<char>('0' + number % 8));
  return out;
}

std::string with_sum(std::string header) {
  header.replace(148, 8, 8, ' ');
  std::uint64_t sum = 0;
  for (auto const letter : header) sum += static_cast<unsigned char>(letter);
  header.replace(148, 8, octal(sum, 6) + std::string("\0 ", 2));
  return header;
}

/// A file as ustar has it.
std::string entry(std::string const& name, std::string const& content, char kind = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 8, std::string("0000644\0", 8));
  header.replace(124, 12, octal(content.size(), 11) + '\0');
  header[156] = kind;
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  auto out = with_sum(header) + content;
  out.resize((out.size() + 511) / 512 * 512);
  return out;
}
std::string const ending(1024, '\0');

void write_file(std::string const& path, std::string const& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

/// An array of numpy with one axis.
template <class T>
std::string npy(char const* type, std::vector<T> const& values) {
  std::string header = text("{'descr': '", type, "', 'fortran_order': False, 'shape': (", values.size(), ",), }");
  header.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" +
         std::string(reinterpret_cast<char const*>(values.data()), values.size() * sizeof(T));
}

std::string refused(std::string const& path) {
  return sentence_of([&] { static_cast<void>(tar_samples{.files = path}.open()); });
}

}  // namespace

TEST_CASE("files of one name up to the first dot are one sample", "[data][tar]") {
  scratch const here;
  auto const label = [](int i) { return text(i, "\n"); };
  write_file(here / "b.tar", entry("10.cls", label(7)) + entry("10.x.npy", npy<float>("<f4", {5, 6, 7})) + ending);
  write_file(here / "a.tar", entry("./", "", '5') + entry("README", "no sample") + entry("__meta__", "no sample") +
                                 entry(".hidden.cls", "no sample") +
                                 entry("v1.2/1.X.NPY", npy<float>("<f4", {1, 2, 3})) + entry("v1.2/1.cls", " -4 ") +
                                 entry("v1.2/link", "", '2') + entry("v1.2/2.cls", label(5)) +
                                 entry("v1.2/2.x.npy", npy<std::int16_t>("<i2", {4, 5, 6})) + ending);
  auto const index = tar_samples{.files = here / "*.tar"}.open();
  REQUIRE(index.size() == 3);
  CHECK(index[0].key() == "v1.2/1");
  CHECK(index[0].endings() == std::vector<std::string>{"x.npy", "cls"});
  CHECK(index[1].key() == "v1.2/2");
  CHECK(index[2].key() == "10");
  CHECK(index[2].path() == here / "b.tar");
  CHECK(index[2].string("cls") == "7\n");
  CHECK((index[2].has("cls") && !index[2].has("jpg") && !index[2].has("npy")));

  auto const samples = tar_samples{.files = here / "*.tar"}.open(
      {.inputs = {3}}, [](data::tar_sample const& from, std::span<float> inputs, std::span<std::int32_t> targets) {
        from.numbers("x.npy", inputs);
        targets[0] = from.label("cls");
      });
  static_assert(dataset<std::remove_const_t<decltype(samples)>>);
  CHECK(samples.target_shape() == shape{});
  std::vector<std::int64_t> const ids{2, 0, 1};
  std::vector<float> inputs(9);
  std::vector<std::int32_t> targets(3);
  samples.read(ids, inputs.data(), targets.data());
  CHECK(inputs == std::vector<float>{5, 6, 7, 1, 2, 3, 4, 5, 6});
  CHECK(targets == std::vector<std::int32_t>{7, -4, 5});
  data::loader batches(samples, {.batch = 3});
  CHECK(batches.next().samples == 3);
}

TEST_CASE("archives of tarfile have the files that it finds in them", "[data][tar]") {
  scratch const here;
  if (!python_ran("write_tar.py", here.path())) return;
  int archives = 0;
  for (auto const& each : std::filesystem::directory_iterator(here.path())) {
    auto const path = each.path().string();
    if (!path.ends_with(".tar")) continue;
    ++archives;
    INFO(path);
    std::ifstream in(path, std::ios::binary);
    std::string const bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::ostringstream found;
    auto const read = [&](std::uint64_t at, std::span<std::byte> to) {
      REQUIRE(at + to.size() <= bytes.size());
      std::copy_n(reinterpret_cast<std::byte const*>(bytes.data()) + at, to.size(), to.begin());
    };
    formats::tar::read_members(read, bytes.size(), path, [&](formats::tar::member const& member) {
      found << member.bytes << ' ' << member.data_at << ' ' << member.name << '\n';
    });
    std::ifstream expected(path + ".txt", std::ios::binary);
    CHECK(found.str() == std::string((std::istreambuf_iterator<char>(expected)), std::istreambuf_iterator<char>()));
    // Cut anywhere, it is an error of one sentence with the file and a byte.
    for (std::size_t size = 1; size + 1024 < bytes.size(); size += 509) {
      auto const cut = bytes.substr(0, size);
      auto const read_cut = [&](std::uint64_t at, std::span<std::byte> to) {
        REQUIRE(at + to.size() <= cut.size());
        std::copy_n(reinterpret_cast<std::byte const*>(cut.data()) + at, to.size(), to.begin());
      };
      auto const said = sentence_of<format_error>(
          [&] { formats::tar::read_members(read_cut, cut.size(), path, [](formats::tar::member const&) {}); });
      bool const whole = cut.size() > 512 && cut.find_last_not_of('\0') < cut.size() - 512;  // a block of zeros
      if (!whole) CHECK(contains(said, "truncated"));
    }
  }
  CHECK(archives == 4);
}

TEST_CASE("archives have the samples that WebDataset finds in them", "[data][tar]") {
  scratch const here;
  if (!python_ran("write_webdataset.py", here.path())) return;
  for (auto const* const name : {"written.tar", "names.tar"}) {
    CAPTURE(name);
    auto const samples = tar_samples{.files = here / name}.open();
    std::ostringstream found;
    for (std::int64_t id = 0; id < samples.size(); ++id) {
      auto const sample = samples[id];
      auto endings = sample.endings();
      std::sort(endings.begin(), endings.end());
      found << sample.key();
      for (auto const& ending : endings) {
        auto sum = formats::zip::crc32(0, sample.bytes(ending));
        std::string digits;
        for (; digits.size() < 8; sum >>= 4) digits.insert(digits.begin(), "0123456789abcdef"[sum & 15]);
        found << ' ' << ending << '=' << digits;
      }
      found << '\n';
    }
    std::ifstream expected(here / (std::string(name) + ".txt"), std::ios::binary);
    CHECK(found.str() == std::string((std::istreambuf_iterator<char>(expected)), std::istreambuf_iterator<char>()));
  }
}

TEST_CASE("sizes beyond octal digits, old headers and sums of signed bytes are read", "[data][tar]") {
  scratch const here;
  auto binary = entry("1.txt", "abc");
  binary.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12));
  binary.replace(0, 512, with_sum(binary.substr(0, 512)));
  auto old = entry("2.txt", "de");
  old.replace(257, 8, 8, '\0');
  old[156] = '\0';
  old.replace(0, 512, with_sum(old.substr(0, 512)));
  auto folder = entry("old/", "", '\0');
  write_file(here / "a.tar", binary + old + folder + ending);
  auto const index = tar_samples{.files = here / "a.tar"}.open();
  REQUIRE(index.size() == 2);
  CHECK(index[0].string("txt") == "abc");
  CHECK(index[1].string("txt") == "de");
}

TEST_CASE("damaged archives and samples are refused in a sentence with file and byte", "[data][tar]") {
  scratch const here;
  auto const path = here / "a.tar";
  auto const said = [&](std::string const& bytes) {
    write_file(path, bytes);
    auto const out = refused(path);
    CHECK(contains(out, path));
    return out;
  };
  auto const one = entry("1.txt", "abc");
  CHECK(contains(said(one + one.substr(0, 100)), "byte 1024: the archive ends within a header; it is truncated"));
  CHECK(contains(said(one), "byte 1024: the archive ends without the blocks of zeros that are its end"));
  CHECK(contains(said(one.substr(0, 700)), "byte 0: \"1.txt\" has 3 bytes, but only 188 follow; the archive is"));
  auto damaged = one;
  damaged[3] = 'X';
  CHECK(contains(said(damaged + ending), "byte 0: this is no header of a file: its checksum is wrong"));
  CHECK(contains(said(one + ending + one + ending), "byte 2048: bytes follow the end of the archive"));
  CHECK(contains(said("\x1f\x8b\x08 something"), "byte 0: the archive is compressed by gzip; decompress it"));
  CHECK(contains(said(entry("1.txt", "abc", 'S') + ending), "\"1.txt\" is stored with holes (sparse)"));
  CHECK(contains(said(entry("x", "21 GNU.sparse.name=1\n", 'x') + one + ending), "\"1.txt\" is stored with holes"));
  CHECK(contains(said(entry("x", "99 path=1\n", 'x') + one + ending), "byte 512: a record of a pax header is damaged"));
  CHECK(contains(said(entry("x", "12 size=-1\n", 'x') + one + ending), "a record of a pax header is damaged"));
  CHECK(contains(said(entry("x", "11 size=-1\n", 'x') + one + ending), "the size in the pax header is not a number"));
  auto sized = one;
  sized.replace(124, 12, "0000000000x\0");
  CHECK(contains(said(with_sum(sized.substr(0, 512)) + ending), "the size in this header is not a number"));
  CHECK(contains(said(one + entry("1.TXT", "b") + ending),
                 "byte 1024: trireme::data::tar_samples: the sample 1 has two files that end in .txt"));
  CHECK(contains(said(entry("README", "abc") + ending), "has no sample: no file whose name has an ending"));
  CHECK(contains(refused(here / "none.tar"), "no file matches"));

  write_file(path, entry("1.cls", "ten") + entry("1.npy", npy<double>("<f8", {1, 2})) + ending);
  auto const index = tar_samples{.files = path}.open();
  auto const of = [&](auto const& call) { return sentence_of<format_error>([&] { call(index[0]); }); };
  CHECK(of([](auto const& it) { static_cast<void>(it.label("cls")); }) ==
        text(path,
             ": byte 512: trireme::data::tar_samples: sample 0 (1.cls): \"ten\" is not a whole number that an "
             "int32 holds"));
  CHECK(contains(of([](auto const& it) { static_cast<void>(it.bytes("jpg")); }),
                 "sample 0 (1.jpg): the sample has no such file; it has cls, npy"));
  std::vector<float> three(3), two(2);
  CHECK(contains(of([&](auto const& it) { it.numbers("npy", std::span(three)); }),
                 "the array has the shape (2), but 3 numbers are needed"));
  CHECK(contains(of([&](auto const& it) { it.numbers("cls", std::span(three)); }), "an array of numpy begins with"));
  std::vector<std::int32_t> whole(2);
  CHECK(contains(of([&](auto const& it) { it.numbers("npy", std::span(whole)); }), "the array holds float64, not"));
  index[0].numbers("npy", std::span(two));
  CHECK(two == std::vector<float>{1, 2});
  CHECK(to_string(tar_samples{.files = "a.tar"}) == "trireme::data::tar_samples{.files = \"a.tar\"}");
}
