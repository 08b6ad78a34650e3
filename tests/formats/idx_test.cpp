#include "trireme/formats/idx.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "scratch.hpp"

using namespace trireme;
namespace idx = formats::idx;

namespace {

/// The result of parse_header() for these bytes, as the start of a file of this size.
std::string refusal(std::vector<int> const& numbers, std::uint64_t size) {
  std::vector<std::byte> bytes;
  for (auto const each : numbers) bytes.push_back(static_cast<std::byte>(each));
  return sentence_of<format_error>([&] { static_cast<void>(idx::parse_header(bytes, size, "file")); });
}

}  // namespace

TEST_CASE("an IDX file reads back as it was written") {
  scratch const folder;
  idx::array const images{{2, 3, 1}, {0, 255, 7, 8, 9, 10}};
  idx::write(folder / "images", images);
  auto const again = idx::read(folder / "images");
  CHECK(again.extents == images.extents);
  CHECK(again.values == images.values);
  auto const bytes = formats::read_file(folder / "images");
  CHECK(bytes.size() == 4 + 3 * 4 + 6);
  CHECK(bytes[3] == std::byte{3});
  CHECK(bytes[7] == std::byte{2});
  CHECK_THROWS_AS(idx::read(folder / "images", 10), io_error);
  CHECK_THROWS_AS(idx::read(folder / "nothing"), io_error);
  CHECK_THROWS_AS(idx::write(folder / "images", {{2}, {1, 2, 3}}), config_error);
}

TEST_CASE("hostile IDX files are refused before memory is taken") {
  CHECK(refusal({0, 0, 8, 1, 0, 0, 0, 5}, 13) == "");
  CHECK(contains(refusal({}, 0), "begins with two bytes of 0"));
  CHECK(contains(refusal({1, 0, 8, 1, 0, 0, 0, 5}, 13), "begins with two bytes of 0"));
  CHECK(contains(refusal({0, 0, 13, 1, 0, 0, 0, 5}, 13), "elements of type 13"));
  CHECK(contains(refusal({0, 0, 8, 0}, 4), "0 extents"));
  CHECK(contains(refusal({0, 0, 8, 5, 0, 0, 0, 1}, 100), "5 extents"));
  CHECK(contains(refusal({0, 0, 8, 2, 0, 0, 0, 5}, 13), "ends within its extents"));
  CHECK(contains(refusal({0, 0, 8, 1, 0, 0, 0, 0}, 8), "an extent is 0"));
  CHECK(contains(refusal({0, 0, 8, 1, 0, 0, 0, 5}, 12), "make 5 bytes, but 4 follow"));
  CHECK(contains(refusal({0, 0, 8, 1, 0, 0, 0, 5}, 14), "make 5 bytes, but 6 follow"));
  CHECK(contains(refusal({0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255}, 1000), "more bytes than the file has"));
  CHECK(contains(refusal({0, 0, 8, 4, 128, 0, 0, 0, 128, 0, 0, 0, 128, 0, 0, 0, 128, 0, 0, 0}, std::uint64_t{1} << 62),
                 "more bytes"));
}
