// Trireme 0.1.0: trireme/comm/rendezvous.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: c029f538ab9518e1b61eb36701084e12c70c4cd8349bdc2a3d25e2bab9ce8c43
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/core/hmac.hpp"

// ---- trireme/comm/rendezvous.hpp
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#ifndef TRIREME_COMM_DETAIL_MEETING_FILE_INCLUDED
#define TRIREME_COMM_DETAIL_MEETING_FILE_INCLUDED

// ---- trireme/comm/detail/meeting_file.hpp
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#ifndef TRIREME_COMM_DETAIL_HANDSHAKE_INCLUDED
#define TRIREME_COMM_DETAIL_HANDSHAKE_INCLUDED

// ---- trireme/comm/detail/handshake.hpp
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

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

#endif  // TRIREME_COMM_DETAIL_HANDSHAKE_INCLUDED

// ---- trireme/comm/detail/meeting_file.hpp (goes on)
#ifndef TRIREME_COMM_DETAIL_SOCKET_INCLUDED
#define TRIREME_COMM_DETAIL_SOCKET_INCLUDED

// ---- trireme/comm/detail/socket.hpp
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#ifndef TRIREME_COMM_DETAIL_DESCRIPTOR_INCLUDED
#define TRIREME_COMM_DETAIL_DESCRIPTOR_INCLUDED

// ---- trireme/comm/detail/descriptor.hpp
#include <system_error>

namespace trireme::comm::detail {

/// Owns a file descriptor.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~descriptor() { close(); }

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }
  /// False if the system reports only now that a write has failed.
  bool close() noexcept { return number_ < 0 || ::close(std::exchange(number_, -1)) == 0; }

  /// Locks the first byte of a file until this process closes the file or ends.
  [[nodiscard]] bool lock() const noexcept {
    auto wish = first_byte();
    return ::fcntl(number_, F_OFD_SETLK, &wish) == 0;
  }
  /// Whether another process has the first byte locked; `unknown` if the system cannot tell.
  [[nodiscard]] bool is_locked(bool unknown) const noexcept {
    auto wish = first_byte();
    return ::fcntl(number_, F_OFD_GETLK, &wish) != 0 ? unknown : wish.l_type != F_UNLCK;
  }

 private:
  [[nodiscard]] static struct ::flock first_byte() noexcept {
    struct ::flock wish {};
    wish.l_type = F_WRLCK;
    wish.l_whence = SEEK_SET;
    wish.l_len = 1;
    return wish;
  }
  int number_ = -1;
};

[[nodiscard]] inline std::string system_sentence(int number) { return std::generic_category().message(number); }

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_DESCRIPTOR_INCLUDED

// ---- trireme/comm/detail/socket.hpp (goes on)
namespace trireme::comm::detail {

using steady_time = std::chrono::steady_clock::time_point;

/// Milliseconds for poll() until a time; at least 0, and rounded up so that poll does not spin.
[[nodiscard]] inline int poll_time(steady_time until) noexcept {
  auto const left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
}

/// Whether a descriptor became ready for `events` before `until`.
[[nodiscard]] inline bool ready_before(int number, short events, steady_time until) noexcept {
  for (;;) {
    ::pollfd one{number, events, 0};
    auto const count = ::poll(&one, 1, poll_time(until));
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

/// Sends all bytes of a non-blocking socket before `until`; false if the peer is gone or too slow.
[[nodiscard]] inline bool send_all(int number, std::span<std::byte const> bytes, steady_time until) noexcept {
  while (!bytes.empty()) {
    auto const sent = ::send(number, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (sent < 0 && errno == EINTR) {
      continue;
    } else if (!(sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) || !ready_before(number, POLLOUT, until)) {
      return false;
    }
  }
  return true;
}

/// Fills all of `bytes` from a non-blocking socket before `until`; false if the peer is gone or too slow.
[[nodiscard]] inline bool receive_all(int number, std::span<std::byte> bytes, steady_time until) noexcept {
  while (!bytes.empty()) {
    auto const got = ::recv(number, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (!(got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) || !ready_before(number, POLLIN, until)) {
      return false;
    }
  }
  return true;
}

/// Fills `bytes` with unpredictable random numbers.
inline void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    auto const got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EINTR)
      throw comm_error(
          text("trireme::comm::rendezvous: the operating system returned no random numbers: ", system_sentence(errno)));
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

/// A TCP address and port.
struct endpoint {
  ::sockaddr_storage address{};
  ::socklen_t bytes = 0;

  [[nodiscard]] ::sockaddr const* get() const noexcept { return reinterpret_cast<::sockaddr const*>(&address); }
  /// Whether only this machine can reach it.
  [[nodiscard]] bool is_loopback() const noexcept {
    if (address.ss_family == AF_INET) {
      ::sockaddr_in in{};
      std::memcpy(&in, &address, sizeof in);
      return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    ::sockaddr_in6 in{};
    std::memcpy(&in, &address, sizeof in);
    return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr) != 0;
  }
};

/// The endpoint of a host name or number; nothing if it cannot be resolved now (a name server may answer later).
[[nodiscard]] inline std::optional<endpoint> resolve(std::string const& host, int port) {
  ::addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  ::addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0 || found == nullptr)
    return std::nullopt;
  endpoint out;
  auto const* best = found;
  for (auto const* each = found; each != nullptr; each = each->ai_next)  // "localhost" may have both: IPv4 first
    if (each->ai_family == AF_INET) {
      best = each;
      break;
    }
  out.bytes = best->ai_addrlen;
  std::memcpy(&out.address, best->ai_addr, best->ai_addrlen);
  ::freeaddrinfo(found);
  return out;
}

/// A listening socket; on failure errno is in `failed`.
[[nodiscard]] inline descriptor listen_at(endpoint const& where, int& failed) noexcept {
  descriptor out(::socket(where.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int const yes = 1;
  if (out.is_open()) ::setsockopt(out.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (!out.is_open() || ::bind(out.number(), where.get(), where.bytes) != 0 || ::listen(out.number(), 256) != 0) {
    failed = errno;
    out.close();
  }
  return out;
}

[[nodiscard]] inline int port_of(descriptor const& socket) noexcept {
  ::sockaddr_storage address{};
  ::socklen_t bytes = sizeof address;
  if (::getsockname(socket.number(), reinterpret_cast<::sockaddr*>(&address), &bytes) != 0) return 0;
  ::in_port_t port = 0;  // at the same offset in both families
  std::memcpy(&port, reinterpret_cast<std::byte const*>(&address) + offsetof(::sockaddr_in, sin_port), sizeof port);
  return ntohs(port);
}

/// A connected socket; errno is in `failed` if there is none before `until`.
[[nodiscard]] inline descriptor connect_to(endpoint const& where, steady_time until, int& failed) noexcept {
  descriptor out(::socket(where.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  failed = 0;
  if (!out.is_open() || (::connect(out.number(), where.get(), where.bytes) != 0 && errno != EINPROGRESS)) {
    failed = errno;
  } else if (!ready_before(out.number(), POLLOUT, until)) {
    failed = ETIMEDOUT;
  } else {
    ::socklen_t bytes = sizeof failed;
    ::getsockopt(out.number(), SOL_SOCKET, SO_ERROR, &failed, &bytes);
  }
  if (failed != 0) out.close();
  return out;
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_SOCKET_INCLUDED

// ---- trireme/comm/detail/meeting_file.hpp (goes on)
namespace trireme::comm::detail {

/// The data that rank 0 publishes in a file for ranks of the same user on the same machine.
struct meeting_note {
  static constexpr std::size_t bytes = 48;
  static constexpr std::string_view magic{"TRIREMEf\x01\0\0\0", 12};
  int port = 0;
  std::string secret;

  [[nodiscard]] std::array<std::byte, bytes> packed() const noexcept {
    std::array<std::byte, bytes> out{};
    std::memcpy(out.data(), magic.data(), magic.size());
    put_number(out.data() + 12, static_cast<std::uint32_t>(port));
    std::memcpy(out.data() + 16, secret.data(), std::min<std::size_t>(secret.size(), 32));
    return out;
  }
  [[nodiscard]] static std::optional<meeting_note> parse(std::span<std::byte const, bytes> from) {
    auto const port = get_number<std::uint32_t>(from.data() + 12);
    if (std::memcmp(from.data(), magic.data(), magic.size()) != 0 || port < 1 || port > 65535) return std::nullopt;
    return meeting_note{static_cast<int>(port), std::string(reinterpret_cast<char const*>(from.data()) + 16, 32)};
  }
};

/// Opens a regular file that belongs to this user alone; otherwise sets `why`.
[[nodiscard]] inline descriptor open_private(std::string const& path, std::string& why) {
  descriptor out(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct ::stat status {};
  if (!out.is_open() || ::fstat(out.number(), &status) != 0) {
    why = text(path, " cannot be read: ", system_sentence(errno));
    out.close();
  } else if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    why = text(path, " must belong to this user and be unreadable for others; give it mode 0600");
    out.close();
  }
  return out;
}

/// Whether the process that wrote a note still runs: it holds a lock on the file, which ends with the process.
[[nodiscard]] inline bool is_in_use(descriptor const& file) noexcept { return file.is_locked(false); }

/// The note at `path`, if its rank 0 still runs; otherwise sets `why`.
[[nodiscard]] inline std::optional<meeting_note> read_note(std::string const& path, std::string& why) {
  auto const file = open_private(path, why);
  if (!file.is_open()) return std::nullopt;
  std::array<std::byte, meeting_note::bytes + 1> bytes{};
  auto const got = ::pread(file.number(), bytes.data(), bytes.size(), 0);
  auto note =
      got == meeting_note::bytes ? meeting_note::parse(std::span(bytes).first<meeting_note::bytes>()) : std::nullopt;
  if (!note) {
    why = text(path, " is not the file of a meeting");
  } else if (!is_in_use(file)) {
    why = text(path, " belongs to a rank 0 that has ended");
    return std::nullopt;
  }
  return note;
}

/// The first line of a file that only this user may read.
[[nodiscard]] inline std::string read_secret(std::string const& path) {
  std::string why;
  auto const file = open_private(path, why);
  if (!file.is_open()) throw config_error(text("trireme::comm::rendezvous: the secret's file ", why));
  std::array<char, 4096> content{};
  auto const got = ::pread(file.number(), content.data(), content.size(), 0);
  std::string_view const all(content.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  return std::string(all.substr(0, all.find_first_of("\r\n")));
}

/// The directory of this user's meetings on this machine, in $TMPDIR or /tmp.
[[nodiscard]] inline std::string directory_name() { return text("trireme-", ::geteuid()); }
[[nodiscard]] inline std::string meeting_directory(std::string const& temporary) {
  return text(temporary.empty() ? "/tmp" : temporary, "/", directory_name());
}

/// The file of a meeting, from its publication until the meeting is over. Written under another name and renamed, so
/// that it is either complete or absent. A file left by a killed process is replaced by the next meeting at its path,
/// or removed by any next meeting.
class meeting_file {
 public:
  meeting_file(std::string path, meeting_note const& note) : path_(std::move(path)), note_(note.packed()) {
    auto const where = directory();
    own_directory_ = where.substr(where.rfind('/') + 1) == directory_name();
    if (own_directory_) sweep();
    publish();
  }
  meeting_file(meeting_file const&) = delete;
  meeting_file& operator=(meeting_file const&) = delete;
  ~meeting_file() {
    if (is_there()) ::unlink(path_.c_str());
    if (own_directory_) ::rmdir(directory().c_str());  // unless another meeting is in it
  }
  /// Publishes it again if it has been removed.
  void keep() {
    if (!is_there()) publish();
  }

 private:
  [[nodiscard]] std::string directory() const { return path_.substr(0, path_.rfind('/')); }

  [[nodiscard]] bool is_there() const noexcept {
    struct ::stat named {};
    struct ::stat own {};
    return file_.is_open() && ::lstat(path_.c_str(), &named) == 0 && ::fstat(file_.number(), &own) == 0 &&
           named.st_ino == own.st_ino && named.st_dev == own.st_dev;
  }
  void make_directory() const {
    auto const where = directory();
    struct ::stat status {};
    if (::mkdir(where.c_str(), 0700) != 0 && errno != EEXIST)
      throw config_error(text("trireme::comm::rendezvous: cannot make ", where, ": ", system_sentence(errno)));
    if (::lstat(where.c_str(), &status) == 0 &&
        (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0))
      throw config_error(text("trireme::comm::rendezvous: ", where,
                              " must be a directory that belongs to this user and is closed to others; "
                              "remove it, or set TMPDIR to another place"));
  }
  void publish() {
    std::string ignored;
    if (auto const other = open_private(path_, ignored); other.is_open() && is_in_use(other))
      throw config_error(text("trireme::comm::rendezvous: another run meets at ", path_,
                              "; give each run a TRIREME_JOB or file of its own"));
    auto const partial = text(path_, ".", ::getpid(), ".partial");
    int failed = 0;
    for (int attempt = 0; attempt < 100; ++attempt) {  // another meeting may remove a file that is not locked yet
      if (own_directory_) make_directory();
      ::unlink(partial.c_str());
      file_ = descriptor(::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (file_.is_open() && file_.lock() &&
          ::write(file_.number(), note_.data(), note_.size()) == static_cast<::ssize_t>(note_.size()) &&
          ::rename(partial.c_str(), path_.c_str()) == 0)
        return;
      failed = errno;
      ::unlink(partial.c_str());
      if (failed != ENOENT || !own_directory_) break;
    }
    throw config_error(text("trireme::comm::rendezvous: cannot write ", path_, ": ", system_sentence(failed)));
  }
  /// Removes files that killed processes have left in the directory.
  void sweep() const {
    auto const close = [](::DIR* open) { ::closedir(open); };
    std::unique_ptr<::DIR, decltype(close)> const open(::opendir(directory().c_str()), close);
    if (open == nullptr) return;
    while (auto const* const entry = ::readdir(open.get())) {
      auto const path = text(directory(), "/", static_cast<char const*>(entry->d_name));
      std::string ignored;
      auto const file = open_private(path, ignored);
      if (file.is_open() && path != path_ && !is_in_use(file)) ::unlink(path.c_str());
    }
  }

  std::string path_;
  std::array<std::byte, meeting_note::bytes> note_;
  bool own_directory_ = false;  ///< created if it does not exist, removed once it is empty
  descriptor file_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_MEETING_FILE_INCLUDED

// ---- trireme/comm/rendezvous.hpp (goes on)
#ifndef TRIREME_COMM_DETAIL_MEETING_HOST_INCLUDED
#define TRIREME_COMM_DETAIL_MEETING_HOST_INCLUDED

// ---- trireme/comm/detail/meeting_host.hpp
#include <list>

namespace trireme::comm::detail {

/// The connection of two ranks that have authenticated each other.
class meeting_line {
 public:
  static constexpr std::size_t most_content = std::size_t{64} << 10;  ///< of one rank
  static constexpr std::chrono::seconds handshake_time{5};

  meeting_line(descriptor socket, sha256::digest const& key, bool is_rank_0, int size) noexcept
      : socket_(std::move(socket)),
        out_(key, is_rank_0, 0),
        in_(key, !is_rank_0, is_rank_0 ? most_content : static_cast<std::size_t>(size) * (most_content + 4) + 4) {}

  [[nodiscard]] int number() const noexcept { return socket_.number(); }
  [[nodiscard]] bool send(frame_kind kind, std::string_view content, steady_time until) {
    return send_all(number(), out_.pack(kind, content), until);
  }
  /// Returns nothing if the peer has gone, is too slow, or sends an invalid frame.
  [[nodiscard]] std::optional<frame> receive(steady_time until) {
    while (!in_.is_whole()) {
      piece_.resize(in_.wanted());
      if (!receive_all(number(), piece_, until) || !in_.take(piece_)) return std::nullopt;
    }
    return in_.unpack();
  }
  /// Whether the peer has closed the connection.
  [[nodiscard]] bool is_over() const noexcept {
    std::byte one{};
    auto const got = ::recv(number(), &one, 1, MSG_PEEK);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

 private:
  descriptor socket_;
  frame_channel out_, in_;
  std::vector<std::byte> piece_;
};

/// Rank 0 until all ranks have connected: accepts those that prove that they know the secret, and ignores all others.
class meeting_host {
 public:
  static constexpr std::size_t most_pending = 64;

  meeting_host(descriptor listener, std::string secret, std::string job, int size)
      : listener_(std::move(listener)), secret_(std::move(secret)), job_(std::move(job)), size_(size) {
    lines_.resize(static_cast<std::size_t>(size));
  }

  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> out;
    for (int rank = 1; rank < size_; ++rank)
      if (lines_[static_cast<std::size_t>(rank)] == nullptr) out.push_back(rank);
    return out;
  }
  [[nodiscard]] std::string const& note() const noexcept { return note_; }
  [[nodiscard]] std::vector<std::unique_ptr<meeting_line>>& lines() noexcept { return lines_; }

  /// Handles arrivals until `until`, or until something has arrived.
  void serve(steady_time until) {
    auto const now = std::chrono::steady_clock::now();
    std::erase_if(pending_, [&](visitor const& each) { return now - each.since > meeting_line::handshake_time; });
    std::vector<::pollfd> polled{{listener_.number(), POLLIN, 0}};
    for (auto const& each : pending_) polled.push_back({each.socket.number(), POLLIN, 0});
    for (auto const& line : lines_)
      if (line != nullptr) polled.push_back({line->number(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), poll_time(until)) <= 0) return;

    for (auto& line : lines_)  // a rank whose connection has ended may connect again
      if (line != nullptr && line->is_over()) line.reset();
    // Pending connections before new ones, so that many new ones cannot keep the others from finishing.
    std::erase_if(pending_, [this](visitor& each) { return !advance(each); });
    for (std::size_t i = 0; i < most_pending / 4; ++i) {
      descriptor socket(::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.is_open()) {
        // If no descriptor is left, the oldest pending connection is dropped.
        if ((errno == EMFILE || errno == ENFILE) && !pending_.empty()) pending_.pop_front();
        break;
      }
      if (pending_.size() >= most_pending) pending_.pop_front();
      pending_.push_back({std::move(socket), std::chrono::steady_clock::now()});
    }
  }

 private:
  struct visitor {
    descriptor socket;
    steady_time since;
    std::array<std::byte, hello::bytes> bytes{};
    std::size_t have = 0;
    hello claim{};
    std::optional<proofs> proof{};
  };

  /// Reads the bytes that have arrived, at most hello and answer (80 bytes). False if the connection is no longer
  /// pending.
  bool advance(visitor& it) {
    for (;;) {
      auto const needed = it.proof ? sizeof(sha256::digest) : hello::bytes;
      auto const got = ::recv(it.socket.number(), it.bytes.data() + it.have, needed - it.have, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      it.have += static_cast<std::size_t>(got);
      if (it.have < needed) continue;
      it.have = 0;
      if (!it.proof) {
        auto const claim = hello::parse(it.bytes);
        if (!claim) return false;
        it.claim = *claim;
        challenge asked;
        fill_random(asked.random);
        it.proof.emplace(secret_, job_, it.claim, asked.random);
        asked.proof = it.proof->of_rank_0;
        if (!send_all(it.socket.number(), asked.packed(), std::chrono::steady_clock::now())) return false;
      } else {
        if (equal_in_constant_time(std::span(it.bytes).first<32>(), it.proof->of_rank)) admit(it);
        return false;
      }
    }
  }
  void admit(visitor& it) {
    auto const rank = it.claim.rank;
    auto const soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    auto line = std::make_unique<meeting_line>(std::move(it.socket), it.proof->key, true, size_);
    std::string refusal;
    if (it.claim.size != static_cast<std::uint32_t>(size_))
      refusal = text("rank ", rank, " was started with ", how_many(it.claim.size, "rank"), ", but rank 0 with ", size_);
    else if (rank < 1 || rank >= it.claim.size)
      refusal = text("rank ", rank, " is not one of the ", how_many(size_, "rank"), " that may connect to rank 0");
    else if (lines_[rank] != nullptr)
      refusal = text("rank ", rank, " has connected twice; give each process a rank of its own");
    if (!refusal.empty()) {
      static_cast<void>(line->send(frame_kind::refused, refusal, soon));
      note_ = refusal;
    } else if (line->send(frame_kind::welcome, {}, soon)) {
      lines_[rank] = std::move(line);
    }
  }

  descriptor listener_;
  std::string secret_, job_;
  int size_;
  std::list<visitor> pending_;
  std::vector<std::unique_ptr<meeting_line>> lines_;  ///< by rank; 0's is empty
  std::string note_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_MEETING_HOST_INCLUDED

// ---- trireme/comm/rendezvous.hpp (goes on)
namespace trireme::comm {

/// Where ranks meet, and how they authenticate each other: at `file`, or at `address` and `port` with `secret`.
///
/// With `file`, rank 0 takes a free port of this machine and a random secret, and publishes both in that file, which
/// only this user may read; it is removed when all have met. Otherwise the caller gives the secret, the same on all
/// ranks.
struct rendezvous {
  std::string file{};
  std::string address = "127.0.0.1";
  int port = 0;
  std::string secret{};  ///< at least 32 characters; `openssl rand -hex 32` makes one
  std::string job{};     ///< ranks of different jobs do not meet
  std::string origin{};  ///< for messages: where the number of ranks comes from
  bool remote = false;   ///< allows an address that other machines can reach
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  friend bool operator==(rendezvous const&, rendezvous const&) = default;

  /// The meeting that the environment asks for: TRIREME_RENDEZVOUS=HOST:PORT with TRIREME_SECRET or TRIREME_SECRET_FILE
  /// (and TRIREME_RENDEZVOUS_REMOTE=1 if other machines can reach HOST), or TRIREME_RENDEZVOUS=file:PATH. Without
  /// these, on one machine: a file whose name is derived from the launcher's id of the run. On several machines, under
  /// torchrun: the port after MASTER_PORT, because torchrun's agent uses MASTER_PORT.
  ///
  /// Errors   config_error if the environment gives no place to meet.
  [[nodiscard]] static rendezvous from(bootstrap::launch_info const& here,
                                       bootstrap::lookup const& variable = bootstrap::environment_variable);
};

inline rendezvous rendezvous::from(bootstrap::launch_info const& here, bootstrap::lookup const& variable) {
  auto const word = [&](char const* name) { return variable(name).value_or(""); };
  rendezvous out;
  out.job = here.job;
  out.origin = here.size > 1 ? here.origin() : std::string();
  bool const by_file = !here.has_address && here.is_one_machine();
  if (by_file) {
    if (here.job.empty())
      throw config_error(text("trireme::comm::rendezvous: this run, started by ", bootstrap::name_of(here.started_by),
                              ", has no id; set TRIREME_JOB, equal on all ranks and new for each run, "
                              "or TRIREME_RENDEZVOUS=file:PATH; ",
                              here.origin()));
    auto const run =
        text(static_cast<int>(here.started_by), "\n", here.address, "\n", here.port, "\n", here.job, "\n", here.size);
    out.file = text(detail::meeting_directory(word("TMPDIR")), "/", sha256().update(run).hexadecimal().substr(0, 32));
    return out;
  }
  if (!here.file.empty()) {
    out.file = here.file;
    return out;
  }
  if (here.address.empty())
    throw config_error(text("trireme::comm::rendezvous: the launcher (", bootstrap::name_of(here.started_by),
                            ") does not give the address of rank 0; set TRIREME_RENDEZVOUS=HOST:PORT; ",
                            here.origin()));
  out.address = here.address;
  out.port = here.has_address ? here.port : here.port + 1;  // torchrun's agent listens at its own port
  out.remote = word("TRIREME_RENDEZVOUS_REMOTE") == "1";
  auto const secret_file = word("TRIREME_SECRET_FILE");
  out.secret = secret_file.empty() ? word("TRIREME_SECRET") : detail::read_secret(secret_file);
  return out;
}

/// The source that makes it, without the secret.
[[nodiscard]] inline std::string to_string(rendezvous const& it) {
  std::string out = "comm::rendezvous{";
  if (!it.file.empty()) {
    out += text(".file = \"", it.file, "\"");
  } else {
    out += text(".address = \"", it.address, "\", .port = ", it.port, ", .secret = ...");
    if (it.remote) out += ", .remote = true";
  }
  if (!it.job.empty()) out += text(", .job = \"", it.job, "\"");
  return out + text(", .deadline = ", to_string(it.deadline), "}");
}

/// Ranks that have met over TCP, each connected to rank 0: for set-up, where a few bytes must reach every rank.
///
/// Once it is made, no port is open any longer. Each side proves to the other that it knows the secret (HMAC-SHA256
/// over both nonces, job, size, rank and protocol version) before anything else is read; unknown peers, invalid data
/// and half-open connections are dropped after 5 s without effect. Contents are authenticated, not encrypted.
///
/// Ranks    collective: made, and called, by all `size` ranks; one rank makes a meeting without a socket.
/// Threads  one caller a rank.
/// Errors   config_error for an invalid description, an address beyond this machine without `.remote`, or a rank that
///          rank 0 refuses; comm_error after the deadline, with the ranks that did not arrive, or if a rank has gone.
class meeting {
 public:
  static constexpr int most_ranks = 1 << 16;  ///< as many as one machine has ports

  meeting(rendezvous const& where, int rank, int size, std::string_view who = "trireme::comm::rendezvous")
      : rank_(rank), size_(size), who_(who), origin_(where.origin), deadline_(where.deadline) {
    check(where);
    if (size == 1) return;
    if (rank == 0)
      host(where);
    else
      join(where);
  }
  meeting(meeting&&) = default;
  meeting& operator=(meeting&&) = default;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// The string that every rank passed, in rank order. At most 64 KiB a rank.
  [[nodiscard]] std::vector<std::string> all_gather(std::string const& own) {
    if (own.size() > detail::meeting_line::most_content)
      throw config_error(text(who_, ": a meeting gathers at most ", detail::meeting_line::most_content,
                              " bytes a rank, not ", own.size()));
    if (size_ == 1) return {own};
    auto const until = std::chrono::steady_clock::now() + deadline_;
    if (rank_ == 0) {
      auto all = collect(own, until);
      auto const packed = detail::pack_all(all);
      for (int rank = 1; rank < size_; ++rank)
        if (!lines_[static_cast<std::size_t>(rank)]->send(kind::content, packed, until))
          fail(text(who_, ": rank ", rank, " of ", size_, " has left the meeting"));
      return all;
    }
    if (!lines_.empty()) static_cast<void>(lines_[0]->send(kind::content, own, until));  // a failure shows below
    auto const packed = expect(kind::content, until + std::chrono::seconds(1));
    auto all = detail::unpack_all(packed, static_cast<std::size_t>(size_));
    if (!all)
      throw comm_error(
          text(who_, ": the reply of rank 0 is not one block of bytes a rank; run the same version on all ranks"));
    return std::move(*all);
  }

 private:
  using kind = detail::frame_kind;

  void check(rendezvous const& where) const {
    if (size_ < 1 || rank_ < 0 || rank_ >= size_)
      throw config_error(
          text(who_, ": rank ", rank_, " of ", size_, " is out of range; ranks are numbered from 0 to size - 1"));
    if (size_ > most_ranks)  // before memory is taken for each of them
      throw config_error(text(who_, ": ", how_many(size_, "rank"), " are more than the ", most_ranks,
                              " that can meet; use fewer ranks"));
    if (where.deadline.count() < 1)
      throw config_error(text(who_, ": .deadline is ", to_string(where.deadline), "; give the ranks at least 1ms"));
    if (size_ == 1 || !where.file.empty()) return;
    if (where.port < 1 || where.port > 65535)
      throw config_error(text(who_, ": .port is ", where.port, "; choose 1 to 65535, or meet by a file"));
    if (where.secret.size() < 32)
      throw config_error(text(
          who_,
          ": meeting at a port needs a secret of at least 32 characters; "
          "put the output of `openssl rand -hex 32` into a file of mode 0600 and set TRIREME_SECRET_FILE to its path"));
  }
  [[nodiscard]] std::optional<detail::endpoint> endpoint_of(rendezvous const& where) const {
    auto out = detail::resolve(where.address, where.port);
    if (out && !out->is_loopback() && !where.remote)
      throw config_error(text(who_, ": ", where.address,
                              " is an address that other machines can reach; "
                              "if you mean that, set TRIREME_RENDEZVOUS_REMOTE=1 (.remote): contents are "
                              "authenticated, but not encrypted"));
    return out;
  }

  void host(rendezvous const& where) {
    auto const until = std::chrono::steady_clock::now() + where.deadline;
    auto local = where;
    if (!where.file.empty()) {
      local.address = "127.0.0.1";
      local.port = 0;
      local.secret.resize(32);
      detail::fill_random(std::as_writable_bytes(std::span(local.secret)));
    }
    auto const at = endpoint_of(local);
    int failed = EADDRNOTAVAIL;
    auto listener = at ? detail::listen_at(*at, failed) : detail::descriptor();
    if (!listener.is_open())
      throw config_error(text(who_, ": rank 0 cannot listen at ", local.address, ":", local.port, ": ",
                              detail::system_sentence(failed)));
    std::optional<detail::meeting_file> file;
    if (!where.file.empty()) file.emplace(where.file, detail::meeting_note{detail::port_of(listener), local.secret});
    std::vector<int> missing;
    std::string refused;
    {
      detail::meeting_host door(std::move(listener), local.secret, local.job, size_);
      for (missing = door.missing(); !missing.empty() && std::chrono::steady_clock::now() < until;
           missing = door.missing()) {
        door.serve(std::min(until, std::chrono::steady_clock::now() + std::chrono::milliseconds(200)));
        if (file) file->keep();
      }
      lines_ = std::move(door.lines());
      refused = door.note();
    }
    file.reset();  // before a rank goes on: it may soon use this path for another meeting
    if (!missing.empty())
      fail(text(who_, ": ", names(missing), " did not arrive at ",
                where.file.empty() ? text(where.address, ":", where.port) : where.file, " within ",
                to_string(where.deadline), and_origin(), "; ", refused.empty() ? "is every rank started?" : refused));
    for (auto const& line : lines_)
      if (line != nullptr)
        static_cast<void>(line->send(kind::go, {}, until));  // the first call names a rank that has gone
  }

  /// Why this rank could not meet rank 0: the obstacle of the attempt that got furthest, of several the last one. The
  /// very last attempt may only find that rank 0 has left meanwhile, or may have had no time to finish.
  struct obstacle {
    enum stage { nobody_there, no_answer, no_proof };

    void met(stage at, std::string what) {
      if (at < furthest) return;
      furthest = at;
      sentence = std::move(what);
    }

    stage furthest = nobody_there;
    std::string sentence = "no process listens there";
  };

  void join(rendezvous const& where) {
    auto const until = std::chrono::steady_clock::now() + where.deadline;
    obstacle found;
    lines_.resize(1);
    for (auto pause = std::chrono::milliseconds(5);; pause = std::min(pause * 2, std::chrono::milliseconds(100))) {
      lines_[0] = knock(where, until, found);
      if (lines_[0] != nullptr) break;
      if (std::chrono::steady_clock::now() + pause >= until)
        throw comm_error(text(who_, ": rank ", rank_, " did not find rank 0 of ", size_, " at ",
                              where.file.empty() ? text(where.address, ":", where.port) : where.file, " within ",
                              to_string(where.deadline), ": ", found.sentence, and_origin()));
      std::this_thread::sleep_for(pause);
    }
    // Rank 0 may have begun later than this rank. If a rank is missing, rank 0 reports it first.
    static_cast<void>(expect(kind::go, std::chrono::steady_clock::now() + where.deadline + std::chrono::seconds(1)));
  }
  [[nodiscard]] std::unique_ptr<detail::meeting_line> knock(rendezvous const& where, detail::steady_time until,
                                                            obstacle& found) const {
    auto local = where;
    if (!where.file.empty()) {
      std::string why;
      auto const note = detail::read_note(where.file, why);
      if (!note) {
        found.met(obstacle::nobody_there, why);
        return nullptr;
      }
      local.address = "127.0.0.1";
      local.port = note->port;
      local.secret = note->secret;
    }
    auto const at = endpoint_of(local);
    if (!at) {
      found.met(obstacle::nobody_there, text("the host name ", local.address, " cannot be resolved"));
      return nullptr;
    }
    auto const soon = std::min(until, std::chrono::steady_clock::now() + detail::meeting_line::handshake_time);
    int failed = 0;
    auto socket = detail::connect_to(*at, soon, failed);
    if (!socket.is_open()) {
      found.met(obstacle::nobody_there, detail::system_sentence(failed));
      return nullptr;
    }
    found.met(obstacle::no_answer, "the process that listens there does not reply as a rank 0 of this version");
    detail::hello claim{static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(size_), {}};
    detail::fill_random(claim.random);
    std::array<std::byte, detail::challenge::bytes> bytes{};
    if (!detail::send_all(socket.number(), claim.packed(), soon) || !detail::receive_all(socket.number(), bytes, soon))
      return nullptr;
    auto const asked = detail::challenge::parse(bytes);
    if (!asked) return nullptr;
    detail::proofs const proof(local.secret, local.job, claim, asked->random);
    if (!equal_in_constant_time(asked->proof, proof.of_rank_0)) {
      found.met(obstacle::no_proof, "the process that listens there has another secret or another job");
      return nullptr;
    }
    if (!detail::send_all(socket.number(), proof.of_rank, soon)) return nullptr;
    auto line = std::make_unique<detail::meeting_line>(std::move(socket), proof.key, false, size_);
    auto const answer = line->receive(soon);
    if (answer && answer->kind == kind::refused)
      throw config_error(text(who_, ": rank 0 refuses this process: ", answer->content));
    return answer && answer->kind == kind::welcome ? std::move(line) : nullptr;
  }

  /// Reports the error to all ranks, and throws.
  [[noreturn]] void fail(std::string const& sentence) {
    auto const soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (auto const& line : lines_)
      if (line != nullptr) static_cast<void>(line->send(kind::failed, sentence, soon));
    lines_.clear();
    throw comm_error(sentence);
  }
  [[nodiscard]] std::string expect(kind wanted, detail::steady_time until) {
    if (lines_.empty()) throw comm_error(text(who_, ": the meeting has already failed"));
    auto got = lines_[0]->receive(until);
    if (got && got->kind == wanted) return std::move(got->content);
    lines_.clear();
    if (got && got->kind == kind::failed) throw comm_error(got->content);
    throw comm_error(text(who_, ": rank 0 of ", size_,
                          std::chrono::steady_clock::now() < until
                              ? " has left the meeting"
                              : text(" did not answer within ", to_string(deadline_)).c_str()));
  }
  [[nodiscard]] std::vector<std::string> collect(std::string const& own, detail::steady_time until) {
    if (lines_.empty()) throw comm_error(text(who_, ": the meeting has already failed"));
    std::vector<std::string> all(static_cast<std::size_t>(size_));
    all[0] = own;
    std::vector<int> waited(static_cast<std::size_t>(size_ - 1));
    for (int rank = 1; rank < size_; ++rank) waited[static_cast<std::size_t>(rank - 1)] = rank;
    while (!waited.empty()) {
      std::vector<::pollfd> polled;
      for (auto const rank : waited) polled.push_back({lines_[static_cast<std::size_t>(rank)]->number(), POLLIN, 0});
      auto const ready = ::poll(polled.data(), polled.size(), detail::poll_time(until));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0)
        fail(text(who_, ": ", names(waited), " did not send in the meeting within  ", to_string(deadline_)));
      std::vector<int> still;
      for (std::size_t i = 0; i < waited.size(); ++i) {
        if (polled[i].revents == 0) {
          still.push_back(waited[i]);
          continue;
        }
        auto got = lines_[static_cast<std::size_t>(waited[i])]->receive(until);
        if (!got || got->kind != kind::content)
          fail(text(who_, ": rank ", waited[i], " of ", size_, " has left the meeting"));
        all[static_cast<std::size_t>(waited[i])] = std::move(got->content);
      }
      waited = std::move(still);
    }
    return all;
  }

  [[nodiscard]] std::string names(std::vector<int> const& ranks) const {
    return text(list_of("rank", ranks), " of ", size_);
  }

  [[nodiscard]] std::string and_origin() const { return origin_.empty() ? std::string() : "; " + origin_; }

  int rank_, size_;
  std::string who_;
  std::string origin_;
  std::chrono::milliseconds deadline_;
  std::vector<std::unique_ptr<detail::meeting_line>> lines_;  ///< rank 0: of all; others: to rank 0
};

}  // namespace trireme::comm
