#pragma once

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/detail/colors.hpp"
#include "trireme/comm/node/progress.hpp"
#include "trireme/core/address.hpp"
#include "trireme/core/arithmetic.hpp"

namespace trireme::comm::detail {

/// Runs the operations of one rank. The caller runs them while it waits or tests. A rank that is a process also has a
/// helper thread, which starts with the first asynchronous operation and sleeps while nothing is pending.
class node_driver {
 public:
  explicit node_driver(std::shared_ptr<node_launch> launch) : launch_(std::move(launch)) {}
  node_driver(node_driver const&) = delete;
  node_driver& operator=(node_driver const&) = delete;
  ~node_driver() {
    if (!helper_.joinable()) return;
    {
      turn const mine(*this);
      over_ = true;
    }
    work_.notify_all();
    launch_->ring(launch_->mine());
    helper_.join();
  }

  [[nodiscard]] std::shared_ptr<node_launch> const& launch() const noexcept { return launch_; }

  /// Runs a command in the calling thread; `op` is reused for every blocking call.
  void run(node_operation& op, node_group& where, command const& it) {
    turn mine(*this);
    expect_unfailed(it.what.kind);
    prepare(op, where, it);
    op.checks_eager = !op.eager;
    drive(op, mine);
  }
  /// Starts the helper: from now on every call takes the lock. A rank that is a thread has no helper.
  void expect_others() {
    if (!launch_->backend->one_process && !helper_.joinable()) helper_ = std::thread([this] { help(); });
  }
  [[nodiscard]] node_operation& start(node_group& where, command const& it) {
    expect_others();
    turn const mine(*this);
    expect_unfailed(it.what.kind);
    mode_ = arithmetic_mode::of_this_thread();
    if (unused_ == nullptr) {
      owned_.push_back(std::make_unique<node_operation>());
      unused_ = owned_.back().get();
    }
    prepare(*unused_, where, it);
    auto& op = *unused_;
    unused_ = op.next;
    op.previous = newest_;
    op.next = nullptr;
    (newest_ == nullptr ? pending_ : newest_->next) = &op;
    newest_ = &op;
    if (op.now() == node_operation::stage::posting)
      static_cast<void>(post(op));
    else if (!helper_.joinable())
      static_cast<void>(exchange_step(op));
    if (idle_)
      work_.notify_all();
    else if (helper_.joinable())
      launch_->ring(launch_->mine());  // it may sleep, waiting for others
    return op;
  }
  [[nodiscard]] bool test(node_operation& op) {
    if (op.finished()) return true;
    if (std::unique_lock lock(mutex_, std::defer_lock); !helper_.joinable() || lock.try_lock()) {
      advance(op);
      if (op.polls % 4 == 0) advance_pending();  // not each time: a test takes only a few nanoseconds
      if (++op.polls % 16 == 0) {  // a caller that yields between tests may wait for milliseconds each time
        if (op.since == clock::time_point{}) op.since = clock::now();
        check_patience(op, op.since);
      }
    }
    if (op.finished()) return true;
    if (launch_->failed()) throw_failure(op);
    return false;
  }
  void poll() {
    if (std::unique_lock lock(mutex_, std::defer_lock); !helper_.joinable() || lock.try_lock()) advance_pending();
    if (launch_->failed()) detail::throw_failure(*launch_, collective::barrier);
  }
  void wait(node_operation& op) {
    if (op.finished()) return;
    turn mine(*this);
    drive(op, mine);
  }
  void release(node_operation& op) noexcept {
    turn const mine(*this);
    op.become(node_operation::stage::finished);
    (op.previous == nullptr ? pending_ : op.previous->next) = op.next;
    (op.next == nullptr ? newest_ : op.next->previous) = op.previous;
    op.next = unused_;
    unused_ = &op;
  }

 private:
  /// Holds the driver's lock, if there is a helper. Other holders release it after at most one step of each operation.
  class turn {
   public:
    explicit turn(node_driver& driver) : driver_(driver), shared_(driver.helper_.joinable()) { take(); }
    turn(turn const&) = delete;
    turn& operator=(turn const&) = delete;
    ~turn() { give(); }

    void take() {
      if (!shared_) return;
      driver_.wanted_.fetch_add(1);
      driver_.mutex_.lock();
      driver_.wanted_.fetch_sub(1);
    }
    void give() noexcept {
      if (shared_) driver_.mutex_.unlock();
    }
    /// Lets waiting callers take the lock.
    void pass() {
      if (!shared_ || driver_.wanted_.load(std::memory_order_relaxed) == 0) return;
      give();
      std::this_thread::yield();
      take();
    }

   private:
    node_driver& driver_;
    bool const shared_;
  };

  void expect_unfailed(collective kind) const {
    if (launch_->failed()) detail::throw_failure(*launch_, kind);
  }
  [[noreturn]] void throw_failure(node_operation const& op) const { detail::throw_failure(*launch_, op.what().kind); }

  bool advance_pending() {
    bool moved = false;
    for (auto* each = pending_; each != nullptr; each = each->next)
      if (!each->finished()) moved = advance(*each) != node_outcome::stuck || moved;
    return moved;
  }
  [[nodiscard]] bool is_busy() const noexcept {
    for (auto* each = pending_; each != nullptr; each = each->next)
      if (!each->finished()) return true;
    return false;
  }

  /// Spins, then yields, then sleeps until the operation is finished.
  void drive(node_operation& op, turn& mine) {
    for (int spin = 0; spin < launch_->spins; mine.pass()) {
      auto const outcome = advance(op);
      if (outcome == node_outcome::finished) return;
      if (outcome == node_outcome::moved || (pending_ != nullptr && advance_pending())) {
        spin = 0;
        continue;
      }
      ++spin;
      pause_core();
    }
    auto const since = clock::now();
    auto quiet = since;   // start of the time without progress
    auto looked = since;  // last check of the others' state
    auto const step = [&] {
      auto const outcome = advance(op);
      return outcome == node_outcome::finished || advance_pending() || outcome == node_outcome::moved;
    };
    for (; !op.finished(); mine.pass()) {
      bool const moved = step();
      if (op.finished()) return;
      if (launch_->failed()) throw_failure(op);
      if (moved) {
        quiet = {};
        continue;
      }
      // By time and not by the number of yields: if other programs use the cores, one yield takes milliseconds.
      auto const now = clock::now();
      if (quiet == clock::time_point{}) quiet = now;
      if (now - looked <= launch_->patience) {
        std::this_thread::yield();
        continue;
      }
      looked = now;
      if (now - quiet > launch_->patience) {
        auto const left = op.where->deadline - (now - since);
        auto const longest = std::chrono::milliseconds(20);
        mine.give();
        launch_->sleep(std::clamp<std::chrono::nanoseconds>(left, std::chrono::microseconds(100), longest), [&] {
          mine.take();
          bool const ready = step() || launch_->failed();
          mine.give();
          return ready;
        });
        mine.take();
      }
      if (op.where->decided + 1 < op.number)  // earlier calls delay it
        for (auto* each = pending_; each != nullptr; each = each->next)
          if (each->where == op.where && each->number != 0 && each->number < op.number) check_patience(*each, since);
      check_patience(op, since);
    }
  }

  void help() {
    std::unique_lock lock(mutex_);
    int stuck = 0;
    while (!over_) {
      if (launch_->failed() || !is_busy()) {
        idle_ = true;
        work_.wait(lock, [this] { return over_ || (is_busy() && !launch_->failed()); });
        idle_ = false;
        stuck = 0;
        continue;
      }
      mode_.use();
      stuck = advance_pending() ? 0 : stuck + 1;
      if (stuck > 0 && stuck % 64 == 0)
        for (auto* each = pending_; each != nullptr; each = each->next) check_patience(*each, {});
      lock.unlock();
      if (wanted_.load() != 0) std::this_thread::yield();
      if (stuck > launch_->spins / 4 + 20) {
        launch_->sleep(std::chrono::milliseconds(20), [&] {
          lock.lock();
          mode_.use();
          bool const ready = over_ || launch_->failed() || advance_pending();
          lock.unlock();
          return ready;
        });
        stuck = 63;
      } else if (stuck > launch_->spins / 4) {
        std::this_thread::yield();
      } else if (stuck > 0) {
        pause_core();
      }
      lock.lock();
    }
  }

  std::shared_ptr<node_launch> const launch_;
  std::mutex mutex_;  ///< protects everything below, once there is a helper
  std::condition_variable work_;
  std::atomic<int> wanted_{0};  ///< callers that wait for their turn
  bool over_ = false;
  bool idle_ = false;
  arithmetic_mode mode_ = arithmetic_mode::of_this_thread();  ///< of the rank: the helper uses it for its sums
  node_operation* pending_ = nullptr;                         ///< asynchronous operations, oldest first
  node_operation* newest_ = nullptr;
  node_operation* unused_ = nullptr;
  std::vector<std::unique_ptr<node_operation>> owned_;
  std::thread helper_;
};

/// The engine of ranks that are threads, or processes on one machine.
class node_engine final : public collective_engine {
 public:
  /// `boards` are the boards of all members, each in the memory of its rank.
  node_engine(std::shared_ptr<node_driver> driver, std::vector<int> members, int rank,
              std::chrono::milliseconds deadline, std::vector<node_board*> boards)
      : driver_(std::move(driver)) {
    group_.launch = driver_->launch();
    group_.members = std::move(members);
    group_.rank = rank;
    group_.deadline = deadline;
    group_.boards = std::move(boards);
    for (int const member : group_.members) group_.headers.push_back(&group_.launch->header(member));
    group_.pairs.resize(group_.members.size());
  }
  ~node_engine() override {
    try {
      static_cast<void>(check_eager(group_));
    } catch (...) {  // no memory for the message: the others detect the difference themselves, or at their deadlines
    }
    group_.mine().left.store(1);
    group_.ring();
    try {
      group_.launch->leave(group_.boards, group_.mine());
    } catch (...) {  // no memory for the entry: the board stays until the launch ends
    }
  }

  [[nodiscard]] std::string_view who() const noexcept override { return group_.launch->who; }
  [[nodiscard]] int rank() const noexcept override { return group_.rank; }
  [[nodiscard]] int size() const noexcept override { return group_.size(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept override { return group_.deadline; }

  void run(command const& it) override { driver_->run(blocking_, group_, it); }
  [[nodiscard]] collective_operation& start(command const& it) override { return driver_->start(group_, it); }
  [[nodiscard]] bool test(collective_operation& op) override { return driver_->test(static_cast<node_operation&>(op)); }
  void wait(collective_operation& op) override { driver_->wait(static_cast<node_operation&>(op)); }
  void poll() override { driver_->poll(); }
  void release(collective_operation& op) noexcept override { driver_->release(static_cast<node_operation&>(op)); }

  [[nodiscard]] std::shared_ptr<collective_engine> split(int color, int key) override {
    auto const wishes = collect(collective::split, color_and_key{color, key});
    return make_group(collective::split, ranks_of_color(wishes, color), group_.deadline);
  }
  [[nodiscard]] std::shared_ptr<collective_engine> duplicate(std::chrono::milliseconds deadline) override {
    std::vector<int> all(static_cast<std::size_t>(size()));
    for (int each = 0; each < size(); ++each) all[static_cast<std::size_t>(each)] = each;
    return make_group(collective::duplicate, all, deadline);
  }

  void expect_several_callers() override { driver_->expect_others(); }
  void abandon(std::string const& sentence) noexcept override {
    try {
      group_.launch->fail(text(group_.launch->who, ": rank ", group_.launch->rank, " ended with an error: ", sentence));
    } catch (...) {  // no memory for the message: a shorter one
      group_.launch->fail("trireme::comm: a rank ended with an error");
    }
  }

  [[nodiscard]] bool failed() const noexcept override { return group_.launch->failed(); }
  [[nodiscard]] bool reports() noexcept override { return group_.launch->reports(); }

  [[nodiscard]] std::vector<int> survivors() override { return group_.launch->survivors(group_.deadline); }

  [[nodiscard]] void* allocate(std::size_t bytes) override { return group_.launch->backend->allocate(bytes); }
  void deallocate(void* block, std::size_t bytes) noexcept override {
    group_.launch->backend->deallocate(block, bytes);
  }

 private:
  /// The values that all ranks passed, in rank order.
  template <class X>
  [[nodiscard]] std::vector<X> collect(collective kind, X const& mine) {
    std::vector<X> all(group_.members.size());
    command it;
    it.what.kind = kind;
    it.what.count = sizeof(X);
    it.from = &mine;
    it.to = all.data();
    run(it);
    return all;
  }
  /// Collective. `chosen` are the ranks of this group that form the new one, including this rank.
  [[nodiscard]] std::shared_ptr<collective_engine> make_group(collective kind, std::vector<int> const& chosen,
                                                              std::chrono::milliseconds deadline) {
    auto const count = static_cast<int>(chosen.size());
    auto* const own = group_.launch->make_board(count);
    auto const places = collect(kind, own == nullptr ? std::uint64_t{0} : group_.launch->offset(own));
    if (std::find(places.begin(), places.end(), std::uint64_t{0}) != places.end()) {
      if (own != nullptr) group_.launch->backend->deallocate(own, group_.launch->board_bytes(count));
      throw comm_error(text(group_.launch->who, ": ", name_of(kind),
                            " has no shared memory left for another group; free tensors from allocate, or groups"),
                       {group_.launch->rank, std::string(name_of(kind))});
    }
    std::vector<int> members;
    std::vector<node_board*> boards;
    for (int const each : chosen) {
      members.push_back(group_.world_rank(each));
      boards.push_back(std::launder(elements_at<node_board>(group_.at(each, places[static_cast<std::size_t>(each)]))));
    }
    auto const place = static_cast<int>(std::find(chosen.begin(), chosen.end(), group_.rank) - chosen.begin());
    return std::make_shared<node_engine>(driver_, std::move(members), place, deadline, std::move(boards));
  }

  std::shared_ptr<node_driver> driver_;
  node_group group_;
  node_operation blocking_;
};

}  // namespace trireme::comm::detail
