#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "trireme/core/dialect.hpp"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

namespace trireme::comm::detail {

using clock = std::chrono::steady_clock;

/// How long a rank that ends with an error waits for lower ranks that may print the error instead, and how long it
/// gives the printing rank to print.
inline constexpr std::chrono::milliseconds patience_with_reporters{500};
inline constexpr std::chrono::milliseconds time_to_report{50};

/// A hint to the processor that this is a spinning loop.
inline void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The pause between two polls in a wait that has lasted `waited`: yields at first, then sleeps for a small part of
/// that time. (By time and not by the number of yields: on a busy machine one yield may take milliseconds.)
inline void rest(clock::duration waited) {
  if (waited < std::chrono::microseconds(500))
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::min<clock::duration>(waited / 16, std::chrono::milliseconds(1)));
}

/// The same in a wait in which this rank makes the progress itself: a round must come soon, but after a few
/// milliseconds the core is needed by ranks that still compute.
inline constexpr std::chrono::milliseconds long_wait{5};
inline void rest_between_rounds(bool is_long) {
  if (is_long)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  else
    std::this_thread::yield();
}

/// Sleeps while `word` holds `value`, for at most `limit`; may return early. (std::atomic::wait has no time limit.)
/// @param one_process  only threads of this process change the word.
inline void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::nanoseconds limit,
                        [[maybe_unused]] bool one_process) noexcept {
#if defined(__linux__)
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
  if (limit.count() <= 0) return;
  timespec const time{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), one_process ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT, value,
            &time, nullptr, 0);
#else
  if (word.load() == value)
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(limit, std::chrono::microseconds(50)));
#endif
}

/// Wakes all threads that sleep on `word`.
inline void wake_all([[maybe_unused]] std::atomic<std::uint32_t>& word, [[maybe_unused]] bool one_process) noexcept {
#if defined(__linux__)
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), one_process ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE,
            0x7fff'ffff, nullptr, nullptr, 0);
#endif
}

}  // namespace trireme::comm::detail
