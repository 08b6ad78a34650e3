#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "trireme/core/detail/sha256_blocks.hpp"

namespace trireme {

/// SHA-256 of bytes that arrive piece by piece.
///
/// Why: a checkpoint contains the digest of each of its files, so that changed, truncated or exchanged files are
/// detected before they are loaded. Uses the SHA instructions of the processor if it has them. Method: [FIPS 180-4].
///
/// Threads  one owner.
class sha256 {
 public:
  using digest = std::array<std::byte, 32>;

  sha256& update(std::span<std::byte const> bytes) noexcept {
    if (bytes.empty()) return *this;
    total_ += bytes.size();
    if (filled_ > 0) {
      auto const take = std::min(bytes.size(), block_.size() - filled_);
      std::memcpy(block_.data() + filled_, bytes.data(), take);
      filled_ += take;
      bytes = bytes.subspan(take);
      if (filled_ < block_.size()) return *this;
      detail::sha256_blocks(state_, block_.data(), 1);
      filled_ = 0;
    }
    auto const blocks = bytes.size() / block_.size();
    if (blocks > 0) detail::sha256_blocks(state_, bytes.data(), blocks);
    bytes = bytes.subspan(blocks * block_.size());
    if (!bytes.empty()) std::memcpy(block_.data(), bytes.data(), bytes.size());
    filled_ = bytes.size();
    return *this;
  }
  sha256& update(std::string_view text) noexcept { return update(std::as_bytes(std::span(text))); }

  /// The digest of everything so far; more may follow.
  [[nodiscard]] digest finish() const noexcept {
    auto state = state_;
    std::array<std::byte, 128> tail{};
    std::memcpy(tail.data(), block_.data(), filled_);
    tail[filled_] = std::byte{0x80};
    std::size_t const blocks = filled_ < 56 ? 1 : 2;
    auto const bits = total_ * 8;
    for (std::size_t i = 0; i < 8; ++i) tail[blocks * 64 - 1 - i] = static_cast<std::byte>(bits >> (8 * i) & 0xff);
    detail::sha256_blocks(state, tail.data(), blocks);
    digest out;
    for (std::size_t i = 0; i < 32; ++i) out[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)) & 0xff);
    return out;
  }

  /// The same as 64 hexadecimal digits.
  [[nodiscard]] std::string hexadecimal() const {
    std::string out;
    for (auto const byte : finish()) {
      out += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
      out += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
    }
    return out;
  }

 private:
  detail::sha256_state state_ = detail::sha256_start;
  std::array<std::byte, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace trireme
