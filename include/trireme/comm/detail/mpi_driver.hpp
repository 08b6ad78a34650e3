#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/detail/mpi_operation.hpp"
#include "trireme/comm/detail/waiting.hpp"

namespace trireme::comm::detail {

/// Carries out the commands of this process. Only who holds its lock calls MPI, which is what MPI_THREAD_SERIALIZED
/// asks for: a rank that waits drives all of them itself (no hand-over between threads), and otherwise, while some are
/// in flight, one thread does. With none in flight that thread sleeps and makes no MPI calls.
class mpi_driver {
 public:
  mpi_driver(mpi_driver const&) = delete;
  mpi_driver& operator=(mpi_driver const&) = delete;
  ~mpi_driver() {
    {
      std::lock_guard const lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    if (helper_.joinable()) helper_.join();
  }

  /// The one of this process, which lives as long as somebody holds it.
  static std::shared_ptr<mpi_driver> shared() {
    static std::mutex guard;
    static std::weak_ptr<mpi_driver> known;
    std::lock_guard const lock(guard);
    auto driver = known.lock();
    if (driver == nullptr) known = driver = std::shared_ptr<mpi_driver>(new mpi_driver);
    return driver;
  }

  /// Calls `use()` while no one else is inside MPI.
  template <class Use>
  decltype(auto) alone(Use&& use) {
    std::lock_guard const lock(mutex_);
    return use();
  }

  /// A group that failures are announced to and heard from.
  void add(mpi_group& group) {
    std::lock_guard const lock(mutex_);
    groups_.push_back(&group);
  }
  void remove(mpi_group& group) noexcept {
    std::lock_guard const lock(mutex_);
    std::erase(groups_, &group);
    // Freeing waits for the others, who may not come after a failure.
    if (!failed_ && !mpi_session::is_over()) MPI_Comm_free(&group.handle);
  }

  void run(mpi_group& group, command const& it) {
    std::unique_lock lock(mutex_);
    auto& op = begin(group, it);
    drive(op, lock);
    reuse(op);
  }

  /// It proceeds while the caller computes.
  mpi_operation& start(mpi_group& group, command const& it) {
    std::unique_lock lock(mutex_);
    auto& op = begin(group, it);
    if (op.finished.load(std::memory_order_relaxed)) return op;
    if (!helper_.joinable()) helper_ = std::thread([this] { help(); });
    wake_helper(lock);
    return op;
  }

  /// Gives an operation back that has finished, or that has failed.
  void release(mpi_operation& op) noexcept {
    std::lock_guard const lock(mutex_);
    reuse(op);
  }

  [[nodiscard]] bool test(mpi_operation& op) {
    if (op.finished.load(std::memory_order_acquire)) return true;
    std::unique_lock const lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    if (!failed_) advance_all();
    if (op.finished.load(std::memory_order_acquire)) return true;
    if (!failed_) listen();
    if (failed_) throw_failure(op);
    return false;
  }

  void wait(mpi_operation& op) {
    if (op.finished.load(std::memory_order_acquire)) return;
    std::unique_lock lock(mutex_);
    drive(op, lock);
  }

  [[nodiscard]] bool failed() {
    std::lock_guard const lock(mutex_);
    return failed_;
  }
  /// As node_launch::reports(), by messages. `launch` is the group of all ranks.
  [[nodiscard]] bool reports(mpi_group const& launch) noexcept {
    std::lock_guard const lock(mutex_);
    if (mpi_session::is_over()) return launch.rank == 0;
    for (int rank = launch.rank + 1; rank < launch.size; ++rank) send_notice(launch, rank, ends_notice);
    auto const begin = clock::now();
    for (hear_notices(); launch.rank > 0 && !reported_; hear_notices()) {
      if (clock::now() - begin > patience_with_reporters * (told_by_ < launch.rank ? 2 : 1)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (reported_) {
      std::this_thread::sleep_for(time_to_report);
      return false;
    }
    for (int rank = 0; rank < launch.size; ++rank)
      if (rank != launch.rank) send_notice(launch, rank, reported_notice);
    return true;
  }
  /// Tells every other rank that this one cannot go on, and stops.
  void announce_failure(std::string const& sentence) {
    std::lock_guard const lock(mutex_);
    fail(sentence, true);
  }

 private:
  static constexpr std::size_t notice_bytes = 1024;
  // Notices that are no sentences.
  static constexpr std::string_view ends_notice = "\1 ends";
  static constexpr std::string_view reported_notice = "\1 has reported";
  mpi_driver() = default;

  mpi_operation& begin(mpi_group& group, command const& it) {
    if (unused_.empty()) {
      owned_.push_back(std::make_unique<mpi_operation>());
      unused_.push_back(owned_.back().get());
      active_.reserve(owned_.size());
      unused_.reserve(owned_.size());
    }
    if (failed_) throw_failure(group.rank, it.what.kind);
    auto& op = *unused_.back();
    unused_.pop_back();
    active_.push_back(&op);
    try {
      op.begin(group, it);
      op.advance();
    } catch (error const& problem) {
      fail(problem.what(), true);
      throw_failure(group.rank, it.what.kind);
    }
    return op;
  }
  void reuse(mpi_operation& op) noexcept {
    std::erase(active_, &op);
    if (failed_) return;  // MPI may still know its buffers
    unused_.push_back(&op);
  }

  /// Makes the calls of MPI that finish `op`.
  void drive(mpi_operation& op, std::unique_lock<std::mutex>& lock) {
    struct presence {
      mpi_driver& driver;
      std::unique_lock<std::mutex>& lock;
      presence(mpi_driver& it, std::unique_lock<std::mutex>& held) : driver(it), lock(held) { ++driver.drivers_; }
      presence(presence const&) = delete;
      presence& operator=(presence const&) = delete;
      ~presence() {
        --driver.drivers_;
        driver.wake_helper(lock);
      }
    } const here(*this, lock);
    clock::time_point began{};
    for (std::uint32_t round = 1;; ++round) {
      if (op.finished.load(std::memory_order_relaxed)) return;
      if (failed_) throw_failure(op);
      if (active_.size() == 1)
        advance(op);
      else
        advance_all();
      if (round % 32 != 0 || op.finished.load(std::memory_order_relaxed)) continue;
      listen();
      auto const now = clock::now();
      if (began == clock::time_point{}) began = now;
      if (now - began > op.where->deadline) give_up(op);
      tell_if_late(op.told_late, now - began, op.where->deadline, [&] { return op.as_late(); });
      // Long waits must leave the core to those who still compute.
      lock.unlock();
      if (now - began < std::chrono::milliseconds(5))
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock.lock();
    }
  }
  void give_up(mpi_operation& op) {
    if (failed_) return;
    fail(text(mpi_name, ": ", to_string(op.route.what), " number ", op.route.number, " waited ",
              to_string(op.where->deadline), " for ", op.missing(),
              "; look at what is keeping it, or raise comm::mpi{.deadline}"),
         true);
  }

  void advance(mpi_operation& op) {
    try {
      op.advance();
    } catch (error const& problem) {
      fail(problem.what(), true);
    }
  }
  void advance_all() {
    for (std::size_t i = 0; i < active_.size() && !failed_; ++i)
      if (!active_[i]->finished.load(std::memory_order_relaxed)) advance(*active_[i]);
  }
  [[nodiscard]] std::size_t unfinished() const noexcept {
    return static_cast<std::size_t>(
        std::ranges::count_if(active_, [](auto const* op) { return !op->finished.load(std::memory_order_relaxed); }));
  }

  /// Hears whether another rank has announced a failure.
  void listen() {
    for (auto const* group : groups_) {
      char notice[notice_bytes + 1] = {};
      if (!take_notice(*group, notice) || notice[0] == ends_notice[0]) continue;  // the sentence comes, too
      fail(notice, false);
      return;
    }
  }
  /// Takes a notice that has arrived, and notes whom it is from.
  bool take_notice(mpi_group const& group, char* notice) noexcept {
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, group.handle, &flag, &status) != MPI_SUCCESS || flag == 0) return false;
    MPI_Recv(notice, static_cast<int>(notice_bytes), MPI_CHAR, status.MPI_SOURCE, 0, group.handle, MPI_STATUS_IGNORE);
    told_by_ = std::min(told_by_, status.MPI_SOURCE);
    if (notice == reported_notice) reported_ = true;
    return true;
  }
  void hear_notices() noexcept {
    for (auto const* group : groups_)
      for (char notice[notice_bytes + 1] = {}; take_notice(*group, notice);) std::ranges::fill(notice, '\0');
  }
  static void send_notice(mpi_group const& group, int peer, std::string_view notice) noexcept {
    MPI_Request request = MPI_REQUEST_NULL;
    int flag = 0;
    MPI_Isend(notice.data(), static_cast<int>(notice.size()), MPI_CHAR, group.members[static_cast<std::size_t>(peer)],
              0, group.handle, &request);
    if (request != MPI_REQUEST_NULL) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
  }
  void fail(std::string sentence, bool tell) {
    if (failed_) return;
    failed_ = true;
    message_ = std::move(sentence);
    mpi_session::instance().abandon();
    for (auto* op : active_) op->cancel();
    if (!tell || mpi_session::is_over()) return;
    notice_ = message_.substr(0, notice_bytes);
    for (auto const* group : groups_)
      for (int peer = 0; peer < group->size; ++peer) {
        if (peer != group->rank) send_notice(*group, peer, notice_);
      }
  }
  [[noreturn]] void throw_failure(mpi_operation const& op) const { throw_failure(op.where->rank, op.route.what.kind); }
  [[noreturn]] void throw_failure(int rank, collective kind) const {
    throw comm_error(message_, {rank, std::string(name_of(kind))});
  }

  /// If it sleeps although there is something to do and nobody else does it.
  void wake_helper(std::unique_lock<std::mutex>& lock) {
    if (!helper_sleeps_ || drivers_ > 0 || failed_ || unfinished() == 0) return;
    helper_sleeps_ = false;
    lock.unlock();
    changed_.notify_one();
    lock.lock();
  }
  void help() {
    std::unique_lock lock(mutex_);
    int idle = 0;
    while (!over_) {
      if (drivers_ > 0 || failed_ || unfinished() == 0) {
        helper_sleeps_ = true;
        changed_.wait(lock, [&] { return over_ || !helper_sleeps_; });
        idle = 0;
        continue;
      }
      auto const before = unfinished();
      advance_all();
      idle = unfinished() < before ? 0 : idle + 1;
      lock.unlock();
      if (idle < 50)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int drivers_ = 0;
  bool helper_sleeps_ = false;
  bool failed_ = false;
  bool over_ = false;
  std::vector<mpi_operation*> active_, unused_;
  std::vector<std::unique_ptr<mpi_operation>> owned_;
  std::vector<mpi_group*> groups_;
  std::string message_, notice_;
  int told_by_ = std::numeric_limits<int>::max();  ///< the lowest rank that has announced a failure, or that it ends
  bool reported_ = false;                          ///< another rank tells the user
  std::thread helper_;
};

}  // namespace trireme::comm::detail
