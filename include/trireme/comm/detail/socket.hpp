#pragma once

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "trireme/comm/detail/descriptor.hpp"
#include "trireme/core/error.hpp"

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
