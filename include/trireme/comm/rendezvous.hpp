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
#include "trireme/core/plural.hpp"

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
