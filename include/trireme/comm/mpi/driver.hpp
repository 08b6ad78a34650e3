#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/detail/waiting.hpp"
#include "trireme/comm/mpi/notices.hpp"
#include "trireme/comm/mpi/operation.hpp"

namespace trireme::comm::detail {

/// Carries out the commands of this process. A thread calls MPI only while it holds the driver's lock, as
/// MPI_THREAD_SERIALIZED asks for. A rank that waits drives all commands itself, so that nothing is handed over between
/// threads; otherwise a helper thread does, while some are in flight. With none in flight it sleeps and makes no MPI
/// calls.
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

  /// The only driver of this process, which lives as long as some engine holds it.
  static std::shared_ptr<mpi_driver> shared() {
    static std::mutex guard;
    static std::weak_ptr<mpi_driver> known;
    std::lock_guard const lock(guard);
    auto driver = known.lock();
    if (driver == nullptr) known = driver = std::shared_ptr<mpi_driver>(new mpi_driver);
    return driver;
  }

  /// Calls `use()` with the lock held.
  template <class Use>
  decltype(auto) alone(Use&& use) {
    std::lock_guard const lock(mutex_);
    return use();
  }

  /// Adds a group: failures are sent to its ranks, and heard from them.
  void add(mpi_group& group) {
    std::lock_guard const lock(mutex_);
    groups_.push_back(&group);
    heard_roll_.resize(std::max(heard_roll_.size(), roll_bytes(group.size)));
  }
  void remove(mpi_group& group) noexcept {
    std::lock_guard const lock(mutex_);
    std::erase(groups_, &group);
    if (!failed_ && !mpi_session::is_over()) hear_rolls(group);  // no message may be left in it
    // Freeing waits for the others, which may not come after a failure.
    if (!failed_ && !mpi_session::is_over()) MPI_Comm_free(&group.handle);
  }

  void run(mpi_group& group, command const& it) {
    std::unique_lock lock(mutex_);
    auto& op = begin(group, it);
    drive(op, lock);
    reuse(op);
  }

  /// The command proceeds while the caller computes.
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

  /// Returns when MPI's own collectives of all calls so far have begun. Needed before another collective of MPI on the
  /// same communicator, because MPI wants one order on all ranks.
  void begin_native(mpi_group& group) {
    std::unique_lock lock(mutex_);
    if (group.native_line.empty()) return;
    auto const last = std::ranges::find_if(
        active_, [&](auto const* op) { return op->where == &group && op->route.number == group.native_line.back(); });
    if (last != active_.end()) drive(**last, lock);
  }

  [[nodiscard]] bool failed() {
    std::lock_guard const lock(mutex_);
    return failed_;
  }
  /// As node_launch::reports(), but by messages. `launch` is the group of all ranks.
  [[nodiscard]] bool reports(mpi_group const& launch) noexcept {
    std::lock_guard const lock(mutex_);
    if (mpi_session::is_over()) return launch.rank == 0;
    mpi_notices::tell_that_it_ends(launch);
    auto const begin = clock::now();
    for (hear_who_reports(); launch.rank > 0 && !notices_.another_reports(); hear_who_reports()) {
      if (clock::now() - begin > patience_with_reporters * (notices_.told_by() < launch.rank ? 2 : 1)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (notices_.another_reports()) {
      std::this_thread::sleep_for(time_to_report);
      return false;
    }
    mpi_notices::tell_that_it_reports(launch);
    return true;
  }
  /// Tells every other rank that this one cannot go on, and stops.
  void announce_failure(std::string const& sentence) {
    std::lock_guard const lock(mutex_);
    fail(sentence);
  }

 private:
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
      fail(problem.what());
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
      call_roll(op, now - began, now);
      tell_if_late(op.told_late, now - began, op.where->deadline, [&] { return op.as_late(); });
      // Long waits must leave the core to ranks that still compute.
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
    fail(text(mpi_name, ": ", to_string(op.route.what), " number ", op.route.number_told(), " waited ",
              to_string(op.where->deadline), " for ", op.missing(),
              "; look at what is keeping it, or raise comm::mpi{.deadline}"));
  }

  void advance(mpi_operation& op) {
    try {
      op.advance();
    } catch (error const& problem) {
      fail(problem.what());
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

  /// Receives what other ranks say of a failure, and of who is missing.
  void listen() {
    for (auto* group : groups_) {
      hear_rolls(*group);
      if (auto const heard = notices_.heard(*group)) return fail(heard->sentence, heard->from);
    }
  }
  void hear_who_reports() noexcept {
    for (auto const* group : groups_) notices_.hear_who_reports(*group);
  }

  // A rank that waits for long exchanges with others which ranks are in the call and which are waited for
  // (roll_call.hpp). Such a message is a head and the two sets.
  struct roll_head {
    std::uint64_t number = 0;
    std::int32_t rank = 0;
    std::int32_t size = 0;
  };
  struct sent_roll {
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<char> bytes;
  };
  [[nodiscard]] static std::size_t roll_bytes(int size) noexcept {
    return sizeof(roll_head) + 2 * sizeof(std::uint64_t) * static_cast<std::size_t>((size + 63) / 64);
  }

  /// Sends the sets when `op` has been waited for longer than usual, and again from time to time.
  void call_roll(mpi_operation& op, clock::duration waited, clock::time_point now) {
    auto const deadline = op.where->deadline;
    if (failed_ || !op.calls_roll() || waited < std::min<clock::duration>(std::chrono::seconds(1), deadline / 4) ||
        now < op.next_roll)
      return;
    op.next_roll = now + std::min<clock::duration>(std::chrono::seconds(1), deadline / 16);
    op.enter_roll();
    tell_roll(op, op.where->rank);
  }
  /// Sends them to the neighbours of this rank, except `but`, from which they have just come.
  void tell_roll(mpi_operation const& op, int but) {
    roll_call::for_each_neighbour(op.where->rank, op.where->size, [&](int peer) {
      if (peer != but) send_roll(op, peer);
    });
  }
  void send_roll(mpi_operation const& op, int peer) {
    auto const& group = *op.where;
    auto& out = next_roll();
    out.bytes.resize(roll_bytes(group.size));
    roll_head const head{op.route.number, group.rank, group.size};
    std::memcpy(out.bytes.data(), &head, sizeof head);
    std::memcpy(out.bytes.data() + sizeof head, op.roll.bits().data(), op.roll.bits().size_bytes());
    send(out, group, peer);
  }
  [[nodiscard]] sent_roll& next_roll() {
    std::erase_if(sent_rolls_, [](auto const& each) {
      int flag = 0;
      MPI_Test(&each->request, &flag, MPI_STATUS_IGNORE);
      return flag != 0;
    });
    return *sent_rolls_.emplace_back(std::make_unique<sent_roll>());
  }
  static void send(sent_roll& roll, mpi_group const& group, int peer) {
    MPI_Isend(roll.bytes.data(), static_cast<int>(roll.bytes.size()), MPI_BYTE,
              group.members[static_cast<std::size_t>(peer)], mpi_tags::roll, group.handle, &roll.request);
  }
  void hear_rolls(mpi_group const& group) noexcept {
    int bytes = 0;
    while (notices_.take(group, mpi_tags::roll, heard_roll_.data(), heard_roll_.size(), bytes) >= 0)
      hear_roll(group, static_cast<std::size_t>(bytes));
  }
  /// If the call is in flight here: answers a rank that knows less, and passes on what is new.
  void hear_roll(mpi_group const& group, std::size_t bytes) noexcept try {
    roll_head head;
    if (failed_ || bytes != roll_bytes(group.size)) return;
    std::memcpy(&head, heard_roll_.data(), sizeof head);
    for (auto* op : active_) {
      if (op->where != &group || op->route.number != head.number || !op->calls_roll() || head.size != group.size ||
          op->finished.load(std::memory_order_relaxed))
        continue;
      heard_bits_.resize((bytes - sizeof head) / sizeof(std::uint64_t));
      std::memcpy(heard_bits_.data(), heard_roll_.data() + sizeof head, bytes - sizeof head);
      op->enter_roll();
      bool const grew = op->roll.merge(heard_bits_);
      if (op->roll.knows_more_than(heard_bits_)) send_roll(*op, head.rank);
      if (grew) tell_roll(*op, head.rank);
      return;
    }
    if (head.number >= group.next) return;
    // This rank has finished that call already: it answers that it is not missing.
    auto const mine = sizeof head + sizeof(std::uint64_t) * (static_cast<std::size_t>(group.rank) / 64);
    std::uint64_t word = 0;
    std::memcpy(&word, heard_roll_.data() + mine, sizeof word);
    auto const bit = std::uint64_t{1} << (group.rank % 64);
    if ((word & bit) != 0) return;
    word |= bit;
    std::memcpy(heard_roll_.data() + mine, &word, sizeof word);
    auto& out = next_roll();
    out.bytes.assign(heard_roll_.begin(), heard_roll_.begin() + static_cast<std::ptrdiff_t>(bytes));
    auto const to = std::exchange(head.rank, group.rank);
    std::memcpy(out.bytes.data(), &head, sizeof head);
    send(out, group, to);
  } catch (...) {  // no memory for an answer: the error may name ranks that are not missing, too
  }
  /// Fails all calls and tells other ranks, except `heard_from`, which has told this one.
  void fail(std::string sentence, int heard_from = -1) {
    if (failed_) return;
    failed_ = true;
    message_ = std::move(sentence);
    mpi_session::instance().abandon();
    for (auto* op : active_) op->cancel();
    if (!mpi_session::is_over()) notices_.tell(groups_, message_, heard_from);
  }
  [[noreturn]] void throw_failure(mpi_operation const& op) const { throw_failure(op.where->rank, op.route.what.kind); }
  [[noreturn]] void throw_failure(int rank, collective kind) const {
    throw comm_error(message_, {rank, std::string(name_of(kind))});
  }

  /// Wakes the helper if there is something to do that no caller does.
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
      if (idle % 64 == 63) listen();  // to answer ranks that ask who is missing
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
  std::string message_;
  mpi_notices notices_;
  std::vector<char> heard_roll_;
  std::vector<std::uint64_t> heard_bits_;
  std::vector<std::unique_ptr<sent_roll>> sent_rolls_;
  std::thread helper_;
};

}  // namespace trireme::comm::detail
