#include "trireme/formats/crc32c.hpp"

#include <string_view>
#include <vector>

#include "../catch.hpp"

namespace {

std::uint32_t crc_of(std::string_view text) { return trireme::formats::crc32c(std::as_bytes(std::span(text))); }

}  // namespace

TEST_CASE("crc32c gives the known answers of RFC 3720", "[formats][crc32c]") {
  CHECK(crc_of("") == 0);
  CHECK(crc_of("123456789") == 0xE3069283U);
  CHECK(crc_of(std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32)) ==
        0x8A9136AAU);
  std::vector<std::byte> bytes(32, std::byte{0xff});
  CHECK(trireme::formats::crc32c(bytes) == 0x62A8AB43U);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(trireme::formats::crc32c(bytes) == 0x46DD794EU);
  for (std::size_t cut = 0; cut <= 32; ++cut) {
    auto const all = std::span<std::byte const>(bytes);
    CHECK(trireme::formats::crc32c(all.subspan(cut), trireme::formats::crc32c(all.first(cut))) == 0x46DD794EU);
  }
}

TEST_CASE("crc32c in hardware equals crc32c in plain code", "[formats][crc32c]") {
  if (!trireme::formats::detail::crc32c_has_hardware()) return;
  std::vector<std::byte> bytes;
  for (std::uint32_t i = 0; i < 100; ++i) {
    CHECK(trireme::formats::detail::crc32c_plain(i, bytes) == trireme::formats::detail::crc32c_hardware(i, bytes));
    bytes.push_back(static_cast<std::byte>(i * 37));
  }
}
