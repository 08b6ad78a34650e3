#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/comm/decorate.hpp"
#include "trireme/comm/detail/flight_log.hpp"

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
