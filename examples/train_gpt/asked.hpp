#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>

/// The requests that signals have made of this process. Handlers access only what is here, and call only what POSIX
/// permits.
///
///   SIGINT, SIGUSR2           end training after the step, save, evaluate, sample
///   SIGTERM, SIGHUP, SIGUSR1  save and leave, within the seconds of --grace
///   SIGINT after any of them  leave now: what was saved before is whole
///
/// While there is nothing to save, each of them ends the process at once. mpirun forwards SIGUSR1 and SIGUSR2.
namespace asked {

enum level : int { nothing, stop, leave };

namespace detail {

inline std::atomic<int> most{nothing};
inline std::atomic<int> times{0};
inline std::atomic<bool> something_to_save{false};
inline std::atomic<bool> speaks{true};
inline std::atomic<int> grace_seconds{25};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

[[noreturn]] inline void leave_now(int signal, char const* sentence) noexcept {
  // If standard error is closed the message is lost.
  if (speaks) [[maybe_unused]]
    auto const put = ::write(STDERR_FILENO, sentence, std::strlen(sentence));
  ::_exit(128 + signal);
}

}  // namespace detail

extern "C" inline void hear_signal(int signal) {
  if (signal == SIGALRM) {
    detail::leave_now(SIGTERM,
                      "train_gpt: the time of --grace is over, so it exits; the previous checkpoint is whole\n");
  }
  if (!detail::something_to_save) {
    detail::leave_now(signal, "train_gpt: stopped by a signal before there was anything to save\n");
  }
  if (signal == SIGINT && detail::times > 0) {
    detail::leave_now(signal, "train_gpt: interrupted again, so it exits at once; the newest checkpoint is whole\n");
  }
  bool const gently = signal == SIGINT || signal == SIGUSR2;
  if (!gently && detail::most < leave) ::alarm(static_cast<unsigned>(detail::grace_seconds));
  detail::most = std::max<int>(detail::most, gently ? stop : leave);
  ++detail::times;
}

/// Handles signals from now on. @param speaks  whether this process prints why it exits.
inline void listen(bool speaks) {
  detail::speaks = speaks;
  for (int const signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM}) {
    // nohup ignores SIGHUP so that the program outlives the terminal: keep ignoring it.
    if (std::signal(signal, hear_signal) == SIG_IGN && signal == SIGHUP) std::signal(signal, SIG_IGN);
  }
  std::signal(SIGPIPE, SIG_IGN);  // a closed output pipe must not end a training
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the limit (ulimit -f) is then a write error, like a full disk
}

/// From now on a signal only sets a flag, which the training checks.
inline void save_first(int grace_seconds) {
  detail::grace_seconds = grace_seconds;
  detail::something_to_save = true;
}
/// Everything is saved: cancels the --grace timer.
inline void all_is_saved() { ::alarm(0); }

[[nodiscard]] inline int most() noexcept { return detail::most; }
[[nodiscard]] inline int times() noexcept { return detail::times; }

}  // namespace asked
