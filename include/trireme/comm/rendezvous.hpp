#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/meeting_file.hpp"
#include "trireme/comm/detail/meeting_host.hpp"

namespace trireme::comm {

/// Where ranks meet, and how they know each other: at `file`, or at `address` and `port` with `secret`.
///
/// With `file`, rank 0 takes a free port of this machine and a random secret, and publishes both in that file, which
/// only this user may read; it is gone when all have met. Otherwise the secret is somebody's, the same on all ranks.
struct rendezvous {
  std::string file{};
  std::string address = "127.0.0.1";
  int port = 0;
  std::string secret{};  ///< at least 32 characters; `openssl rand -hex 32` makes one
  std::string job{};     ///< ranks of different jobs do not meet
  bool remote = false;   ///< allows an address that other machines reach
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  friend bool operator==(rendezvous const&, rendezvous const&) = default;

  /// What the environment asks for. TRIREME_RENDEZVOUS=HOST:PORT with TRIREME_SECRET or TRIREME_SECRET_FILE (and
  /// TRIREME_RENDEZVOUS_REMOTE=1 if HOST is not this machine alone), or TRIREME_RENDEZVOUS=file:PATH; otherwise on one
  /// machine a file whose name follows from what the launcher calls the run, and on several, under torchrun, the port
  /// after MASTER_PORT, which is its agent's.
  ///
  /// Errors   config_error if that is not enough to meet.
  [[nodiscard]] static rendezvous from(bootstrap::place const& here,
                                       bootstrap::lookup const& variable = bootstrap::environment_variable);
};

/// The source that makes it, but for the secret.
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

/// Ranks that have met over TCP, rank 0 in the middle: for set-up, where a few bytes must reach every rank.
///
/// Nothing listens any more once it is made. Each side proves to the other that it knows the secret (HMAC-SHA256 over
/// both nonces, job, size, rank and protocol version) before anything else is read; strangers, garbage and half-open
/// connections are dropped after 5 s and change nothing. Contents are authenticated, not encrypted.
///
/// Ranks    collective: made, and called, by all `size` ranks; one rank makes a meeting without a socket.
/// Threads  one caller a rank.
/// Errors   config_error for an impossible description, an address beyond this machine without `.remote`, or a rank
///          that rank 0 refuses; comm_error after the deadline, with the ranks that did not come, or if one has gone.
class meeting {
 public:
  static constexpr int most_ranks = 1 << 16;  ///< as many as one machine has ports

  meeting(rendezvous const& where, int rank, int size, std::string_view who = "trireme::comm::rendezvous");
  meeting(meeting&&) = default;
  meeting& operator=(meeting&&) = default;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// What every rank passed, in rank order. At most 64 KiB a rank.
  [[nodiscard]] std::vector<std::string> all_gather(std::string const& own);

 private:
  using kind = detail::frame_kind;
  struct obstacle;

  void check(rendezvous const& where) const;
  void host(rendezvous const& where);
  void join(rendezvous const& where);
  [[nodiscard]] std::unique_ptr<detail::meeting_line> knock(rendezvous const& where, detail::steady_time until,
                                                            obstacle& found) const;
  [[nodiscard]] std::optional<detail::endpoint> endpoint_of(rendezvous const& where) const;
  /// Tells all ranks, and throws.
  [[noreturn]] void fail(std::string const& sentence);
  [[nodiscard]] std::vector<std::string> collect(std::string const& own, detail::steady_time until);
  [[nodiscard]] std::string expect(kind wanted, detail::steady_time until);

  [[nodiscard]] std::string names(std::vector<int> const& ranks) const {
    std::string out = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) out += text(i == 0 ? "" : ", ", ranks[i]);
    return out + text(" of ", size_);
  }

  int rank_, size_;
  std::string who_;
  std::chrono::milliseconds deadline_;
  std::vector<std::unique_ptr<detail::meeting_line>> lines_;  ///< rank 0: of all; others: to rank 0
};

}  // namespace trireme::comm

#include "trireme/comm/detail/meeting.inl"
