#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/hmac.hpp"

// The bytes of the rendezvous: fixed layouts, little endian, without text to parse.
//
//   rank -> rank 0   hello      magic, rank, size, nonce                  48 bytes
//   rank 0 -> rank   challenge  magic, nonce, proof "0"                   72 bytes
//   rank -> rank 0   answer     proof "r"                                 32 bytes
//   then both ways   frames     length, kind, number, content, tag        48 bytes and the content
//
// A proof is HMAC-SHA256 with the secret over the prover's role, both nonces, version, job, size and rank; the key of
// the tags is derived in the same way, for each connection. A tag covers direction and number, so that a repeated frame
// is rejected.

namespace trireme::comm::detail {

inline constexpr std::string_view rendezvous_magic{"TRIREME\x01", 8};  // the last byte is the protocol's version
using nonce = std::array<std::byte, 32>;

template <class Number>
void put_number(std::byte* to, Number number) noexcept {
  for (std::size_t i = 0; i < sizeof(Number); ++i) to[i] = static_cast<std::byte>(number >> (8 * i) & 0xff);
}
template <class Number>
[[nodiscard]] Number get_number(std::byte const* from) noexcept {
  Number out = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) out = static_cast<Number>(out << 8 | std::to_integer<Number>(from[i]));
  return out;
}

struct hello {
  static constexpr std::size_t bytes = 48;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  nonce random{};

  [[nodiscard]] std::array<std::byte, bytes> packed() const noexcept {
    std::array<std::byte, bytes> out{};
    std::memcpy(out.data(), rendezvous_magic.data(), 8);
    put_number(out.data() + 8, rank);
    put_number(out.data() + 12, size);
    std::ranges::copy(random, out.begin() + 16);
    return out;
  }
  /// Returns nothing if the bytes are not a hello of this version.
  [[nodiscard]] static std::optional<hello> parse(std::span<std::byte const, bytes> from) noexcept {
    if (std::memcmp(from.data(), rendezvous_magic.data(), 8) != 0) return std::nullopt;
    hello out{get_number<std::uint32_t>(from.data() + 8), get_number<std::uint32_t>(from.data() + 12), {}};
    std::copy_n(from.begin() + 16, 32, out.random.begin());
    return out;
  }
};

struct challenge {
  static constexpr std::size_t bytes = 72;
  nonce random{};
  sha256::digest proof{};

  [[nodiscard]] std::array<std::byte, bytes> packed() const noexcept {
    std::array<std::byte, bytes> out{};
    std::memcpy(out.data(), rendezvous_magic.data(), 8);
    std::ranges::copy(random, out.begin() + 8);
    std::ranges::copy(proof, out.begin() + 40);
    return out;
  }
  [[nodiscard]] static std::optional<challenge> parse(std::span<std::byte const, bytes> from) noexcept {
    if (std::memcmp(from.data(), rendezvous_magic.data(), 8) != 0) return std::nullopt;
    challenge out;
    std::copy_n(from.begin() + 8, 32, out.random.begin());
    std::copy_n(from.begin() + 40, 32, out.proof.begin());
    return out;
  }
};

/// The proofs that the two sides of a connection exchange.
struct proofs {
  sha256::digest of_rank_0{}, of_rank{}, key{};

  proofs(std::string_view secret, std::string_view job, hello const& from, nonce const& answered) {
    std::array<std::byte, 8> claim{};
    put_number(claim.data(), from.rank);
    put_number(claim.data() + 4, from.size);
    auto const proof = [&](std::string_view role) {
      return hmac_sha256(secret)
          .update(role)
          .update(rendezvous_magic)
          .update(sha256().update(job).finish())
          .update(claim)
          .update(from.random)
          .update(answered)
          .finish();
    };
    of_rank_0 = proof("0");
    of_rank = proof("r");
    key = proof("k");
  }
};

enum class frame_kind : std::uint32_t { welcome, refused, go, failed, content };
inline constexpr std::uint32_t frame_kinds = 5;

struct frame {
  frame_kind kind = frame_kind::content;
  std::string content;
};

/// One direction of a connection after the handshake: packs frames, or parses them as their bytes arrive.
class frame_channel {
 public:
  static constexpr std::size_t head_bytes = 16, tag_bytes = 32;

  frame_channel(sha256::digest const& key, bool from_rank_0, std::size_t most) noexcept
      : key_(key), direction_(from_rank_0 ? std::byte{0} : std::byte{1}), most_(most) {}

  [[nodiscard]] std::vector<std::byte> pack(frame_kind kind, std::string_view content) {
    std::vector<std::byte> out(head_bytes + content.size() + tag_bytes);
    put_number(out.data(), static_cast<std::uint32_t>(content.size()));
    put_number(out.data() + 4, static_cast<std::uint32_t>(kind));
    put_number(out.data() + 8, number_++);
    if (!content.empty()) std::memcpy(out.data() + head_bytes, content.data(), content.size());
    auto const tag = tag_of({out.data(), head_bytes + content.size()});
    std::ranges::copy(tag, out.end() - static_cast<std::ptrdiff_t>(tag_bytes));
    return out;
  }

  /// The number of bytes to read next, at most 64 KiB: a false length allocates no memory.
  [[nodiscard]] std::size_t wanted() const noexcept {
    return std::min<std::size_t>(whole() - bytes_.size(), std::size_t{64} << 10);
  }
  /// Adds bytes, at most wanted(). False if they cannot be a frame: then close the connection.
  [[nodiscard]] bool take(std::span<std::byte const> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    if (bytes_.size() < head_bytes) return true;
    auto const kind = get_number<std::uint32_t>(bytes_.data() + 4);
    return length() <= most_ && kind < frame_kinds && get_number<std::uint64_t>(bytes_.data() + 8) == number_;
  }
  [[nodiscard]] bool is_whole() const noexcept { return bytes_.size() >= head_bytes && bytes_.size() == whole(); }
  /// The complete frame; nothing if its tag is wrong.
  [[nodiscard]] std::optional<frame> unpack() {
    auto const content = bytes_.size() - head_bytes - tag_bytes;
    auto const all = std::span<std::byte const>(bytes_);
    auto const right = equal_in_constant_time(tag_of(all.first(head_bytes + content)), all.last(tag_bytes));
    if (!right) return std::nullopt;
    frame out{static_cast<frame_kind>(get_number<std::uint32_t>(bytes_.data() + 4)),
              std::string(reinterpret_cast<char const*>(bytes_.data()) + head_bytes, content)};
    bytes_.clear();
    ++number_;
    return out;
  }

 private:
  [[nodiscard]] std::size_t length() const noexcept { return get_number<std::uint32_t>(bytes_.data()); }
  [[nodiscard]] std::size_t whole() const noexcept {
    return bytes_.size() < head_bytes ? head_bytes : head_bytes + length() + tag_bytes;
  }
  [[nodiscard]] sha256::digest tag_of(std::span<std::byte const> bytes) const noexcept {
    return hmac_sha256(key_).update(std::span(&direction_, 1)).update(bytes).finish();
  }

  sha256::digest key_;
  std::byte direction_;
  std::size_t most_;
  std::uint64_t number_ = 0;
  std::vector<std::byte> bytes_;
};

/// Several contents in one string: a count, then each with its length.
[[nodiscard]] inline std::string pack_all(std::span<std::string const> parts) {
  std::string out;
  auto const number = [&out](std::size_t value) {
    std::array<std::byte, 4> bytes{};
    put_number(bytes.data(), static_cast<std::uint32_t>(value));
    out.append(reinterpret_cast<char const*>(bytes.data()), bytes.size());
  };
  number(parts.size());
  for (auto const& part : parts) {
    number(part.size());
    out += part;
  }
  return out;
}
/// Returns nothing unless the string has exactly `count` contents.
[[nodiscard]] inline std::optional<std::vector<std::string>> unpack_all(std::string_view from, std::size_t count) {
  auto const number = [&from]() -> std::optional<std::size_t> {
    if (from.size() < 4) return std::nullopt;
    auto const value = get_number<std::uint32_t>(reinterpret_cast<std::byte const*>(from.data()));
    from.remove_prefix(4);
    return value;
  };
  if (number() != count) return std::nullopt;
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) {
    auto const length = number();
    if (!length || *length > from.size()) return std::nullopt;
    out.emplace_back(from.substr(0, *length));
    from.remove_prefix(*length);
  }
  return from.empty() ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace trireme::comm::detail
