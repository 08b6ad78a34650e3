#include "trireme/formats/inflate.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "scratch.hpp"
#include "trireme/data/npz_files.hpp"

using namespace trireme;

namespace {

std::vector<std::byte> deflated(std::span<std::byte const> from) {
  std::vector<std::byte> out(from.size() + 100);
  ::z_stream zip{};
  REQUIRE(::deflateInit2(&zip, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  zip.next_in = const_cast<Bytef*>(reinterpret_cast<Bytef const*>(from.data()));
  zip.avail_in = static_cast<uInt>(from.size());
  zip.next_out = reinterpret_cast<Bytef*>(out.data());
  zip.avail_out = static_cast<uInt>(out.size());
  REQUIRE(::deflate(&zip, Z_FINISH) == Z_STREAM_END);
  out.resize(zip.total_out);
  ::deflateEnd(&zip);
  return out;
}

/// What formats::inflate says to these bytes, in pieces of some size.
std::string inflated(std::span<std::byte const> from, std::size_t piece, std::span<std::byte> to) {
  return formats::inflate(
      [&] {
        auto const next = from.first(std::min(piece, from.size()));
        from = from.subspan(next.size());
        return next;
      },
      to);
}

}  // namespace

TEST_CASE("compressed bytes are restored in pieces of any size, and damage is said") {
  std::vector<std::byte> content(1000);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * i / 7);
  auto const packed = deflated(content);
  for (std::size_t const piece : {1, 7, 100000}) {
    std::vector<std::byte> out(content.size());
    CHECK(inflated(packed, piece, out) == "");
    CHECK(out == content);
    std::vector<std::byte> less(content.size() - 1), more(content.size() + 1), none;
    CHECK(contains(inflated(packed, piece, less), "more bytes than the directory says"));
    CHECK(contains(inflated(packed, piece, more), "fewer bytes than the directory says"));
    CHECK(contains(inflated(packed, piece, none), "more bytes than the directory says"));
    CHECK(contains(inflated(std::span(packed).first(packed.size() - 1), piece, out), "end too early"));
    auto longer = packed;
    longer.push_back(std::byte{0});
    CHECK(contains(inflated(longer, piece, out), "something follows"));
  }
  std::vector<std::byte> out(content.size());
  // A damage is an error or gives other bytes, which the archive's checksum then shows. Only the last byte may have
  // bits that are not used.
  int refused = 0, unnoticed = 0;
  for (std::size_t i = 0; i + 1 < packed.size(); ++i) {
    auto changed = packed;
    changed[i] ^= std::byte{16};
    if (!inflated(changed, 50, out).empty()) {
      ++refused;
    } else if (out == content) {
      ++unnoticed;
    }
  }
  CHECK(refused > 0);
  CHECK(unnoticed == 0);
}

TEST_CASE("output that zlib holds after it has taken all input is asked for") {
  std::vector<std::byte> const content(1024 + 200);
  auto const packed = deflated(content);
  for (std::size_t const chunk : {1, 7, 1024, 1224, 5000}) {
    CAPTURE(chunk);
    bool given = false;
    auto const next = [&] { return std::exchange(given, true) ? std::span<std::byte const>() : std::span(packed); };
    std::vector<std::byte> out(content.size(), std::byte{1});
    CHECK(formats::detail::inflate_in(next, out, chunk) == "");
    CHECK(out == content);
    given = false;
    out.pop_back();
    CHECK(contains(formats::detail::inflate_in(next, out, chunk), "more bytes than the directory says"));
  }
}

TEST_CASE("compressed members that numpy wrote are read, and damaged ones are refused") {
  scratch const here;
  if (!python_ran("write_npz.py", here.path())) return;
  auto const of = [&](std::string const& name) {
    return data::npz_files{.files = here / name, .features = "x", .targets = "y", .targets_as = dtype::i32};
  };
  for (auto const* const name : {"stored.npz", "deflated.npz", "descriptors_deflated.npz", "zip64_deflated.npz"}) {
    CAPTURE(name);
    auto const samples = of(name).open(formats::inflate);
    REQUIRE(samples.size() == 5);
    std::vector<float> in(6);
    std::int32_t out = 0;
    samples.read(std::vector<std::int64_t>{3}, in.data(), &out);
    CHECK(in == std::vector<float>{300, 301, 302, 310, 311, 312});
    CHECK(out == 3);
  }
  auto large = of("large.npz");
  large.features_as = dtype::f32;
  auto const samples = large.open(formats::inflate);
  REQUIRE(samples.size() == 1 << 17);
  std::vector<float> in(4);
  std::int32_t out = 0;
  samples.read(std::vector<std::int64_t>{(1 << 17) - 1}, in.data(), &out);
  CHECK(in == std::vector<float>{524284, 524285, 524286, 524287});
  CHECK(out == (1 << 17) - 1);
  CHECK(contains(sentence_of([&] { static_cast<void>(of("damaged.npz").open(formats::inflate)); }),
                 "member \"x.npy\" is damaged: "));
}
