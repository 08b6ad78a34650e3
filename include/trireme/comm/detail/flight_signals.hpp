#pragma once

#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/comm/detail/flight_log.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm::detail {

/// A log, and the signal that dumps it.
struct flight_signal_place {
  std::atomic<flight_log*> log{nullptr};
  std::atomic<int> number{0};
};

/// The logs that a signal dumps. A signal has our handler while it has a log; then it has the old one again.
class flight_signals {
 public:
  static void add(int number, flight_log& log) {
    std::lock_guard const lock(mutex());
    auto& all = places();
    for (auto& place : all) {
      if (place.log.load() != nullptr) continue;
      if (logs_of(number) == 0) {
        struct sigaction action {};
        action.sa_handler = &dump_all;
        action.sa_flags = SA_RESTART;
        sigemptyset(&action.sa_mask);
        if (number <= 0 || number >= most_signals || ::sigaction(number, &action, &before(number)) != 0)
          throw config_error(text("trireme::comm::recorded: .signal is ", number,
                                  ", which cannot be handled; choose one like SIGUSR1"));
      }
      place.number.store(number);
      place.log.store(&log);
      return;
    }
    throw config_error(text("trireme::comm::recorded: more than ", all.size(),
                            " ranks of one process wait for signals; record fewer worlds at a time"));
  }
  /// When it returns no handler reads the log any more.
  static void remove(int number, flight_log& log) noexcept {
    std::lock_guard const lock(mutex());
    for (auto& place : places())
      if (place.log.load() == &log) place.log.store(nullptr);
    while (reading().load() > 0) std::this_thread::yield();
    if (logs_of(number) == 0) ::sigaction(number, &before(number), nullptr);
  }

 private:
  static constexpr int most_signals = 65;

  static void dump_all(int number) {
    auto const error = errno;
    reading().fetch_add(1);
    for (auto& each : places())
      if (auto* const log = each.log.load(); log != nullptr && each.number.load() == number) log->dump();
    reading().fetch_sub(1);
    errno = error;
  }
  [[nodiscard]] static int logs_of(int number) noexcept {
    int count = 0;
    for (auto& each : places()) count += each.log.load() != nullptr && each.number.load() == number ? 1 : 0;
    return count;
  }

  // Constant initialisation: a handler may read them at any time.
  static std::array<flight_signal_place, 256>& places() noexcept { return places_; }
  static std::atomic<int>& reading() noexcept { return reading_; }
  static std::mutex& mutex() noexcept { return mutex_; }
  static struct sigaction& before(int number) noexcept { return before_[static_cast<std::size_t>(number)]; }
  static inline std::array<flight_signal_place, 256> places_{};
  static inline std::atomic<int> reading_{0};
  static inline std::mutex mutex_;
  static inline std::array<struct sigaction, most_signals> before_{};
};

/// Dumps a log on a signal as long as it lives.
class flight_signal {
 public:
  flight_signal(int number, flight_log& log) : number_(number), log_(log) { flight_signals::add(number_, log_); }
  flight_signal(flight_signal const&) = delete;
  flight_signal& operator=(flight_signal const&) = delete;
  ~flight_signal() { flight_signals::remove(number_, log_); }

 private:
  int number_;
  flight_log& log_;
};

}  // namespace trireme::comm::detail
