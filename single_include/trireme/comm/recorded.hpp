// Trireme 0.1.0: trireme/comm/recorded.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ea269e3698137183e9716e10aeded62e38c6f53cd10e5590904a0ea614e32df0
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/decorate.hpp"

// ---- trireme/comm/recorded.hpp
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#ifndef TRIREME_COMM_DETAIL_FLIGHT_LOG_INCLUDED
#define TRIREME_COMM_DETAIL_FLIGHT_LOG_INCLUDED

// ---- trireme/comm/detail/flight_log.hpp
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme::comm::detail {

/// A line of text in a fixed buffer, for use in a signal handler.
class plain_line {
 public:
  plain_line& operator<<(std::string_view part) noexcept {
    auto const fits = std::min(part.size(), sizeof text_ - used_);
    std::memcpy(text_ + used_, part.data(), fits);
    used_ += fits;
    return *this;
  }
  plain_line& operator<<(std::uint64_t number) noexcept {
    used_ = static_cast<std::size_t>(std::to_chars(text_ + used_, text_ + sizeof text_, number).ptr - text_);
    return *this;
  }
  /// Nanoseconds as "1.234567".
  plain_line& seconds(std::uint64_t nanoseconds) noexcept {
    auto const micro = nanoseconds / 1000;
    *this << micro / 1'000'000 << ".";
    for (std::uint64_t digit = 100'000; digit > micro % 1'000'000 && digit > 1; digit /= 10) *this << "0";
    return *this << micro % 1'000'000;
  }
  [[nodiscard]] std::string_view view() const noexcept { return {text_, used_}; }

 private:
  char text_[320];
  std::size_t used_ = 0;
};

/// The last calls of one rank. Written by the rank's threads, read by any thread at any time, also by a signal handler:
/// an entry that is being written may be read half.
class flight_log {
 public:
  enum class state : std::uint64_t { started, done, failed };

  flight_log(int rank, int size, std::size_t capacity, std::string path)
      : rank_(static_cast<std::uint64_t>(rank)),
        size_(static_cast<std::uint64_t>(size)),
        path_(path.empty() ? path : text(path, ".", rank)),
        entries_(capacity) {}

  /// Records that a call begins; returns its number.
  std::uint64_t begin(command const& it, std::uint64_t world, std::uint64_t ranks) noexcept {
    auto const number = calls_.fetch_add(1) + 1;
    auto& each = at(number);
    each.number.store(0);
    each.world.store(world << 32U | ranks);
    std::uint64_t packed = 0;
    std::uint8_t const small[] = {static_cast<std::uint8_t>(it.what.kind), static_cast<std::uint8_t>(it.what.type),
                                  static_cast<std::uint8_t>(it.what.op), it.what.shape != 0, it.elements != nullptr};
    std::memcpy(&packed, small, sizeof small);
    each.what.store(packed);
    each.root.store(it.what.root);
    each.count.store(it.what.count);
    each.bytes.store(it.bytes);
    each.begun.store(now());
    each.ended.store(0);
    each.how.store(state::started);
    each.number.store(number);
    return number;
  }
  void end(std::uint64_t number, state how) noexcept {
    auto& each = at(number);
    if (each.number.load() != number) return;  // already overwritten by a later call
    each.ended.store(now());
    each.how.store(how);
  }

  /// Passes the text to `write(string_view)` line by line, without allocating.
  template <class Write>
  void print(Write&& write) const {
    auto const calls = calls_.load();
    auto const kept = std::min<std::uint64_t>(calls, entries_.size());
    plain_line head;
    head << "trireme flight recorder: rank " << rank_ << " of " << size_ << ", the last " << kept << " of " << calls
         << " calls, at ";
    head.seconds(now()) << " s\n";
    write(head.view());
    for (auto number = calls - kept + 1; number <= calls; ++number) {
      auto const& each = entries_[number % entries_.size()];
      if (each.number.load() != number) continue;
      plain_line line;
      print(line, each, number);
      write(line.view());
    }
  }
  /// Writes the text to a descriptor. Async-signal-safe.
  void write_to(int descriptor) const noexcept {
    print([&](std::string_view part) {
      while (!part.empty()) {
        auto const written = ::write(descriptor, part.data(), part.size());
        if (written <= 0) return;
        part.remove_prefix(static_cast<std::size_t>(written));
      }
    });
  }
  /// Writes the text to the rank's file, or to stderr if it has none. Async-signal-safe.
  void dump() const noexcept {
    if (path_.empty()) return write_to(STDERR_FILENO);
    auto const file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return write_to(STDERR_FILENO);
    write_to(file);
    ::close(file);
  }
  /// Dumps at the first error only: later errors add no information.
  void dump_once() noexcept {
    if (!dumped_.exchange(true)) dump();
  }
  [[nodiscard]] std::uint64_t next_world() noexcept { return worlds_.fetch_add(1); }

 private:
  struct entry {
    std::atomic<std::uint64_t> number{0}, world{0}, what{0}, bytes{0}, begun{0}, ended{0};
    std::atomic<std::int64_t> count{0};
    std::atomic<std::int32_t> root{-1};
    std::atomic<state> how{state::started};
  };

  [[nodiscard]] entry& at(std::uint64_t number) noexcept { return entries_[number % entries_.size()]; }
  [[nodiscard]] std::uint64_t now() const noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - start_).count());
  }

  static void print(plain_line& line, entry const& each, std::uint64_t number) noexcept {
    std::uint8_t small[8];
    auto const packed = each.what.load();
    std::memcpy(small, &packed, sizeof small);
    auto const world = each.world.load();
    line << number << " world " << (world >> 32U) << " of " << (world & 0xffff'ffffU)
         << (world & 0xffff'ffffU ? " ranks: " : ": ") << name_of(static_cast<collective>(small[0]));
    auto const count = each.count.load();
    if (small[4] != 0 && static_cast<collective>(small[0]) != collective::exchange) {
      line << "(" << trireme::name_of(static_cast<dtype>(small[1]));
      if (small[3] != 0) line << ", ragged";
      if (small[3] == 0 || count > 0)
        line << ", " << static_cast<std::uint64_t>(count) << (count == 1 ? " element" : " elements");
      if (small[2] != 0) line << ", " << name_of(static_cast<reduction_kind>(small[2]));
      if (auto const root = each.root.load(); root >= 0) line << ", root " << static_cast<std::uint64_t>(root);
      line << ")";
    }
    line << ", " << each.bytes.load() << " bytes, from ";
    line.seconds(each.begun.load()) << " s";
    auto const how = each.how.load();
    if (how != state::started) line << " to ", line.seconds(each.ended.load()) << " s";
    line << (how == state::started ? ", started\n" : how == state::done ? ", done\n" : ", failed\n");
  }

  std::uint64_t const rank_, size_;
  std::string const path_;
  clock::time_point const start_ = clock::now();
  std::atomic<std::uint64_t> calls_{0}, worlds_{1};
  std::atomic<bool> dumped_{false};
  std::vector<entry> entries_;
};

/// A log, and the signal that dumps it.
struct flight_signal_place {
  std::atomic<flight_log*> log{nullptr};
  std::atomic<int> number{0};
};

/// Dumps a log on a signal as long as it lives. Our handler is installed while a signal has a log; afterwards the old
/// one is restored.
class flight_signal {
 public:
  flight_signal(int number, flight_log& log) : number_(number), log_(log) {
    std::lock_guard const lock(mutex);
    for (auto& place : places) {
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
    throw config_error(text("trireme::comm::recorded: more than ", places.size(),
                            " recorded ranks of one process have a .signal; record fewer worlds at a time"));
  }
  flight_signal(flight_signal const&) = delete;
  flight_signal& operator=(flight_signal const&) = delete;
  /// When it returns, no handler reads the log any longer.
  ~flight_signal() {
    std::lock_guard const lock(mutex);
    for (auto& place : places)
      if (place.log.load() == &log_) place.log.store(nullptr);
    while (reading.load() > 0) std::this_thread::yield();
    if (logs_of(number_) == 0) ::sigaction(number_, &before(number_), nullptr);
  }

 private:
  static constexpr int most_signals = 65;

  static void dump_all(int number) {
    auto const error = errno;
    reading.fetch_add(1);
    for (auto& each : places)
      if (auto* const log = each.log.load(); log != nullptr && each.number.load() == number) log->dump();
    reading.fetch_sub(1);
    errno = error;
  }
  [[nodiscard]] static int logs_of(int number) noexcept {
    int count = 0;
    for (auto& each : places) count += each.log.load() != nullptr && each.number.load() == number ? 1 : 0;
    return count;
  }
  [[nodiscard]] static struct sigaction& before(int number) noexcept {
    return old_actions[static_cast<std::size_t>(number)];
  }

  // Constant initialisation: a handler may read them at any time.
  static inline std::array<flight_signal_place, 256> places{};
  static inline std::atomic<int> reading{0};
  static inline std::mutex mutex;
  static inline std::array<struct sigaction, most_signals> old_actions{};

  int number_;
  flight_log& log_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_FLIGHT_LOG_INCLUDED

// ---- trireme/comm/recorded.hpp (goes on)
namespace trireme::comm {

template <communicator Inner>
class recorded_world;

/// Decorator: a flight recorder. Each rank keeps its last calls, and writes them to a file when a call fails.
///
/// `path`    each rank writes to path.<rank>, replacing it; to stderr if `path` is empty or the file cannot be opened.
/// `signal`  also write at this signal (SIGUSR1, say), as long as a recorded world lives; 0: no signal.
/// Errors   config_error if `last` is not positive, or the signal cannot be handled.
struct recorded {
  using is_decorator_description = void;
  template <class Inner>
  using world = recorded_world<Inner>;

  int last = 256;
  std::string path{};
  int signal = 0;

  friend bool operator==(recorded const&, recorded const&) = default;
};

[[nodiscard]] inline std::string to_string(recorded const& it) {
  return text("comm::recorded{.last = ", it.last, ", .path = \"", it.path, "\", .signal = ", it.signal, "}");
}

namespace detail {

struct flight_recorder {
  flight_recorder(recorded const& how, int rank, int size)
      : log(rank, size, static_cast<std::size_t>(checked(how).last), how.path) {
    if (how.signal != 0) on_signal.emplace(how.signal, log);
  }
  static recorded const& checked(recorded const& how) {
    if (how.last < 1)
      throw config_error(text("trireme::comm::recorded: .last is ", how.last, "; keep at least one call"));
    return how;
  }
  flight_log log;
  std::optional<flight_signal> on_signal;
};

/// A recorded call, from its start to its end.
class flight_entry {
 public:
  flight_entry() = default;
  flight_entry(std::shared_ptr<flight_recorder> recorder, std::uint64_t number) noexcept
      : recorder_(std::move(recorder)), number_(number) {}
  void done() noexcept { end(flight_log::state::done); }
  void failed() noexcept {
    if (recorder_ == nullptr) return;
    auto const keep = recorder_;
    end(flight_log::state::failed);
    keep->log.dump_once();
  }
  [[nodiscard]] bool open() const noexcept { return recorder_ != nullptr; }

 private:
  void end(flight_log::state how) noexcept {
    if (auto const recorder = std::exchange(recorder_, nullptr)) recorder->log.end(number_, how);
  }
  std::shared_ptr<flight_recorder> recorder_;
  std::uint64_t number_ = 0;
};

}  // namespace detail

/// A pending call of a recorded world. It counts as ended when test(), wait() or order() has returned so.
///
/// Threads  as the request below.   Errors  as the request below.
template <communication_request Inner>
class recorded_request {
 public:
  recorded_request() = default;
  recorded_request(Inner pending, detail::flight_entry entry) noexcept
      : pending_(std::move(pending)), entry_(std::move(entry)) {}
  recorded_request(recorded_request&&) = default;
  recorded_request& operator=(recorded_request&& other) noexcept {
    if (this != &other) {
      finish();
      pending_ = std::move(other.pending_);
      entry_ = std::move(other.entry_);
    }
    return *this;
  }
  ~recorded_request() { finish(); }

  [[nodiscard]] bool test() {
    try {
      if (!pending_.test()) return false;
    } catch (...) {
      entry_.failed();
      throw;
    }
    entry_.done();
    return true;
  }
  void wait() {
    finish_by([this] { pending_.wait(); });
  }
  void order() requires(has_order<Inner>) {
    finish_by([this] { pending_.order(); });
  }

 private:
  template <class F>
  void finish_by(F&& f) {
    try {
      f();
    } catch (...) {
      entry_.failed();
      throw;
    }
    entry_.done();
  }
  void finish() noexcept {
    if (!entry_.open()) return;
    try {
      trireme::order(*this);
    } catch (...) {  // recorded; every later call throws it again
    }
  }

  Inner pending_;
  detail::flight_entry entry_;
};

/// A world that records its last calls: one line a call, with its number, its world (1 is the decorated one; splits and
/// duplicates share its record), the collective, the bytes that it sends, its start and end, and whether it is started,
/// done or failed. Times are seconds since the record was begun.
///
///   trireme flight recorder: rank 1 of 2, the last 2 of 2 calls, at 1.093114 s
///   1 world 1 of 2 ranks: barrier, 0 bytes, from 0.000008 s to 0.000031 s, done
///   2 world 1 of 2 ranks: all_reduce(F32, 1024 elements, sum), 4096 bytes, from 0.000035 s to 1.093102 s, failed
///
/// If any call throws, also at the deadline of a hang, the record is dumped, once; the signal dumps it each time. The
/// signal handler calls only open, write and close.
///
/// Threads  one caller; the record may be dumped by any thread.
/// @models  communicator, and every capability that Inner has.
template <communicator Inner>
class recorded_world : public detail::decorator<recorded_world<Inner>, Inner> {
  using base = detail::decorator<recorded_world, Inner>;

 public:
  using request = recorded_request<typename base::request>;
  static constexpr std::string_view name = "recorded";

  explicit recorded_world(Inner inner, recorded const& how = {})
      : base(std::move(inner)),
        recorder_(std::make_shared<detail::flight_recorder>(how, this->rank(), this->size())),
        world_(recorder_->log.next_world()) {}
  recorded_world(Inner inner, recorded_world const& parent, detail::descent how, int /*color*/)
      : base(std::move(inner), parent, how), recorder_(parent.recorder_), world_(recorder_->log.next_world()) {}

  /// The record as text.
  [[nodiscard]] std::string dump() const {
    std::string out;
    recorder_->log.print([&](std::string_view line) { out += line; });
    return out;
  }
  void dump(std::FILE* file) const {
    recorder_->log.print([&](std::string_view line) { std::fwrite(line.data(), 1, line.size(), file); });
  }

  [[nodiscard]] request start(command const& it) {
    auto entry = begin(it);
    try {
      return {this->inner().submit(it), std::move(entry)};
    } catch (...) {
      entry.failed();
      throw;
    }
  }
  template <class F>
  auto around(command const& it, F&& f) {
    auto entry = begin(it);
    try {
      if constexpr (std::is_void_v<decltype(f())>) {
        f();
        entry.done();
      } else {
        auto result = f();
        entry.done();
        return result;
      }
    } catch (...) {
      entry.failed();
      throw;
    }
  }

 private:
  [[nodiscard]] detail::flight_entry begin(command const& it) noexcept {
    return {recorder_, recorder_->log.begin(it, world_, static_cast<std::uint64_t>(this->size()))};
  }

  std::shared_ptr<detail::flight_recorder> recorder_;
  std::uint64_t world_;
};

}  // namespace trireme::comm
