#include "trireme/data/token_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;
namespace fs = std::filesystem;

namespace {

struct folder : scratch {
  [[nodiscard]] std::string write(std::string const& name, std::string const& content) const {
    std::ofstream(*this / name, std::ios::binary) << content;
    return *this / name;
  }
};

std::string alphabet(std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(static_cast<char>(i % 251));
  return out;
}

template <class Windows>
std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> read(Windows const& data,
                                                                     std::vector<std::int64_t> const& ids) {
  auto const count = ids.size() * static_cast<std::size_t>(data.input_shape().size());
  std::vector<std::int32_t> in(count, -7), out(count, -7);
  data.read(ids, in.data(), out.data());
  return {in, out};
}

}  // namespace

TEST_CASE("training windows step by one context and look one byte ahead", "[data][token_file]") {
  folder const here;
  auto const path = here.write("text", alphabet(21));
  auto const data = data::token_file{.path = path, .context = 5}.open();
  static_assert(dataset<data::token_windows>);
  CHECK(data.size() == 4);  // 4 * 5 + 1 = 21 bytes are just enough
  CHECK(data.input_shape() == shape{5});
  auto const [in, out] = read(data, {3, 0});
  CHECK(in == std::vector<std::int32_t>{15, 16, 17, 18, 19, 0, 1, 2, 3, 4});
  CHECK(out == std::vector<std::int32_t>{16, 17, 18, 19, 20, 1, 2, 3, 4, 5});
  CHECK(data::token_file{.path = here.write("less", alphabet(20)), .context = 5}.open().size() == 3);
}

TEST_CASE("a range of a file is cut like a file of its own", "[data][token_file]") {
  folder const here;
  auto const path = here.write("text", alphabet(100));
  auto const data = data::token_file{.path = path, .context = 4, .first_byte = 10, .last_byte = 18}.open();
  CHECK(data.size() == 2);
  auto const [in, out] = read(data, {1});
  CHECK(in == std::vector<std::int32_t>{14, 15, 16, 17});
  CHECK(out == std::vector<std::int32_t>{15, 16, 17, 18});
  CHECK(data::token_file{.path = path, .context = 4, .first_byte = 10, .last_byte = 17}.open().size() == 1);
}

TEST_CASE("bytes above 127 are tokens above 127", "[data][token_file]") {
  folder const here;
  auto const data = data::token_file{.path = here.write("text", "\xff\x80\x01"), .context = 2}.open();
  auto const [in, out] = read(data, {0});
  CHECK(in == std::vector<std::int32_t>{255, 128});
  CHECK(out == std::vector<std::int32_t>{128, 1});
}

TEST_CASE("held-out windows do not overlap and leave their last target out", "[data][token_file]") {
  folder const here;
  auto const path = here.write("text", alphabet(14));
  auto const data = data::token_file{.path = path, .context = 5}.open_held_out();
  static_assert(dataset<data::held_out_windows>);
  CHECK(data.size() == 2);
  auto const [in, out] = read(data, {0, 1});
  CHECK(in == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(out == std::vector<std::int32_t>{1, 2, 3, 4, -1, 6, 7, 8, 9, -1});
  CHECK(data::token_file{.path = path, .context = 14}.open_held_out().size() == 1);
  CHECK_THROWS_AS((data::token_file{.path = path, .context = 15}.open_held_out()), config_error);
}

TEST_CASE("a split shares no byte and says where it cut", "[data][token_file]") {
  folder const here;
  for (std::int64_t bytes : {99, 100, 101, 109, 110, 1000, 6999, 99999}) {
    CAPTURE(bytes);
    auto const path = here.write("text", alphabet(static_cast<std::size_t>(bytes)));
    auto const parts = data::split_text(path, 8);
    CHECK(parts.bytes == bytes);
    CHECK(parts.held_out_begin == bytes * 9 / 10);
    CHECK(parts.training.description().last_byte == parts.held_out_begin - 1);
    CHECK(parts.held_out.description().first_byte == parts.held_out_begin);
    CHECK(parts.training.size() == (parts.held_out_begin - 1) / 8);
    CHECK(parts.held_out.size() == (bytes - parts.held_out_begin) / 8);
    auto const [in, out] = read(parts.held_out, {0});
    CHECK(in[0] == static_cast<std::int32_t>(parts.held_out_begin % 251));
  }
  auto const path = here.write("text", alphabet(1000));
  CHECK(data::split_text(path, 8, 0.25).held_out_begin == 750);
  for (double fraction : {0.0, 1.0, -0.1, 1.5, 1e-9})
    CHECK_THROWS_AS(data::split_text(path, 8, fraction), config_error);
  CHECK_THROWS_AS(data::split_text(path, 101), config_error);  // 100 bytes are held out
  CHECK_THROWS_AS(data::split_text(here / "none", 8), io_error);
}

TEST_CASE("files that cannot be used are refused by name", "[data][token_file]") {
  folder const here;
  auto const open = [](std::string const& path) { (void)data::token_file{.path = path, .context = 4}.open(); };
  auto const missing = here / "missing";
  CHECK_THROWS_AS(open(missing), io_error);
  CHECK(sentence_of([&] { open(missing); }) ==
        missing + ": trireme::data::token_file: cannot open the file: No such file or directory");
  CHECK(sentence_of([&] { open(here.path()); }) ==
        here.path() + ": trireme::data::token_file: this is a directory, but a file is needed");
  CHECK(sentence_of([&] { open(here.write("empty", "")); }).ends_with("the file is empty"));
  CHECK_THROWS_AS(open(here.write("empty", "")), io_error);
  auto const pipe = here / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(sentence_of([&] { open(pipe); }).ends_with("this is not a regular file, so it cannot be read at any position"));
  CHECK_THROWS_AS(open(here.write("file", "12345") + "/below"), io_error);
  CHECK_THROWS_AS(open(std::string(5000, 'x')), io_error);
  auto const locked = here.write("locked", alphabet(100));
  fs::permissions(locked, fs::perms::none);
  // The superuser may read everything.
  if (::geteuid() == 0) {
    CHECK_NOTHROW(open(locked));
  } else {
    CHECK(sentence_of([&] { open(locked); }).ends_with("cannot open the file: Permission denied"));
  }
}

TEST_CASE("ranges and contexts that do not fit are refused by name", "[data][token_file]") {
  folder const here;
  auto const path = here.write("text", alphabet(10));
  auto const open = [](data::token_file const& file) { (void)file.open(); };
  CHECK_NOTHROW(open({.path = path, .context = 9}));
  CHECK(sentence_of([&] { open({.path = path, .context = 10}); }) ==
        "trireme::data::token_file: " + path +
            ": the range has 10 bytes, but one window of .context = 10 needs one more than that many: choose a shorter "
            "context or a longer text");
  CHECK_THROWS_AS(open({.path = path, .context = 10}), config_error);
  CHECK_THROWS_AS(open({.path = path, .context = 0}), config_error);
  CHECK_THROWS_AS(open({.path = path, .context = INT64_MAX}), config_error);
  CHECK_THROWS_AS(open({.path = path, .context = 2, .first_byte = -1}), config_error);
  CHECK_THROWS_AS(open({.path = path, .context = 2, .first_byte = 10}), config_error);
  CHECK_THROWS_AS(open({.path = path, .context = 2, .last_byte = 10}), config_error);
  CHECK_THROWS_AS(open({.path = path, .context = 2, .last_byte = -2}), config_error);
  CHECK_THROWS_AS(open({.path = path, .context = 2, .first_byte = 5, .last_byte = 4}), config_error);
  CHECK(to_string(data::token_file{.path = "a", .context = 3}) ==
        "trireme::data::token_file{.path = \"a\", .context = 3, .first_byte = 0, .last_byte = -1}");
}

TEST_CASE("a copy of the windows may outlive the original", "[data][token_file]") {
  folder const here;
  auto const path = here.write("text", alphabet(10));
  auto const copy = [&] {
    auto const original = data::token_file{.path = path, .context = 3}.open();
    return original;
  }();
  fs::remove(path);  // the open file remains readable
  CHECK(read(copy, {1}).first == std::vector<std::int32_t>{3, 4, 5});
}

TEST_CASE("a file that was truncated after opening gives an error with the position", "[data][token_file]") {
  folder const here;
  auto const path = here.write("text", alphabet(100000));
  auto const training = data::token_file{.path = path, .context = 1000}.open();
  auto const held_out =
      data::token_file{.path = path, .context = 20000}.open_held_out();  // larger than the buffer on the stack
  auto const before = read(training, {7});
  CHECK(read(held_out, {4}).first[0] == 80000 % 251);
  fs::resize_file(path, 50000);  // with a memory map, most pages would be gone: SIGBUS
  CHECK(read(training, {7}) == before);
  CHECK_THROWS_AS(read(training, {80}), io_error);
  CHECK(sentence_of([&] { read(held_out, {4}); }) ==
        path +
            ": trireme::data::token_file: the file had 100000 bytes when it was opened, but byte 80000 is gone; "
            "restore the file, and do not truncate a file that is in use");
  fs::resize_file(path, 100000);
  CHECK_NOTHROW(read(training, {80}));
}
