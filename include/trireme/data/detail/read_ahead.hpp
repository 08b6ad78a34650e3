#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <forward_list>
#include <functional>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/arithmetic.hpp"
#include "trireme/core/cores.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/data/read_problem.hpp"

namespace trireme::data::detail {

/// The reading threads that are quick for a source: one, or where a sample is expensive to read this rank's share of
/// the cores.
/// @param ranks  that share this process's cores.
[[nodiscard]] inline std::int64_t usual_workers(bool slow_to_read, int ranks) {
  return slow_to_read ? std::clamp<std::int64_t>(usable_cores() / std::max(ranks, 1), 1, 16) : 1;
}

/// Whether an error's sentence says "sample 7".
[[nodiscard]] inline bool names_a_sample(std::string_view what) noexcept {
  constexpr std::string_view word = "sample ";
  for (auto at = what.find(word); at != what.npos; at = what.find(word, at + 1)) {
    auto const next = at + word.size();
    if (next < what.size() && what[next] >= '0' && what[next] <= '9') return true;
  }
  return false;
}

/// Whether an exception is not of one sample, and always ends the reading.
[[nodiscard]] inline bool is_fatal(std::exception_ptr const& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (std::bad_alloc const&) {
    return true;
  } catch (config_error const&) {
    return true;
  } catch (comm_error const&) {
    return true;
  } catch (std::exception const&) {
    return false;
  } catch (...) {
    return true;
  }
}
/// Of a fatal one of an unknown type "an exception of an unknown type".
[[nodiscard]] inline std::string what_of(std::exception_ptr const& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (std::exception const& known) {
    return known.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

/// An exception that is not fatal, with the number of the sample whose reading it ended.
[[nodiscard]] inline std::exception_ptr named(char const* who, std::int64_t id, std::exception_ptr const& failure) {
  auto const what = what_of(failure);
  if (names_a_sample(what)) return failure;
  auto const sentence = [&](std::size_t skipped) {
    return text("sample ", id, " cannot be read: ", std::string_view(what).substr(std::min(skipped, what.size())));
  };
  try {
    std::rethrow_exception(failure);
  } catch (io_error const& problem) {
    return std::make_exception_ptr(io_error(problem.path(), sentence(problem.path().size() + 2), problem.number()));
  } catch (format_error const& problem) {
    auto const before = text(problem.path(), ": byte ", problem.offset(), ": ").size();
    return std::make_exception_ptr(format_error(problem.path(), problem.offset(), sentence(before)));
  } catch (...) {  // its handler is what sample_error nests
    return std::make_exception_ptr(sample_error(text(who, ": ", sentence(0)), id));
  }
}

/// Reads a sequence of batches ahead of its caller, with several threads, into slots that are used in turn. Batches
/// are cut into chunks, which the threads take in order; so all of them work on the next batch, and the sequence, its
/// bytes and its first error are the same for any number of threads.
///
/// A derived class says what the batches are, and calls stop() in its destructor.
///
/// Threads  one caller; functions of the derived class: start() by one thread at a time, id() and read() by several.
class read_ahead {
 public:
  read_ahead(read_ahead const&) = delete;
  read_ahead& operator=(read_ahead const&) = delete;

 protected:
  struct settings {
    char const* who;  // in errors
    std::size_t batches = 1;
    std::int64_t workers = 1;  // 0: the caller reads
    std::int64_t bad_samples = 0;
    bool one_by_one = false;  // a chunk is one sample, else a worker's share of the batch
  };
  explicit read_ahead(settings const& how)
      : how_(how),
        slots_(how.batches),
        readings_(static_cast<std::size_t>(std::clamp<std::int64_t>(how.workers, 0, 1024))) {}
  virtual ~read_ahead() = default;

  /// Prepares a slot for the next batch. @returns its samples on this rank; -1: there are no more batches.
  virtual std::int64_t start(std::size_t slot) = 0;
  /// The number of sample `index` of a slot's batch; `attempt` > 0: of another sample in its place.
  virtual std::int64_t id(std::size_t slot, std::int64_t index, std::int64_t attempt) = 0;
  [[nodiscard]] virtual std::span<std::int64_t> ids(std::size_t slot) = 0;
  /// Reads some samples of a slot, by the numbers in ids().
  virtual void read(std::size_t slot, std::int64_t first, std::int64_t count) = 0;

  [[nodiscard]] bool has_threads() const noexcept { return how_.workers > 0; }
  [[nodiscard]] std::size_t slot_count() const noexcept { return slots_.size(); }

  /// The slot with the next batch, which is the caller's until the next call; slots.size() if there are no more.
  std::size_t take() {
    start_threads();
    std::unique_lock lock(mutex_);
    mode_ = arithmetic_mode::of_this_thread();
    in_use_ = false;
    if (std::exchange(tries_again_, false)) halted_ = false;
    wake_threads(lock);
    if (!is_ready()) wait(lock);
    if (read_ == taken_ && ended_ && begun_ == taken_) return slots_.size();
    auto const slot = taken_ % slots_.size();
    if (auto const failure = settle(slot); failure != nullptr) {
      reset(lock);
      tries_again_ = true;
      lock.unlock();
      std::rethrow_exception(failure);
    }
    ++taken_;
    in_use_ = true;
    lock.unlock();
    tell_left_out();
    return slot;
  }

  /// The slot that take() would return at once and without an error; else slots.size().
  [[nodiscard]] std::size_t peek() {
    std::lock_guard const lock(mutex_);
    auto const slot = taken_ % slots_.size();
    return read_ > taken_ && slots_[slot].troubles.empty() ? slot : slots_.size();
  }

  /// Forgets all batches that were read ahead; then calls `change`, and goes on. No thread reads meanwhile.
  template <class Change>
  void restart(Change const& change) {
    std::unique_lock lock(mutex_);
    reset(lock);
    change();
    ended_ = halted_ = tries_again_ = false;
    room_.notify_all();
  }

  /// Ends the threads.
  void stop() noexcept {
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (auto& each : threads_) each.join();
    threads_.clear();
  }

  /// Calls f in this class's caller's thread, in take(), when a sample is left out or slow.
  void on_problem(std::function<void(read_problem const&)> f) { call_ = std::move(f); }
  [[nodiscard]] std::vector<read_problem> const& left_out() const noexcept { return left_out_; }
  [[nodiscard]] double waited() const noexcept { return waited_; }
  [[nodiscard]] read_problem slowest() {
    std::lock_guard const lock(mutex_);
    return slowest_;
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::int64_t most_attempts = 64;
  static constexpr std::chrono::seconds patience{10};

  /// An exception of reading, at a place of a batch.
  struct trouble {
    std::int64_t index;
    std::int64_t id;
    bool ends;  // whether the batch could not be read; else another sample is in the place
    std::exception_ptr what;
  };
  struct slot_state {
    std::int64_t count = 0, given = 0, done = 0;  // samples
    std::vector<trouble> troubles{};
    bool failed = false;
  };
  struct reading {
    bool active = false;
    std::size_t slot = 0;
    std::int64_t first = 0, count = 0;
    clock::time_point since{};
  };

  static double seconds_since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  }

  void start_threads() {
    if (!threads_.empty()) return;
    for (auto& each : readings_) {
      try {
        threads_.emplace_front([this, &each] { work(each); });
      } catch (...) {
        if (threads_.empty()) throw;
        break;  // fewer threads read the same
      }
    }
  }

  [[nodiscard]] bool is_ready() const {
    if (read_ > taken_) return true;
    if (begun_ == taken_) return ended_;
    auto const& next = slots_[taken_ % slots_.size()];
    return next.failed && busy_ == 0;
  }

  // While the caller waits, it says which sample it waits for.
  void wait(std::unique_lock<std::mutex>& lock) {
    auto const begin = clock::now();
    while (!has_threads() && !is_ready()) read_some(lock, nullptr);
    auto limit = patience;
    while (true) {
      waits_ = true;
      bool const ready = filled_.wait_for(lock, limit, [this] { return is_ready(); });
      waits_ = false;
      if (ready) break;
      limit = 2 * limit;
      reading const* oldest = nullptr;
      for (auto const& each : readings_) {
        if (each.active && (oldest == nullptr || each.since < oldest->since)) oldest = &each;
      }
      if (call_ == nullptr || oldest == nullptr) continue;
      auto const at = *oldest;
      lock.unlock();
      call_({.sample = id(at.slot, at.first, 0), .samples = at.count, .seconds = seconds_since(at.since)});
      lock.lock();
    }
    waited_ += seconds_since(begin);
  }

  // Waits until no thread reads, and forgets what was read; threads stay halted.
  void reset(std::unique_lock<std::mutex>& lock) {
    halted_ = resets_ = true;
    filled_.wait(lock, [this] { return busy_ == 0; });
    resets_ = false;
    take_back();
    reset_slots();
    ended_ = false;
  }
  void reset_slots() {
    begun_ = read_ = taken_ = 0;
    in_use_ = false;
    for (auto& each : slots_) {
      each.count = each.given = each.done = 0;
      each.failed = false;
      each.troubles.clear();
    }
  }

  // What a batch's troubles amount to, in the order of its samples: the exception that one thread would have met.
  std::exception_ptr settle(std::size_t slot) {
    auto& troubles = slots_[slot].troubles;
    if (troubles.empty()) return nullptr;
    // By hand: there are few of them, and they come nearly sorted.
    for (std::size_t end = 1; end < troubles.size(); ++end) {
      for (auto i = end; i > 0 && troubles[i].index < troubles[i - 1].index; --i)
        std::swap(troubles[i], troubles[i - 1]);
    }
    auto const before = left_out_.size();
    for (auto const& each : troubles) {
      bool const counts = each.id >= 0;
      bool const known = std::any_of(left_out_.begin(), left_out_.end(),
                                     [&](read_problem const& one) { return one.sample == each.id; });
      bool const too_many = counts && !known && static_cast<std::int64_t>(left_out_.size()) >= how_.bad_samples;
      if (each.ends || too_many) {
        while (left_out_.size() > before) left_out_.pop_back();
        return too_many && how_.bad_samples > 0 ? too_many_bad(each) : each.what;
      }
      if (!known) left_out_.push_back({.sample = each.id, .seconds = 0, .reason = what_of(each.what)});
    }
    return nullptr;
  }
  [[nodiscard]] std::exception_ptr too_many_bad(trouble const& last) const {
    auto const sentence =
        text(how_.who, ": ", how_many(how_.bad_samples, "sample"), agreeing(how_.bad_samples, " has", " have"),
             " been left out, as many as .bad_samples permits, and another cannot be read: ", what_of(last.what));
    try {
      std::rethrow_exception(last.what);
    } catch (...) {
      return std::make_exception_ptr(sample_error(sentence, last.id));
    }
  }
  void tell_left_out() {
    for (; told_ < left_out_.size(); ++told_) {
      if (call_ != nullptr) call_(left_out_[told_]);
    }
  }

  // Reads a part of a slot's batch; what happens is added to `found`.
  void read_chunk(std::size_t slot, std::int64_t first, std::int64_t count, std::vector<trouble>& found) {
    std::exception_ptr whole;
    try {
      auto const numbers = ids(slot);
      for (auto i = first; i < first + count; ++i) numbers[static_cast<std::size_t>(i)] = id(slot, i, 0);
      return read(slot, first, count);
    } catch (...) {
      whole = std::current_exception();
    }
    if (is_fatal(whole) || (how_.bad_samples == 0 && names_a_sample(what_of(whole))))
      return found.push_back({first, -1, true, whole});
    // Which sample is it?
    std::int64_t bad = 0;
    for (auto i = first; i < first + count; ++i) {
      for (std::int64_t attempt = 0;; ++attempt) {
        auto number = std::int64_t{-1};
        auto const failure = read_one(slot, i, attempt, number, count == 1 && attempt == 0 ? whole : nullptr);
        if (failure == nullptr) break;
        bool const fatal = is_fatal(failure);
        bool const ends = fatal || ++bad > how_.bad_samples || attempt == most_attempts;
        found.push_back({i, fatal ? -1 : number, ends, failure});
        if (ends) return;
      }
    }
    if (bad == 0 && how_.bad_samples == 0) found.push_back({first, -1, true, whole});  // none of them alone
  }
  // @param known  the exception of the same reading.
  std::exception_ptr read_one(std::size_t slot, std::int64_t index, std::int64_t attempt, std::int64_t& number,
                              std::exception_ptr const& known) {
    try {
      number = ids(slot)[static_cast<std::size_t>(index)] = id(slot, index, attempt);
      if (known != nullptr) return named(how_.who, number, known);
      read(slot, index, 1);
      return nullptr;
    } catch (...) {
      auto const failure = std::current_exception();
      return number < 0 || is_fatal(failure) ? failure : named(how_.who, number, failure);
    }
  }
  [[nodiscard]] bool has_chunk() const {
    if (begun_ == 0) return false;
    auto const& last = slots_[(begun_ - 1) % slots_.size()];
    return last.given < last.count;
  }
  [[nodiscard]] bool has_room() const { return !ended_ && begun_ + (in_use_ ? 1 : 0) < taken_ + slots_.size(); }

  void begin_batch(std::unique_lock<std::mutex>& lock) {
    auto const slot = begun_ % slots_.size();
    auto const count = start(slot);
    if (count < 0) {
      ended_ = true;
      return tell_caller(lock);
    }
    auto& state = slots_[slot];
    state.count = count;
    state.given = state.done = 0;
    state.failed = false;
    state.troubles.clear();
    ++begun_;
    complete(lock);
    if (how_.workers > 1) wake_threads(lock);
  }
  void complete(std::unique_lock<std::mutex>& lock) {
    for (; read_ < begun_; ++read_) {
      auto const& next = slots_[read_ % slots_.size()];
      if (next.failed || next.done < next.count) break;
    }
    tell_caller(lock);
  }
  [[nodiscard]] bool has_work() const { return !halted_ && (has_chunk() || has_room()); }

  // Threads are woken only if they wait and have something to do, and while the mutex is free: else they would wake to
  // wait for it.
  void tell_caller(std::unique_lock<std::mutex>& lock) {
    if (!(waits_ && is_ready()) && !(resets_ && busy_ == 0)) return;
    lock.unlock();
    filled_.notify_one();
    lock.lock();
  }
  void wake_threads(std::unique_lock<std::mutex>& lock) {
    if (sleeping_ == 0 || !has_work()) return;
    lock.unlock();
    room_.notify_all();
    lock.lock();
  }

  void work(reading& now) {
    std::unique_lock lock(mutex_);
    while (true) {
      ++sleeping_;
      room_.wait(lock, [this] { return stopping_ || has_work(); });
      --sleeping_;
      if (stopping_) return;
      read_some(lock, &now);
    }
  }
  // Begins a batch or reads a chunk. @param now  where a thread says what it reads.
  void read_some(std::unique_lock<std::mutex>& lock, reading* now) {
    if (!has_chunk()) return begin_batch(lock);
    auto const slot = (begun_ - 1) % slots_.size();
    auto& state = slots_[slot];
    auto const first = state.given;
    auto const workers = std::max<std::int64_t>(how_.workers, 1);
    auto const share = how_.one_by_one ? 1 : (state.count + workers - 1) / workers;
    auto const count = std::min(share, state.count - first);
    state.given += count;
    ++busy_;
    auto const mode = mode_;
    auto const since = clock::now();
    if (now != nullptr) *now = {true, slot, first, count, since};
    lock.unlock();
    mode.use();
    std::vector<trouble> found;
    read_chunk(slot, first, count, found);
    auto const seconds = seconds_since(since);
    lock.lock();
    --busy_;
    if (now != nullptr) now->active = false;
    if (seconds > slowest_.seconds) {
      slowest_.sample = ids(slot)[static_cast<std::size_t>(first)];
      slowest_.samples = count;
      slowest_.seconds = seconds;
    }
    state.done += count;
    for (auto& each : found) {
      if (each.ends) state.failed = halted_ = true;
      state.troubles.push_back(std::move(each));
    }
    complete(lock);
  }

 protected:
  /// After a failure of a batch: the next start() is of that batch again.
  virtual void take_back() = 0;

 private:
  settings how_;
  std::function<void(read_problem const&)> call_;
  std::vector<read_problem> left_out_;
  std::size_t told_ = 0;
  double waited_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable room_, filled_;
  std::vector<slot_state> slots_;  // of batch i: slot i % slots, the threads' until read_ > i, then the caller's
  std::vector<reading> readings_;  // of each thread
  read_problem slowest_;
  std::size_t begun_ = 0, read_ = 0, taken_ = 0;
  std::int64_t busy_ = 0;     // threads that read now
  bool in_use_ = false;       // whether the caller still uses batch taken_ - 1
  bool ended_ = false;        // no batch follows
  bool halted_ = false;       // by a failure, until the caller tries again
  bool tries_again_ = false;  // the failure has been thrown
  bool stopping_ = false;
  bool waits_ = false, resets_ = false;                       // the caller: until it is_ready(), until no thread reads
  std::int64_t sleeping_ = 0;                                 // threads without work
  arithmetic_mode mode_ = arithmetic_mode::of_this_thread();  // of the caller: read() uses the same rounding modes
  std::forward_list<std::thread> threads_;
};

}  // namespace trireme::data::detail
