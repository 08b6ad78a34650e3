#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "trireme/comm/detail/socket.hpp"

/// A process that runs `body` and sends its result, or "failed: " and the message of its exception. Killed and waited
/// for at the latest in the destructor.
struct child {
  ::pid_t pid = -1;
  trireme::comm::detail::descriptor from;
  explicit child(std::function<std::string()> const& body) {
    int ends[2] = {-1, -1};
    if (::pipe(ends) != 0) throw trireme::comm_error("no pipe");
    pid = ::fork();
    if (pid == 0) {
      std::string said;
      try {
        said = body();
      } catch (std::exception const& e) {
        said = std::string("failed: ") + e.what();
      }
      static_cast<void>(!::write(ends[1], said.data(), said.size()));
      std::_Exit(0);
    }
    ::close(ends[1]);
    from = trireme::comm::detail::descriptor(ends[0]);
  }
  child(child&&) = delete;
  ~child() {
    if (pid < 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  std::string result() {
    std::string out;
    for (char letter = 0; ::read(from.number(), &letter, 1) == 1;) out += letter;
    ::waitpid(std::exchange(pid, -1), nullptr, 0);
    return out;
  }
};
