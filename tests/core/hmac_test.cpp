#include "trireme/core/hmac.hpp"

#include <string>

#include "../catch.hpp"

namespace {

std::string hexadecimal(trireme::sha256::digest const& digest) {
  std::string out;
  for (auto const byte : digest) {
    out += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    out += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return out;
}
std::string hmac_of(std::string const& key, std::string const& message) {
  return hexadecimal(trireme::hmac_sha256(key).update(message).finish());
}

}  // namespace

TEST_CASE("hmac_sha256 gives the known answers of RFC 4231", "[core][hmac]") {
  CHECK(hmac_of(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac_of("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hmac_of(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (int i = 1; i <= 25; ++i) counting += static_cast<char>(i);
  CHECK(hmac_of(counting, std::string(50, '\xcd')) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(hmac_of(std::string(20, '\x0c'), "Test With Truncation").substr(0, 32) == "a3b6167473100ee06e0c796c2955552b");
  CHECK(hmac_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(hmac_of(std::string(131, '\xaa'),
                "This is a test using a larger than block-size key and a larger than block-size data. The key needs to "
                "be hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("hmac_sha256 does not depend on how the bytes are split, and can continue after a digest", "[core][hmac]") {
  trireme::hmac_sha256 pieces("key");
  pieces.update("one ");
  CHECK(hexadecimal(pieces.finish()) == hmac_of("key", "one "));
  pieces.update("two");
  CHECK(hexadecimal(pieces.finish()) == hmac_of("key", "one two"));
}

TEST_CASE("secrets are equal only if all bytes and the lengths are equal", "[core][hmac]") {
  auto const bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  CHECK(trireme::equal_in_constant_time(bytes("secret"), bytes("secret")));
  CHECK(trireme::equal_in_constant_time(bytes(""), bytes("")));
  CHECK_FALSE(trireme::equal_in_constant_time(bytes("secret"), bytes("secreT")));
  CHECK_FALSE(trireme::equal_in_constant_time(bytes("Secret"), bytes("secret")));
  CHECK_FALSE(trireme::equal_in_constant_time(bytes("secre"), bytes("secret")));
}
