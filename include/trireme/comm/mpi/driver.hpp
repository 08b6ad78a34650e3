#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/detail/waiting.hpp"
#include "trireme/comm/mpi/closing.hpp"
#include "trireme/comm/mpi/notices.hpp"
#include "trireme/comm/mpi/operation.hpp"
#include "trireme/comm/mpi/outbox.hpp"
#include "trireme/core/arithmetic.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm::detail {

/// The groups that come from one launch or one borrow(). If a call of one of them fails, all of them have failed, and
/// groups of other families have not.
struct mpi_family {
  bool failed = false;
  bool settled = false;  ///< calls no longer wait until MPI has released the caller's memory
  std::string message;
  mpi_notices notices;
};

/// Carries out the commands of this process. A thread calls MPI only while it holds the driver's lock, as
/// MPI_THREAD_SERIALIZED requires. A rank that waits drives all commands itself, without another thread. While it
/// computes, a helper thread drives them, if MPI allows that (session.hpp) and a command is in flight; otherwise the
/// helper sleeps and makes no MPI calls. Without a helper, all commands proceed in every call of the rank: start, test,
/// wait, poll.
///
/// Memory that MPI was given lives until MPI is done with it. The driver, which is never destroyed, closes a group
/// (closing.hpp) that this rank has left or in which a call has failed; it does so during calls of other groups and in
/// MPI_Finalize. Until then it keeps the communicator and the failed operations.
class mpi_driver {
 public:
  mpi_driver(mpi_driver const&) = delete;
  mpi_driver& operator=(mpi_driver const&) = delete;

  /// The only driver of this process.
  [[nodiscard]] static mpi_driver& of_process() {
    static auto& only = *new mpi_driver;
    return only;
  }

  /// Calls `use()` with the lock held.
  template <class Use>
  decltype(auto) alone(Use&& use) {
    std::lock_guard const lock(mutex_);
    return use();
  }

  /// Adds a group: from now on failures are sent to its ranks and received from them.
  void add(mpi_group& group) {
    std::lock_guard const lock(mutex_);
    end_with_mpi();
    groups_.push_back(&group);
    received_roll_.resize(std::max(received_roll_.size(), roll_bytes(group.size)));
  }
  /// The helper ends with the last group. Does not wait for other ranks, which may still use the group.
  void remove(mpi_group& group) noexcept {
    std::thread ended;
    {
      std::lock_guard const lock(mutex_);
      std::erase(groups_, &group);
      bool const may_call = mpi_session::instance().may_call();
      if (!group.family->failed && !is_over_) {
        if (may_call) {
          receive_rolls(group);
          mpi_notices::send_departure(group);
        }
        try {
          close(group);
        } catch (...) {  // out of memory: the communicator is never freed
        }
      }
      if (may_call) advance_closings();
      if (groups_.empty() && helper_.joinable()) {
        ended = std::move(helper_);
        ++generation_;
      }
    }
    changed_.notify_all();
    if (ended.joinable()) ended.join();
  }

  void run(mpi_group& group, command const& it) {
    std::unique_lock lock(mutex_);
    auto& op = begin(group, it, lock);
    try {
      drive(op, lock);
    } catch (...) {
      reuse(op);
      throw;
    }
    reuse(op);
  }

  /// The command proceeds while the caller computes.
  mpi_operation& start(mpi_group& group, command const& it) {
    std::unique_lock lock(mutex_);
    auto& op = begin(group, it, lock);
    if (!mpi_session::instance().has_helper()) {
      advance_all();
      return op;
    }
    if (op.finished.load(std::memory_order_relaxed)) return op;
    mode_ = arithmetic_mode::of_this_thread();
    if (!helper_.joinable()) helper_ = std::thread([this, generation = generation_] { help(generation); });
    wake_helper(lock);
    return op;
  }

  /// Gives an operation back that has finished, or that has failed.
  void release(mpi_operation& op) noexcept {
    std::lock_guard const lock(mutex_);
    try {  // unfinished: its request was destroyed by a thread that may not call MPI
      if (goes_on(op) && !is_over_) fail(*op.where->family, text(mpi_name, ": ", description_of(op), " was given up"));
    } catch (...) {  // out of memory for the sentence
    }
    reuse(op);
  }

  [[nodiscard]] bool test(mpi_operation& op) {
    if (op.finished.load(std::memory_order_acquire)) return true;
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    expect_callable(op);
    advance_all();
    if (op.finished.load(std::memory_order_acquire)) return true;
    listen();
    if (op.where->family->failed) throw_failure(*op.where, op.route.what.kind, lock);
    return false;
  }

  void wait(mpi_operation& op) {
    if (op.finished.load(std::memory_order_acquire)) return;
    std::unique_lock lock(mutex_);
    drive(op, lock);
  }

  /// Makes the progress that is possible now with all commands of this process.
  void poll(mpi_group const& group) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // another thread is making progress
    if (!group.family->failed) {
      expect_callable(group, "poll");
      advance_all();
      listen();
    }
    if (!group.family->failed) return;
    settle(group, lock);
    throw comm_error(group.family->message, {group.rank, "poll"});
  }

  /// Returns when the collectives of MPI that calls so far use have begun. Needed before another collective of MPI on
  /// the same communicator, because MPI requires the same order on all ranks.
  void begin_native(mpi_group& group) {
    std::unique_lock lock(mutex_);
    if (group.native_line.empty()) return;
    auto const last = std::ranges::find_if(
        active_, [&](auto const* op) { return op->where == &group && op->route.number == group.native_line.back(); });
    if (last != active_.end()) drive(**last, lock);
  }

  [[nodiscard]] bool failed(mpi_family const& family) {
    std::lock_guard const lock(mutex_);
    return family.failed;
  }
  /// Goes on closing groups. Without one there is nothing to do.
  void close_groups() {
    std::lock_guard const lock(mutex_);
    advance_closings();
  }
  /// As node_launch::reports(), but by messages. `launch` is the group of all ranks.
  [[nodiscard]] bool reports(mpi_group const& launch) noexcept {
    std::lock_guard const lock(mutex_);
    if (is_over_ || !mpi_session::instance().may_call()) return launch.rank == 0;
    mpi_notices::send_end(launch);
    auto& notices = launch.family->notices;
    auto const receive_reports = [&] {
      advance_closings();  // which also receives these messages, and notes them
      notices.receive_reports(launch);
    };
    auto const begin = clock::now();
    for (receive_reports(); launch.rank > 0 && !notices.another_reports(); receive_reports()) {
      if (clock::now() - begin > patience_with_reporters * (notices.lowest_failed() < launch.rank ? 2 : 1)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (notices.another_reports()) {
      std::this_thread::sleep_for(time_to_report);
      return false;
    }
    mpi_notices::send_report(launch);
    return true;
  }
  /// Tells every other rank of the group that this one cannot go on, and stops.
  void announce_failure(mpi_group const& group, std::string const& sentence) {
    std::unique_lock lock(mutex_);
    expect_caller(group, "abandon");
    fail(*group.family, sentence);
    settle(group, lock);
  }

 private:
  mpi_driver() = default;

  mpi_operation& begin(mpi_group& group, command const& it, std::unique_lock<std::mutex>& lock) {
    if (unused_.empty()) {
      owned_.push_back(std::make_unique<mpi_operation>());
      unused_.push_back(owned_.back().get());
      active_.reserve(owned_.size());
      unused_.reserve(owned_.size());
    }
    if (group.family->failed) throw_failure(group, it.what.kind, lock);
    expect_callable(group, name_of(it.what.kind));
    auto& op = *unused_.back();
    unused_.pop_back();
    active_.push_back(&op);
    try {
      op.begin(group, it);
      op.advance();
    } catch (std::exception const& problem) {
      fail(*group.family, problem.what());
      struct release {
        mpi_driver& driver;
        mpi_operation& op;
        ~release() { driver.reuse(op); }
      } const after{*this, op};
      throw_failure(group, it.what.kind, lock);
    }
    return op;
  }
  /// Errors  config_error if this thread may not call MPI; comm_error after MPI_Finalize.
  static void expect_caller(mpi_group const& group, std::string_view call) {
    auto const& session = mpi_session::instance();
    if (!session.may_call())
      throw config_error(
          text(mpi_name, ": MPI was initialised with ", session.level(), ", but another thread calls ", call,
               "; call from the thread that has initialised MPI, or initialise it with "
               "MPI_Init_thread(..., MPI_THREAD_SERIALIZED, ...)"),
          {group.rank, std::string(call)});
  }
  void expect_callable(mpi_group const& group, std::string_view call) const {
    expect_caller(group, call);
    if (is_over_)
      throw comm_error(text(mpi_name, ": ", call, " was called after MPI_Finalize; finalise MPI after the last call"),
                       {group.rank, std::string(call)});
  }
  /// The same of a call that has begun earlier.
  void expect_callable(mpi_operation const& op) const {
    auto const call = name_of(op.route.what.kind);
    expect_caller(*op.where, call);
    if (is_over_)
      throw comm_error(text(mpi_name, ": ", description_of(op),
                            " was under way when MPI was finalised; wait for it before MPI_Finalize"),
                       {op.where->rank, std::string(call)});
  }
  void reuse(mpi_operation& op) noexcept {
    std::erase(active_, &op);
    // MPI may still use the buffers of a failed operation, so that one is kept and not used again.
    if (!op.where->family->failed && !is_over_) unused_.push_back(&op);
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
    // A round usually takes less than a microsecond, but can take 50 ms on a busy machine, where Open MPI lets other
    // processes compute whenever it has nothing to do. So a slow wait looks at the clock in each round: otherwise it
    // would end, and hear of a failure, seconds too late.
    clock::time_point began{}, paused{};
    bool is_long = false;
    for (std::uint32_t round = 1;; ++round) {
      if (op.finished.load(std::memory_order_relaxed)) return;
      if (op.where->family->failed) throw_failure(*op.where, op.route.what.kind, lock);
      if (round == 1) expect_callable(op);
      if (round == 4) began = paused = clock::now();
      if (active_.size() == 1)
        advance(op);
      else
        advance_all();
      bool const looks = is_long || round % 32 == 0 || round == 8 || round == 16;
      if (!looks || op.finished.load(std::memory_order_relaxed)) continue;
      auto const now = clock::now();
      auto const waited = now - began;
      is_long = waited >= long_wait;
      if (round % 32 != 0 && now - paused < long_wait) continue;
      listen();
      if (waited > op.where->deadline) give_up(op);
      call_roll(op, waited, now);
      report_if_late(op.reported_late, waited, op.where->deadline, [&] { return op.as_late(); });
      paused = now;
      lock.unlock();
      rest_between_rounds(is_long);
      lock.lock();
    }
  }
  [[nodiscard]] static std::string description_of(mpi_operation const& op) {
    return text(to_string(op.route.what), " number ", op.route.printed_number(), to_string(op.route.what.label));
  }
  void give_up(mpi_operation& op) {
    fail(*op.where->family, too_late(mpi_name, description_of(op), op.where->deadline, op.missing_ranks()));
  }

  void advance(mpi_operation& op) {
    try {
      op.advance();
    } catch (std::exception const& problem) {  // std::bad_alloc, too
      fail(*op.where->family, problem.what());
    }
  }
  /// Whether it can still make progress.
  [[nodiscard]] static bool goes_on(mpi_operation const& op) noexcept {
    return !op.finished.load(std::memory_order_relaxed) && !op.where->family->failed;
  }
  void advance_all() {
    if (is_over_) return;
    for (std::size_t i = 0; i < active_.size(); ++i)
      if (goes_on(*active_[i])) advance(*active_[i]);
  }
  [[nodiscard]] std::size_t unfinished() const noexcept {
    if (is_over_) return 0;
    return static_cast<std::size_t>(std::ranges::count_if(active_, [](auto const* op) { return goes_on(*op); }));
  }

  /// Receives messages of other ranks about failures and missing ranks.
  void listen() {
    if (is_over_) return;
    for (auto* group : groups_) {
      auto& family = *group->family;
      if (family.failed) continue;
      receive_rolls(*group);
      if (auto const failure = family.notices.receive_failure(*group)) {
        fail(family, failure->sentence, failure->from);
        continue;
      }
      family.notices.receive_departures(*group);
      fail_without_all(*group);
    }
    mpi_outbox::of_process().sweep();
    advance_closings();
  }

  /// Fails what waits for a rank that has left.
  void fail_without_all(mpi_group const& group) {
    auto const waits = std::ranges::find_if(active_, [&](auto const* op) {
      return op->where == &group && op->route.what.kind != collective::exchange &&
             op->route.number >= group.without_all && goes_on(*op);
    });
    if (waits == active_.end()) return;
    fail(*group.family, text(mpi_name, ": ", description_of(**waits), " cannot finish, because rank ", group.has_left,
                             " has left without calling it; make every rank call the same collectives"));
  }

  // Ranks that wait for a long time tell each other which ranks are in the call and which ranks they wait for
  // (roll_call.hpp). Such a message is a head and these two sets.
  struct roll_head {
    std::uint64_t number = 0;
    std::int32_t rank = 0;
    std::int32_t size = 0;
  };
  [[nodiscard]] static std::size_t roll_bytes(int size) noexcept {
    return sizeof(roll_head) + 2 * sizeof(std::uint64_t) * static_cast<std::size_t>((size + 63) / 64);
  }

  /// Sends the sets when `op` has been waited for longer than usual, and again from time to time.
  void call_roll(mpi_operation& op, clock::duration waited, clock::time_point now) {
    auto const deadline = op.where->deadline;
    if (!goes_on(op) || !op.calls_roll() || waited < std::min<clock::duration>(std::chrono::seconds(1), deadline / 4) ||
        now < op.next_roll)
      return;
    op.next_roll = now + std::min<clock::duration>(std::chrono::seconds(1), deadline / 16);
    op.enter_roll();
    send_rolls(op, op.where->rank);
  }
  /// Sends them to the neighbours of this rank, except `but`, which has just sent them.
  void send_rolls(mpi_operation const& op, int but) {
    roll_call::for_each_neighbour(op.where->rank, op.where->size, [&](int peer) {
      if (peer != but) send_roll(op, peer);
    });
  }
  void send_roll(mpi_operation const& op, int peer) {
    auto const& group = *op.where;
    std::string out(roll_bytes(group.size), '\0');
    roll_head const head{op.route.number, group.rank, group.size};
    std::memcpy(out.data(), &head, sizeof head);
    std::memcpy(out.data() + sizeof head, op.roll.bits().data(), op.roll.bits().size_bytes());
    send_roll(group, peer, out);
  }
  static void send_roll(mpi_group const& group, int peer, std::string_view bytes) noexcept {
    mpi_outbox::of_process().send(group.handle, group.members[static_cast<std::size_t>(peer)], mpi_tags::roll, bytes);
  }
  void receive_rolls(mpi_group const& group) noexcept {
    int bytes = 0;
    while (group.family->notices.take(group, mpi_tags::roll, received_roll_.data(), received_roll_.size(), bytes) >= 0)
      receive_roll(group, static_cast<std::size_t>(bytes));
  }
  /// If the call is in flight here: replies to a rank whose sets lack something, and passes on what is new.
  void receive_roll(mpi_group const& group, std::size_t bytes) noexcept try {
    roll_head head;
    if (bytes != roll_bytes(group.size)) return;
    std::memcpy(&head, received_roll_.data(), sizeof head);
    if (head.rank < 0 || head.rank >= group.size || head.size != group.size) return;
    for (auto* op : active_) {
      if (op->where != &group || op->route.number != head.number || !op->calls_roll() || !goes_on(*op)) continue;
      received_bits_.resize((bytes - sizeof head) / sizeof(std::uint64_t));
      std::memcpy(received_bits_.data(), received_roll_.data() + sizeof head, bytes - sizeof head);
      op->enter_roll();
      bool const grew = op->roll.merge(received_bits_);
      if (op->roll.knows_more_than(received_bits_)) send_roll(*op, head.rank);
      if (grew) send_rolls(*op, head.rank);
      return;
    }
    if (head.number >= group.next) return;
    // This rank has finished that call already, and replies that it is not missing.
    auto const mine = sizeof head + sizeof(std::uint64_t) * (static_cast<std::size_t>(group.rank) / 64);
    std::uint64_t word = 0;
    std::memcpy(&word, received_roll_.data() + mine, sizeof word);
    auto const bit = std::uint64_t{1} << (group.rank % 64);
    if ((word & bit) != 0) return;
    word |= bit;
    std::memcpy(received_roll_.data() + mine, &word, sizeof word);
    auto const to = std::exchange(head.rank, group.rank);
    std::memcpy(received_roll_.data(), &head, sizeof head);
    send_roll(group, to, {received_roll_.data(), bytes});
  } catch (...) {  // out of memory for a reply: the error may also name ranks that are not missing
  }
  /// Fails all calls of a family and tells its other ranks, except `received_from`, which has told this one.
  void fail(mpi_family& family, std::string sentence, int received_from = -1) {
    if (family.failed) return;
    family.failed = true;
    family.message = std::move(sentence);
    if (is_over_) return;
    std::vector<mpi_group*> those;
    for (auto* group : groups_)
      if (group->family.get() == &family) those.push_back(group);
    bool const may_call = mpi_session::instance().may_call();
    if (may_call) family.notices.send_failure(those, family.message, received_from);
    for (auto* op : active_)
      if (op->where->family.get() == &family) op->give_up(may_call);
    for (auto* group : those) close(*group);
  }
  /// Begins to close a group, without a call of MPI.
  void close(mpi_group const& group) {
    auto const& family = group.family;
    closings_.push_back(
        std::make_unique<mpi_closing>(group, std::shared_ptr<mpi_notices>(family, &family->notices), family->failed));
  }
  /// Waits until no rank and no request uses the caller's memory any more, but for a quarter of the deadline and one
  /// second at most, because a rank that has stopped would never release it.
  void settle(mpi_group const& group, std::unique_lock<std::mutex>& lock) {
    auto const family = group.family;
    auto const end = clock::now() + std::min<clock::duration>(std::chrono::seconds(1), group.deadline / 4);
    while (!family->settled && !is_over_ && mpi_session::instance().may_call()) {
      advance_closings();
      bool const open = std::ranges::any_of(groups_, [&](auto const* each) {
        return each->family == family &&
               std::ranges::any_of(closings_, [&](auto const& one) { return one->handle() == each->handle; });
      });
      if (!open || clock::now() > end) break;
      lock.unlock();
      rest_between_rounds(true);
      lock.lock();
    }
    family->settled = true;
  }
  [[noreturn]] void throw_failure(mpi_group const& group, collective kind, std::unique_lock<std::mutex>& lock) {
    settle(group, lock);
    throw comm_error(group.family->message, {group.rank, std::string(name_of(kind))});
  }

  /// Makes progress with the groups that end.
  void advance_closings() noexcept {
    if (closings_.empty() || is_over_) return;
    std::erase_if(closings_, [&](auto& each) {
      try {
        if (!each->advance([&] { return is_quiet(each->handle()); })) return false;
      } catch (...) {  // out of memory for a message: tried again later
        return false;
      }
      auto handle = each->handle();
      if (each->is_to_free()) MPI_Comm_free(&handle);
      return true;
    });
    // Failed operations are destroyed when their group is closed.
    if (std::ranges::none_of(owned_, [](auto const& op) { return op->is_given_up; })) return;
    std::erase_if(owned_, [&](auto const& op) {
      return op->is_given_up && std::ranges::find(active_, op.get()) == active_.end() &&
             std::ranges::none_of(closings_, [&](auto const& each) { return each->handle() == op->handle; });
    });
  }
  /// Whether MPI is done with all that this rank has begun in a group that has failed.
  [[nodiscard]] bool is_quiet(MPI_Comm handle) noexcept {
    bool all = mpi_outbox::of_process().sweep(handle);
    for (auto const& op : owned_)
      if (op->is_given_up && op->handle == handle) all = op->is_quiet() && all;
    return all;
  }

  /// Makes MPI_Finalize finish pending closings and messages, for at most a second: all ranks call it, and in some MPIs
  /// it does not return while messages are in flight. MPI_Finalize deletes the attributes of MPI_COMM_SELF first, which
  /// calls at_finalize(). A group that this rank has left without a failure has nothing in flight, and is not waited
  /// for: other ranks may compute for a long time before they leave it.
  void end_with_mpi() {
    if (std::exchange(ends_with_mpi_, true)) return;
    int key = MPI_KEYVAL_INVALID;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &mpi_driver::at_finalize, &key, nullptr);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, this);
  }
  static int at_finalize(MPI_Comm, int, void* driver, void*) {
    static_cast<mpi_driver*>(driver)->finish_all();
    return MPI_SUCCESS;
  }
  void finish_all() noexcept {
    auto const begin = clock::now();
    std::unique_lock lock(mutex_);
    if (mpi_session::instance().ends())  // in exit(), while worlds still exist
      for (auto const* group : groups_)
        if (!group->family->failed) mpi_notices::send_departure(*group);
    for (;;) {
      advance_all();
      advance_closings();
      mpi_outbox::of_process().sweep();
      bool const done = mpi_outbox::of_process().is_empty() && unfinished() == 0 &&
                        std::ranges::none_of(closings_, [](auto const& each) { return each->has_failed_here(); });
      auto const waited = clock::now() - begin;
      if (done && (closings_.empty() || waited > std::chrono::milliseconds(50))) break;
      if (waited > std::chrono::seconds(1)) break;
      lock.unlock();
      rest_between_rounds(true);
      lock.lock();
    }
    is_over_ = true;  // from here on the helper does not call MPI
  }

  /// Wakes the helper if commands are in flight that no caller drives.
  void wake_helper(std::unique_lock<std::mutex>& lock) {
    if (!helper_sleeps_ || drivers_ > 0 || unfinished() == 0) return;
    helper_sleeps_ = false;
    lock.unlock();
    changed_.notify_one();
    lock.lock();
  }
  /// @param generation  of helpers: this one ends when the number has changed.
  void help(int generation) {
    std::unique_lock lock(mutex_);
    int idle = 0;
    while (generation_ == generation) {
      if (drivers_ > 0 || unfinished() == 0) {
        helper_sleeps_ = true;
        changed_.wait(lock, [&] { return generation_ != generation || !helper_sleeps_; });
        idle = 0;
        continue;
      }
      auto const before = unfinished();
      mode_.use();
      advance_all();
      idle = unfinished() < before ? 0 : idle + 1;
      if (idle % 64 == 63) listen();  // to reply to ranks that ask who is missing
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
  bool ends_with_mpi_ = false;  ///< whether MPI_Finalize is to call finish_all()
  bool is_over_ = false;        ///< MPI_Finalize has called it: MPI must not be called any more
  int generation_ = 0;
  arithmetic_mode mode_ = arithmetic_mode::of_this_thread();  ///< of the rank; the helper uses it, too
  std::vector<mpi_operation*> active_, unused_;
  std::vector<std::unique_ptr<mpi_operation>> owned_;
  std::vector<mpi_group*> groups_;
  std::vector<std::unique_ptr<mpi_closing>> closings_;
  std::vector<char> received_roll_;
  std::vector<std::uint64_t> received_bits_;
  std::thread helper_;
};

}  // namespace trireme::comm::detail
