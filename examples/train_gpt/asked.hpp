#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>

/// What signals have asked of this process. Handlers reach nothing but what stands here, and use what POSIX lets them.
///
///   SIGINT, SIGUSR2           end training after the step, save, evaluate, sample
///   SIGTERM, SIGHUP, SIGUSR1  save and leave, within the seconds of --grace
///   SIGINT after any of them  leave now: what was saved before is whole
///
/// While there is nothing to save, each of them ends the process at once. What mpirun hands on is SIGUSR1 and SIGUSR2.
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
  // If standard error is gone there is nobody to tell.
  if (speaks) [[maybe_unused]]
    auto const put = ::write(STDERR_FILENO, sentence, std::strlen(sentence));
  ::_exit(128 + signal);
}

}  // namespace detail

extern "C" inline void hear_signal(int signal) {
  if (signal == SIGALRM) {
    detail::leave_now(SIGTERM,
                      "train_gpt: the time of --grace is over, so it leaves; the checkpoint before is whole\n");
  }
  if (!detail::something_to_save) {
    detail::leave_now(signal, "train_gpt: stopped by a signal before there was anything to save\n");
  }
  if (signal == SIGINT && detail::times > 0) {
    detail::leave_now(signal, "train_gpt: interrupted again, so it leaves at once; the newest checkpoint is whole\n");
  }
  bool const gently = signal == SIGINT || signal == SIGUSR2;
  if (!gently && detail::most < leave) ::alarm(static_cast<unsigned>(detail::grace_seconds));
  detail::most = std::max<int>(detail::most, gently ? stop : leave);
  ++detail::times;
}

/// From now on signals are heard. @param speaks  whether this process says why it leaves.
inline void listen(bool speaks) {
  detail::speaks = speaks;
  for (int const signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM}) {
    // Whoever started it with nohup wants it to outlive the terminal.
    if (std::signal(signal, hear_signal) == SIG_IGN && signal == SIGHUP) std::signal(signal, SIG_IGN);
  }
  std::signal(SIGPIPE, SIG_IGN);  // whoever read the output has gone: that is no reason to lose a training
  std::signal(SIGXFSZ, SIG_IGN);  // a file that gets too long (ulimit -f) is an error of the write, as a full disk is
}

/// From now on a signal is a wish, and who trains looks for it.
inline void save_first(int grace_seconds) {
  detail::grace_seconds = grace_seconds;
  detail::something_to_save = true;
}
/// Everything is saved: nobody has to leave in a hurry any more.
inline void all_is_saved() { ::alarm(0); }

[[nodiscard]] inline int most() noexcept { return detail::most; }
[[nodiscard]] inline int times() noexcept { return detail::times; }

}  // namespace asked
