#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "trireme/comm/any_world.hpp"
#include "trireme/comm/node/setup.hpp"

using node_world = trireme::comm::any_world;

/// Forks ranks that meet through this process, and returns the result of each: empty if it succeeded, "threw: ..."
/// after an exception, "ended" if it ended without a result.
class node_family {
 public:
  using gather = trireme::comm::detail::node_all_gather;
  using body = std::function<std::string(int, gather const&)>;

  node_family(int size, body const& run) {
    for (int rank = 0; rank < size; ++rank) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair");
      auto const parent = ::getpid();
      auto const process = ::fork();
      if (process == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        ::close(ends[0]);
        for (auto const& each : ranks_) ::close(each.socket);
        live(ends[1], rank, size, run);
      }
      ::close(ends[1]);
      auto& added = ranks_.emplace_back();
      added.process = process;
      added.socket = ends[0];
    }
  }
  node_family(node_family const&) = delete;
  node_family& operator=(node_family const&) = delete;
  ~node_family() {
    for (auto const& each : ranks_) {
      ::kill(each.process, SIGKILL);
      ::waitpid(each.process, nullptr, 0);
      if (each.socket >= 0) ::close(each.socket);
    }
  }

  void signal(int rank, int number) const { ::kill(at(rank).process, number); }

  /// The result of `rank`. Gathers of all ranks are handled meanwhile.
  std::string said(int rank) {
    while (!at(rank).word) {
      std::vector<pollfd> sockets;
      for (auto const& each : ranks_) sockets.push_back({each.word || each.card ? -1 : each.socket, POLLIN, 0});
      if (::poll(sockets.data(), sockets.size(), -1) < 0) continue;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        if (sockets[i].revents == 0) continue;
        auto const frame = receive(ranks_[i].socket).value_or("rended");
        (frame.front() == 'g' ? ranks_[i].card : ranks_[i].word) = frame.substr(1);
      }
      bool const complete = std::ranges::all_of(ranks_, [](auto const& each) { return each.card.has_value(); });
      bool const broken = std::ranges::any_of(ranks_, [](auto const& each) { return each.word.has_value(); });
      for (auto const& each : ranks_) {
        if (complete)
          for (auto const& other : ranks_) send(each.socket, *other.card);
        else if (broken && each.card)
          ::shutdown(each.socket, SHUT_WR);  // there will be no more gathers
      }
      if (complete || broken)
        for (auto& each : ranks_) each.card.reset();
    }
    return *at(rank).word;
  }
  std::vector<std::string> said() {
    std::vector<std::string> all;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) all.push_back(said(rank));
    return all;
  }

 private:
  struct child {
    pid_t process = 0;
    int socket = -1;
    std::optional<std::string> card;  ///< its string for the gather
    std::optional<std::string> word;  ///< its result
  };
  [[nodiscard]] child& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] child const& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  [[noreturn]] static void live(int socket, int rank, int size, body const& run) {
    std::string word;
    try {
      word = run(rank, [&](std::string const& mine) {
        send(socket, "g" + mine);
        std::vector<std::string> all;
        for (int each = 0; each < size; ++each) {
          auto line = receive(socket);
          if (!line) throw trireme::comm_error("the family has broken up");
          all.push_back(*line);
        }
        return all;
      });
    } catch (std::exception const& failure) {
      word = std::string("threw: ") + failure.what();
    }
    send(socket, "r" + word);
    ::_exit(0);
  }
  static void send(int socket, std::string const& what) {
    auto const length = static_cast<std::uint32_t>(what.size());
    std::string const frame = std::string(reinterpret_cast<char const*>(&length), sizeof length) + what;
    static_cast<void>(::send(socket, frame.data(), frame.size(), MSG_NOSIGNAL));
  }
  static std::optional<std::string> receive(int socket) {
    std::uint32_t length = 0;
    if (::recv(socket, &length, sizeof length, MSG_WAITALL) != sizeof length) return std::nullopt;
    std::string out(length, '\0');
    if (length > 0 && ::recv(socket, out.data(), length, MSG_WAITALL) != static_cast<ssize_t>(length))
      return std::nullopt;
    return out;
  }

  std::vector<child> ranks_;
};

/// A family whose ranks have made their world.
inline node_family::body in_world(std::function<std::string(node_world&)> run,
                                  std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
  return [run = std::move(run), deadline](int rank, node_family::gather const& gather) {
    // The first gather shows the size, so it need not be passed again.
    auto const size = static_cast<int>(gather("").size());
    node_world world(trireme::comm::detail::make_node_engine("trireme::comm::processes", rank, size, deadline, gather));
    return run(world);
  };
}
