#include "trireme/data/picture_folders.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
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
using data::picture_folders;

namespace {

/// A PNG file, with the simple interface of libpng. Pixel (y, x) is (y, x, colour).
std::string png_file(int height, int width, unsigned char blue) {
  ::png_image about{};
  about.version = PNG_IMAGE_VERSION;
  about.height = static_cast<::png_uint_32>(height);
  about.width = static_cast<::png_uint_32>(width);
  about.format = PNG_FORMAT_RGB;
  std::vector<unsigned char> pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      pixels.push_back(static_cast<unsigned char>(y));
      pixels.push_back(static_cast<unsigned char>(x));
      pixels.push_back(blue);
    }
  }
  ::png_alloc_size_t bytes = 0;
  REQUIRE(::png_image_write_to_memory(&about, nullptr, &bytes, 0, pixels.data(), 0, nullptr) != 0);
  std::string out(bytes, '\0');
  REQUIRE(::png_image_write_to_memory(&about, out.data(), &bytes, 0, pixels.data(), 0, nullptr) != 0);
  return out;
}

void write_picture_file(std::string const& path, std::string const& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string refusal(std::string const& file) {
  formats::picture out;
  return formats::decode_picture(std::as_bytes(std::span(file)), out);
}

formats::picture expected_picture(std::string const& path) {
  auto const bytes = formats::read_file(path);
  std::int32_t size[2];
  REQUIRE(bytes.size() > sizeof size);
  std::memcpy(size, bytes.data(), sizeof size);
  formats::picture out{size[0], size[1], {}};
  out.colours.resize(bytes.size() - sizeof size);
  std::memcpy(out.colours.data(), bytes.data() + sizeof size, out.colours.size());
  return out;
}

}  // namespace

static_assert(dataset<data::picture_folder_samples>);

TEST_CASE("folders are classes, and pictures of any depth in them are samples", "[data][pictures]") {
  scratch const here;
  write_picture_file(here / "dogs/b.PNG", png_file(2, 3, 10));
  write_picture_file(here / "dogs/a/c.png", png_file(2, 3, 20));
  write_picture_file(here / "cats/1.png", png_file(4, 6, 30));
  write_picture_file(here / "cats/.hidden.png", "not a picture");
  write_picture_file(here / "cats/notes.txt", "not a picture");
  write_picture_file(here / "README.md", "a file beside the classes");
  auto const samples = picture_folders{.directory = here.path(), .height = 2, .width = 3}.open();
  CHECK(samples.classes() == std::vector<std::string>{"cats", "dogs"});
  REQUIRE(samples.size() == 3);
  CHECK(samples.input_shape() == shape{2, 3, 3});
  CHECK(samples.path_of(1) == here / "dogs/a/c.png");
  std::vector<std::int64_t> const ids{2, 0, 1};
  std::vector<float> in(3 * 18);
  std::vector<std::int32_t> out(3);
  samples.read(ids, in.data(), out.data());
  CHECK(out == std::vector<std::int32_t>{1, 0, 1});
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(in[3 * i] == static_cast<float>(i / 3 / 255.0));
    CHECK(in[3 * i + 1] == static_cast<float>(static_cast<double>(i % 3) / 255));
    CHECK(in[3 * i + 2] == static_cast<float>(10 / 255.0));
    CHECK(in[36 + 3 * i + 2] == static_cast<float>(20 / 255.0));
  }
  auto const scaled = picture_folders{
      .directory = here.path(), .height = 2, .width = 3, .mean = {0, 0, 0.5}, .deviation = {1, 1, 0.25}};
  scaled.open().read(std::vector<std::int64_t>{2}, in.data(), out.data());
  CHECK(in[2] == static_cast<float>((10 / 255.0 - 0.5) / 0.25));
  CHECK(contains(to_string(scaled), ".mean = {0, 0, 0.5}"));
}

TEST_CASE("the middle of a picture is cut, or all of it is stretched", "[data][pictures]") {
  scratch const here;
  write_picture_file(here / "one/wide.png", png_file(4, 12, 0));
  std::vector<float> in(4 * 4 * 3);
  std::int32_t label = 0;
  auto columns = [&](data::picture_fit fit) {
    picture_folders{.directory = here.path(), .height = 4, .width = 4, .fit = fit}.open().read(
        std::vector<std::int64_t>{0}, in.data(), &label);
    std::vector<int> out;
    for (std::size_t x = 0; x < 4; ++x) out.push_back(static_cast<int>(in[3 * x + 1] * 255 + 0.5F));
    return out;
  };
  CHECK(columns(data::picture_fit::cut) == std::vector<int>{4, 5, 6, 7});
  CHECK(columns(data::picture_fit::stretch) == std::vector<int>{1, 4, 7, 10});
}

TEST_CASE("what is wrong with folders and files of pictures is one sentence", "[data][pictures]") {
  scratch const here;
  auto const open = [&](picture_folders const& from) { return [from] { static_cast<void>(from.open()); }; };
  auto said = [](auto&& body) -> std::string {
    try {
      body();
    } catch (error const& thrown) {
      return thrown.what();
    }
    return "nothing";
  };
  CHECK(contains(said(open({.height = 1, .width = 1})), ".directory is empty"));
  CHECK(contains(said(open({.directory = here.path(), .width = 1})), ".height is 0, but must be from 1 to 16384"));
  CHECK(contains(said(open({.directory = here.path(), .height = 1, .width = 1})), "the directory has no folder"));
  CHECK(contains(said(open({.directory = here / "none", .height = 1, .width = 1})), "none"));
  write_picture_file(here / "dogs/notes.txt", "no picture");
  CHECK(contains(said(open({.directory = here.path(), .height = 1, .width = 1})),
                 "dogs: trireme::data::picture_folders"));
  CHECK(contains(said(open({.directory = here.path(), .height = 1, .width = 1, .deviation = {1, 0, 1}})),
                 "the deviation above 0"));
  auto const good = png_file(5, 5, 1);
  write_picture_file(here / "dogs/cut.png", good.substr(0, good.size() / 2));
  write_picture_file(here / "dogs/empty.png", "");
  write_picture_file(here / "dogs/large.png", good);
  std::filesystem::resize_file(here / "dogs/large.png", 3'000'000'000);  // mostly a hole
  write_picture_file(here / "dogs/text.png", "not a picture");
  auto const damaged = picture_folders{.directory = here.path(), .height = 1, .width = 1}.open();
  REQUIRE(damaged.size() == 4);
  auto const of_sample = [&](std::int64_t id) {
    return said([&] {
      float in[3];
      std::int32_t label;
      damaged.read(std::span(&id, 1), in, &label);
    });
  };
  auto const at_begin = [&](std::string const& name) {
    return here / name + ": byte 0: trireme::data::picture_folders: ";
  };
  CHECK(contains(of_sample(0), at_begin("dogs/cut.png") + "sample 0: this PNG file cannot be decoded"));
  CHECK(of_sample(1) ==
        at_begin("dogs/empty.png") + "sample 1: this is neither a PNG nor a JPEG file by its first bytes");
  CHECK(contains(of_sample(2), here / "dogs/large.png" + ": has 3000000000 bytes, more than the 1073741824 expected"));
  CHECK(of_sample(3) ==
        at_begin("dogs/text.png") + "sample 3: this is neither a PNG nor a JPEG file by its first bytes");
  CHECK(contains(refusal("GIF89a"), "neither a PNG nor a JPEG"));
  CHECK(refusal(good).empty());
  for (std::size_t bytes = 8; bytes < good.size(); ++bytes) CHECK(!refusal(good.substr(0, bytes)).empty());
  auto large = good;  // 2^15 x 2^15; libpng also checks the checksum, so it is made new
  large.replace(16, 8, std::string("\0\0\x80\0\0\0\x80\0", 8));
  std::uint32_t crc = 0xFFFFFFFF;
  for (std::size_t i = 12; i < 29; ++i) {
    crc ^= static_cast<unsigned char>(large[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  crc = ~crc;
  for (int i = 0; i < 4; ++i) large[29 + static_cast<std::size_t>(i)] = static_cast<char>(crc >> (24 - 8 * i));
  CHECK(contains(refusal(large), "it says that it is 32768 x 32768 pixels, but at most 2^28 are read"));
  for (std::size_t at = 8; at < good.size(); ++at) {  // no damage may end the program
    auto changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    static_cast<void>(refusal(changed));
  }
}

TEST_CASE("pictures are resized to the same bytes at every CPU level", "[data][pictures]") {
  auto const level = ops::detected();
  std::uint32_t state = 1;
  auto const drawn = [&](int below) {
    state = state * 1664525 + 1013904223;
    return static_cast<int>((state >> 8) % static_cast<std::uint32_t>(below));
  };
  for (int round = 0; round < 200; ++round) {
    formats::picture of{1 + drawn(60), 1 + drawn(60), {}};
    of.colours.resize(static_cast<std::size_t>(of.height * of.width * 3));
    for (auto& each : of.colours) each = static_cast<unsigned char>(round % 5 == 0 ? 255 * drawn(2) : drawn(256));
    auto const height = 1 + drawn(of.height), width = 1 + drawn(of.width);
    auto const top = drawn(of.height - height + 1), left = drawn(of.width - width + 1);
    auto const to_height = 1 + drawn(50), to_width = 1 + drawn(50);
    auto const made = [&](ops::cpu_level at) {
      ops::detected(at);
      return formats::resized(of, top, left, height, width, to_height, to_width).colours;
    };
    auto const plain = made(ops::cpu_level::baseline);
    CAPTURE(of.height, of.width, top, left, height, width, to_height, to_width);
    CHECK(made(ops::cpu_level::avx2) == plain);
    if (round % 5 == 0 && std::ranges::all_of(of.colours, [](auto each) { return each == 255; }))
      CHECK(std::ranges::all_of(plain, [](auto each) { return each == 255; }));
  }
  ops::detected(level);
}

TEST_CASE("pictures are decoded, turned and resized as by Pillow", "[data][pictures]") {
  scratch const here;
  if (!python_ran("write_pictures.py", here.path())) return;
  std::ifstream names(here / "names");
  int read = 0;
  for (std::string name; std::getline(names, name); ++read) {
    CAPTURE(name);
    auto const bytes = formats::read_file(here / name);
    auto const ours = formats::read_picture(bytes, name);
    auto const expected = expected_picture(here / (name + ".raw"));
    CHECK(ours.height == expected.height);
    CHECK(ours.width == expected.width);
    CHECK(ours.colours == expected.colours);
    for (auto const& [height, width] : {std::pair{32, 32}, {5, 7}, {1, 1}, {70, 50}, {31, 65}}) {
      auto const path = here / text(name, ".", height, ".", width, ".raw");
      if (!std::filesystem::exists(path)) continue;
      auto const resized = formats::resized(ours, height, width);
      auto const wanted = expected_picture(path);
      REQUIRE(resized.colours.size() == wanted.colours.size());
      int largest = 0;
      for (std::size_t i = 0; i < wanted.colours.size(); ++i)
        largest = std::max(largest, std::abs(resized.colours[i] - wanted.colours[i]));
      CHECK(largest <= 1);
    }
    // Damage is refused or makes another picture, and nothing else.
    std::string damaged(reinterpret_cast<char const*>(bytes.data()), bytes.size());
    for (std::size_t at = 2; at < damaged.size(); at += 7) {
      auto changed = damaged;
      changed[at] = static_cast<char>(changed[at] ^ 0x55);
      static_cast<void>(refusal(changed));
    }
  }
  CHECK(read == 34);
}
