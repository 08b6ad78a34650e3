// Trireme 0.1.0: trireme/core/hmac.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 8284d25893fb302b28732f64d92344afd439c6035f5c8537a5c0bccf3a360e50
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/core/hmac.hpp
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace trireme {

/// HMAC-SHA256 of bytes that arrive piece by piece: a digest that can only be made or checked with `key`. Method: [RFC
/// 2104].
///
/// Threads  one owner.
class hmac_sha256 {
 public:
  explicit hmac_sha256(std::span<std::byte const> key) noexcept {
    std::array<std::byte, 64> block{};
    if (key.size() > block.size()) {
      auto const digest = sha256().update(key).finish();
      std::copy(digest.begin(), digest.end(), block.begin());
    } else {
      std::copy(key.begin(), key.end(), block.begin());
    }
    for (auto& byte : block) byte ^= std::byte{0x36};
    inner_.update(block);
    for (auto& byte : block) byte ^= std::byte{0x36 ^ 0x5c};
    outer_.update(block);
  }
  explicit hmac_sha256(std::string_view key) noexcept : hmac_sha256(std::as_bytes(std::span(key))) {}

  hmac_sha256& update(std::span<std::byte const> bytes) noexcept {
    inner_.update(bytes);
    return *this;
  }
  hmac_sha256& update(std::string_view text) noexcept { return update(std::as_bytes(std::span(text))); }

  /// The digest of everything so far; more may follow.
  [[nodiscard]] sha256::digest finish() const noexcept {
    auto whole = outer_;
    return whole.update(inner_.finish()).finish();
  }

 private:
  sha256 inner_;
  sha256 outer_;
};

/// Whether two secrets of one length are equal, in a time that does not depend on where they differ.
[[nodiscard]] inline bool equal_in_constant_time(std::span<std::byte const> a, std::span<std::byte const> b) noexcept {
  if (a.size() != b.size()) return false;
  std::byte difference{};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

}  // namespace trireme
