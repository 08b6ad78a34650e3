#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/detail/mpi_operation.hpp"

namespace trireme::comm::detail {

/// Carries out the collectives of this process. Only who holds its lock calls MPI, which is what MPI_THREAD_SERIALIZED
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

  /// Begins a collective that `prepare(operation)` describes. With a helper it proceeds while the caller computes.
  template <class Prepare>
  mpi_operation& begin(bool helped, Prepare&& prepare) {
    std::unique_lock lock(mutex_);
    if (unused_.empty()) {
      owned_.push_back(std::make_unique<mpi_operation>());
      unused_.push_back(owned_.back().get());
      active_.reserve(owned_.size());
      unused_.reserve(owned_.size());
    }
    auto& op = *unused_.back();
    prepare(op);
    if (failed_) throw_failure(op);
    unused_.pop_back();
    op.number = op.where->next++;
    op.finished.store(false, std::memory_order_relaxed);
    active_.push_back(&op);
    try {
      op.begin();
      op.advance();
    } catch (error const& problem) {
      fail(op.where.get(), problem.what());
      throw;
    }
    if (helped) {
      if (!helper_.joinable()) helper_ = std::thread([this] { help(); });
      lock.unlock();
      changed_.notify_one();
    }
    return op;
  }

  /// Gives a collective back that has finished, or that has failed.
  void release(mpi_operation& op) {
    std::shared_ptr<mpi_group> last;  // ends after the lock: freeing a communicator takes it
    std::lock_guard const lock(mutex_);
    std::erase(active_, &op);
    if (failed_) return;  // MPI may still know its buffers
    last = std::move(op.where);
    unused_.push_back(&op);
  }

  [[nodiscard]] bool test(mpi_operation& op) {
    if (op.finished.load(std::memory_order_acquire)) return true;
    std::unique_lock const lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    if (!failed_) poll();
    if (op.finished.load(std::memory_order_acquire)) return true;
    if (failed_) throw_failure(op);
    return false;
  }

  void wait(mpi_operation& op) {
    if (op.finished.load(std::memory_order_acquire)) return;
    struct presence {
      mpi_driver& driver;
      explicit presence(mpi_driver& it) : driver(it) { ++driver.waiting_; }
      ~presence() {
        if (--driver.waiting_ == 0) driver.changed_.notify_one();
      }
    } const here(*this);
    clock::time_point since{};
    for (std::uint32_t round = 1;; ++round) {
      {
        std::lock_guard const lock(mutex_);
        if (!op.finished.load(std::memory_order_relaxed) && !failed_) {
          poll();
          if (round % 64 == 0) listen(*op.where);
          if (round % 64 == 0 && !failed_ && !op.finished.load(std::memory_order_relaxed)) {
            auto const now = clock::now();
            if (since == clock::time_point{}) since = now;
            if (now - since > op.where->deadline)
              fail(op.where.get(), text("trireme::comm::mpi: ", to_string(op.what), " number ", op.number, " waited ",
                                        detail::to_string(op.where->deadline), " for ", op.missing(),
                                        "; look at what is keeping it, or raise comm::mpi{.deadline}"));
          }
        }
        if (op.finished.load(std::memory_order_relaxed)) return;
        if (failed_) throw_failure(op);
      }
      // Long waits must leave the core to the ranks that are still computing.
      if (round < 200)
        pause_core();
      else if (round < 20000)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  /// Tells every other rank of `where` that this one cannot go on, and stops.
  void announce_failure(mpi_group const& where, std::string const& sentence) {
    std::lock_guard const lock(mutex_);
    fail(&where, sentence);
  }
  [[nodiscard]] bool failed() {
    std::lock_guard const lock(mutex_);
    return failed_;
  }

 private:
  static constexpr std::size_t notice_bytes = 1024;
  mpi_driver() = default;

  bool poll() {
    bool moved = false;
    for (auto* op : active_) {
      if (failed_) break;
      if (op->finished.load(std::memory_order_relaxed)) continue;
      try {
        moved = op->advance() || moved;
      } catch (error const& problem) {
        fail(op->where.get(), problem.what());
      }
    }
    return moved;
  }

  /// Hears whether another rank has announced a failure.
  void listen(mpi_group const& where) {
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, where.handle, &flag, &status) != MPI_SUCCESS || flag == 0) return;
    char notice[notice_bytes + 1] = {};
    MPI_Recv(notice, static_cast<int>(notice_bytes), MPI_CHAR, status.MPI_SOURCE, 0, where.handle, MPI_STATUS_IGNORE);
    fail(nullptr, notice);
  }

  void fail(mpi_group const* tell, std::string sentence) {
    if (failed_) return;
    failed_ = true;
    message_ = std::move(sentence);
    mpi_session::instance().abandon();
    if (tell == nullptr || tell->handle == MPI_COMM_NULL) return;
    notice_ = message_.substr(0, notice_bytes);
    for (int peer = 0; peer < tell->size; ++peer) {
      if (peer == tell->rank) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      int flag = 0;
      MPI_Isend(notice_.data(), static_cast<int>(notice_.size()), MPI_CHAR, peer, 0, tell->handle, &request);
      if (request != MPI_REQUEST_NULL) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    }
  }
  [[noreturn]] void throw_failure(mpi_operation const& op) const {
    throw comm_error(message_, {op.where->rank, std::string(name_of(op.what.kind))});
  }

  void help() {
    std::unique_lock lock(mutex_);
    int idle = 0;
    while (!over_) {
      auto const unfinished = [this] {
        return !failed_ &&
               std::ranges::any_of(active_, [](auto* op) { return !op->finished.load(std::memory_order_relaxed); });
      };
      if (waiting_.load() > 0 || !unfinished()) {
        changed_.wait(lock, [&] { return over_ || (waiting_.load() == 0 && unfinished()); });
        idle = 0;
        continue;
      }
      idle = poll() ? 0 : idle + 1;
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
  std::atomic<int> waiting_{0};
  std::vector<mpi_operation*> active_, unused_;
  std::vector<std::unique_ptr<mpi_operation>> owned_;
  bool failed_ = false;
  bool over_ = false;
  std::string message_, notice_;
  std::thread helper_;
};

}  // namespace trireme::comm::detail
