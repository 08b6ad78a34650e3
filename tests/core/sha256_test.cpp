#include "trireme/core/sha256.hpp"

#include <string>
#include <vector>

#include "../catch.hpp"

namespace {

using trireme::sha256;

std::string digest_of(std::string_view text) { return sha256{}.update(text).hexadecimal(); }

}  // namespace

TEST_CASE("sha256 gives the known answers of FIPS 180-4", "[core][sha256]") {
  CHECK(digest_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(digest_of(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256 does not depend on how the bytes are split", "[core][sha256]") {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  auto const whole = digest_of(text);
  for (std::size_t piece = 1; piece <= 200; ++piece) {
    sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += piece) hash.update(std::string_view(text).substr(at, piece));
    REQUIRE(hash.hexadecimal() == whole);
  }
}

TEST_CASE("sha256 can continue after a digest", "[core][sha256]") {
  sha256 hash;
  hash.update("ab");
  CHECK(hash.hexadecimal() == digest_of("ab"));
  hash.update("c");
  CHECK(hash.hexadecimal() == digest_of("abc"));
}

TEST_CASE("sha256 in hardware equals sha256 in plain code", "[core][sha256]") {
  if (!trireme::detail::sha256_has_hardware()) return;
  std::vector<std::byte> bytes(64 * 40);
  std::uint32_t x = 1;
  for (auto& byte : bytes) byte = static_cast<std::byte>((x = x * 1664525U + 1013904223U) >> 24);
  for (std::size_t blocks = 0; blocks <= 40; ++blocks) {
    auto plain = trireme::detail::sha256_start;
    auto hardware = plain;
    trireme::detail::sha256_blocks_plain(plain, bytes.data(), blocks);
    trireme::detail::sha256_blocks_hardware(hardware, bytes.data(), blocks);
    REQUIRE(plain == hardware);
  }
}
