#pragma once

#include <exception>
#include <thread>
#include <utility>

#include "trireme/comm/detail/advance.hpp"

namespace trireme::comm::detail {

/// An operation from the rank's store, appended to its pending ones. Allocates only while more are in flight than ever.
[[nodiscard]] inline operation& enlist(rank_state& mine) {
  if (mine.unused == nullptr) {
    mine.owned.push_back(std::make_unique<operation>());
    mine.unused = mine.owned.back().get();
  }
  auto& op = *mine.unused;
  mine.unused = op.next;
  op.reset();
  op.previous = mine.newest;
  (mine.newest == nullptr ? mine.pending : mine.newest->next) = &op;
  mine.newest = &op;
  return op;
}

inline void dismiss(rank_state& mine, operation& op) noexcept {
  (op.previous == nullptr ? mine.pending : op.previous->next) = op.next;
  (op.next == nullptr ? mine.newest : op.next->previous) = op.previous;
  op.next = mine.unused;
  mine.unused = &op;
}

}  // namespace trireme::comm::detail

namespace trireme::comm {

/// A pending collective of comm::threads.
///
/// Ranks  local. Progress is made in `test()` and `wait()`, and in any blocking collective of the same rank.
/// Threads  the rank that started it.
/// Errors   comm_error as threads_world. The destructor waits and swallows it; while an exception is on its way
///          it waits for a tenth of the deadline, and then ends the launch.
class threads_request {
 public:
  threads_request() = default;
  explicit threads_request(detail::operation& op) noexcept : op_(&op) {}
  threads_request(threads_request&& other) noexcept : op_(std::exchange(other.op_, nullptr)) {}
  threads_request& operator=(threads_request&& other) noexcept {
    if (this != &other) {
      finish();
      op_ = std::exchange(other.op_, nullptr);
    }
    return *this;
  }
  ~threads_request() { finish(); }

  /// Makes what progress is possible without waiting; true once the collective is done.
  [[nodiscard]] bool test() {
    if (op_ == nullptr) return true;
    releaser const guard{*this};
    if (detail::advance(*op_)) return true;
    // Now and then, because a test is otherwise a few nanoseconds: what else this rank has in flight, and the clock.
    if (op_->polls % 4 == 0) detail::advance_pending(op_->mine());
    if (++op_->polls % 256 == 0) {
      if (op_->since == detail::clock::time_point{}) op_->since = detail::clock::now();
      detail::check_patience(*op_, op_->since);
    }
    if (op_->crew().failed()) {
      op_->at = detail::operation::stage::finished;
      detail::throw_failure(*op_);
    }
    return false;
  }
  void wait() {
    if (op_ == nullptr) return;
    releaser const guard{*this};
    try {
      detail::wait_for(*op_);
    } catch (...) {
      op_->at = detail::operation::stage::finished;
      throw;
    }
  }

 private:
  /// Gives the operation back if it is finished, whether it succeeded or not.
  struct releaser {
    threads_request& request;
    ~releaser() {
      if (request.op_->at == detail::operation::stage::finished) request.release();
    }
  };
  void release() noexcept {
    auto const keep = std::move(op_->keep);  // what it belongs to may have ended, and end with it
    detail::dismiss(op_->mine(), *op_);
    op_ = nullptr;
  }
  void finish() noexcept {
    try {
      if (op_ != nullptr && std::uncaught_exceptions() > 0) expect_soon();
      wait();
    } catch (...) {  // the error has ended the whole launch, which reports it
    }
  }
  /// An exception is on its way out of this rank, and is told to the others when it has left the launch. They may wait
  /// for this rank by then and never take their part in what is pending here, so they are not waited for that long.
  void expect_soon() {
    auto const self = op_->world_rank(op_->rank);
    auto const patience = op_->where->deadline / 10;
    auto const end = detail::clock::now() + patience;
    while (!test()) {
      if (detail::clock::now() > end)
        return op_->crew().fail(self, text("trireme::comm::threads: rank ", self,
                                           " ended with an error: an exception left a call pending, in which others "
                                           "took no part for another ",
                                           to_string(patience)));
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  detail::operation* op_ = nullptr;
};

}  // namespace trireme::comm
