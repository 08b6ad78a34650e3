// Trireme 0.1.0: trireme/comm/elastic.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: dd28bdfcc648a2efbbf2a1d88b1f762049143235cf6b9d6b23546fca664b6411
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/processes.hpp"
#include "trireme/comm/rendezvous.hpp"
#include "trireme/core/random_bits.hpp"

// ---- trireme/comm/elastic.hpp
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#ifndef TRIREME_COMM_DETAIL_ANNOUNCEMENTS_INCLUDED
#define TRIREME_COMM_DETAIL_ANNOUNCEMENTS_INCLUDED

// ---- trireme/comm/detail/announcements.hpp
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace trireme::comm::detail {

/// What a process that has announced itself is told: its rank of how many, and the number of the membership.
struct admission {
  std::int64_t rank = 0, size = 0, membership = 0;
};

/// The directory in which the processes of a run find each other between memberships. Its files:
///
///   join-ID            a process that wants to join, which holds a lock on it
///   admitted-ID        the reply: rank, size and membership
///   meeting-N          where the ranks of membership N meet
///   memberships.jsonl  what has happened
///   ended              the run is over
///
/// Errors   config_error if it is not a directory that belongs to this user and that others cannot write to; io_error.
class announcements {
 public:
  announcements(std::string_view who, std::string path) : who_(who), path_(std::move(path)) {
    if (path_.empty())
      throw config_error(text(who_, ": .directory is empty; give a directory, the same for all processes of the run"));
    if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) fail(path_, "cannot be made");
    struct ::stat status {};
    if (::stat(path_.c_str(), &status) != 0) fail(path_, "cannot be read");
    if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 022) != 0)
      throw config_error(text(who_, ": ", path_,
                              " must be a directory that belongs to this user and that others cannot write to; "
                              "give another .directory"));
    if (auto const* const found = ::realpath(path_.c_str(), nullptr); found != nullptr) {
      path_ = found;
      ::free(const_cast<char*>(found));
    }
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::string at(std::string_view name) const { return text(path_, "/", name); }
  /// The place of the state in a file system that is in memory: the same for all processes of the run.
  [[nodiscard]] std::string state_in(std::string const& memory) const {
    return text(memory, "/trireme-", ::geteuid(), "-", sha256().update(path_).hexadecimal().substr(0, 32));
  }

  // Of a process that wants to join.

  void announce() {
    own_ = text(::getpid(), "-", trireme::detail::random_bits());
    auto const partial = at(text("partial-", own_));
    file_ = descriptor(::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file_.is_open() || !file_.lock() || ::rename(partial.c_str(), at("join-" + own_).c_str()) != 0)
      fail(partial, "cannot be written");
  }
  [[nodiscard]] std::optional<admission> reply() const {
    auto const numbers = read_numbers(at("admitted-" + own_));
    if (!numbers) return std::nullopt;
    ::unlink(at("admitted-" + own_).c_str());
    return admission{(*numbers)[0], (*numbers)[1], (*numbers)[2]};
  }
  void withdraw() noexcept {
    ::unlink(at("join-" + own_).c_str());
    ::unlink(at("admitted-" + own_).c_str());
    file_.close();
  }

  // Of the first rank.

  /// How many have announced themselves, among them some that may have died.
  [[nodiscard]] int count() const { return static_cast<int>(names("join-").size()); }
  /// Those that live; the files of the others are removed.
  [[nodiscard]] std::vector<std::string> alive() const {
    std::vector<std::string> out;
    for (auto const& name : names("join-")) {
      auto const path = at(name);
      descriptor const file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      if (file.is_open() && file.is_locked(false))
        out.push_back(name.substr(5));
      else
        ::unlink(path.c_str());
    }
    return out;
  }
  void admit(std::string const& id, admission const& what) const {
    write("admitted-" + id, text(what.rank, " ", what.size, " ", what.membership));
    ::unlink(at("join-" + id).c_str());
  }
  /// Removes what an earlier run has left.
  void begin() const {
    static_cast<void>(alive());
    ::unlink(at("ended").c_str());
    for (auto const& name : names("admitted-")) ::unlink(at(name).c_str());
  }
  void end() const { write("ended", "."); }
  [[nodiscard]] bool has_ended() const noexcept { return ::access(at("ended").c_str(), F_OK) == 0; }
  /// Adds a line to the record; `first` begins a new one.
  void record(std::string const& line, bool first) const {
    auto const path = at("memberships.jsonl");
    descriptor const file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | (first ? O_TRUNC : 0), 0600));
    auto const all = line + "\n";
    if (!file.is_open() || ::write(file.number(), all.data(), all.size()) != static_cast<::ssize_t>(all.size()))
      fail(path, "cannot be written");
  }

 private:
  [[noreturn]] void fail(std::string const& path, std::string_view what) const {
    auto const number = errno;
    throw io_error(path, text(what, ": ", system_sentence(number), " (", who_, ")"), number);
  }
  [[nodiscard]] std::vector<std::string> names(std::string_view prefix) const {
    auto const close = [](::DIR* open) { ::closedir(open); };
    std::unique_ptr<::DIR, decltype(close)> const open(::opendir(path_.c_str()), close);
    if (open == nullptr) fail(path_, "cannot be read");
    std::vector<std::string> out;
    while (auto const* const entry = ::readdir(open.get()))
      if (std::string_view const name(static_cast<char const*>(entry->d_name)); name.starts_with(prefix))
        out.emplace_back(name);
    std::ranges::sort(out);
    return out;
  }
  /// Under another name first, so that nobody reads a part of it.
  void write(std::string const& name, std::string const& content) const {
    auto const partial = at("partial-" + name);
    {
      descriptor const file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!file.is_open() ||
          ::write(file.number(), content.data(), content.size()) != static_cast<::ssize_t>(content.size()))
        fail(partial, "cannot be written");
    }
    if (::rename(partial.c_str(), at(name).c_str()) != 0) fail(partial, "cannot be renamed");
  }
  [[nodiscard]] static std::optional<std::array<std::int64_t, 3>> read_numbers(std::string const& path) {
    descriptor const file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    std::array<char, 128> content{};
    auto const got = file.is_open() ? ::read(file.number(), content.data(), content.size()) : ::ssize_t{-1};
    if (got <= 0) return std::nullopt;
    std::array<std::int64_t, 3> out{};
    auto const* at = content.data();
    auto const* const end = at + got;
    for (auto& each : out) {
      auto const read = std::from_chars(at, end, each);
      if (read.ec != std::errc()) return std::nullopt;
      at = std::min(read.ptr + 1, end);
    }
    return out;
  }

  std::string who_;
  std::string path_;
  std::string own_;
  descriptor file_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_ANNOUNCEMENTS_INCLUDED

// ---- trireme/comm/elastic.hpp (goes on)
namespace trireme::comm {

/// How a launch of comm::processes takes new ranks, and lets ranks go, between two steps.
///
/// `directory`      where processes announce themselves; the same for all of the run, made if it does not exist. The
///                  record of all memberships is in its file memberships.jsonl.
/// `join`           this process is new: it joins the run at its next boundary. Otherwise it is one of the first ranks,
///                  which a launcher has started.
/// `multiple`       the number of ranks stays a multiple of this: who comes or goes waits until there are enough.
/// `most_ranks`     who comes waits while there are as many.
/// `attempts`       how often the others go on from a checkpoint after a rank was killed.
/// `join_deadline`  how long the members wait for a new rank that is being taken in; then they go on without it.
/// `memory`         a file system in memory, with room for the state of the run.
struct elastic {
  std::string directory{};
  bool join = false;
  int multiple = 1;
  int most_ranks = detail::node_most_ranks;
  int attempts = 3;
  std::chrono::milliseconds join_deadline = std::chrono::seconds(10);
  std::string memory = "/dev/shm";
};

class membership;

namespace detail {

inline constexpr std::string_view elastic_who = "trireme::comm::elastic";
class elastic_launch;

/// Removes a directory tree in memory that belongs to this user, and does not follow links.
inline void remove_state(int at, std::string const& name) noexcept {
  int const open = ::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (open < 0) {
    ::unlinkat(at, name.c_str(), 0);
    return;
  }
  auto const close = [](::DIR* it) { ::closedir(it); };
  if (std::unique_ptr<::DIR, decltype(close)> const list(::fdopendir(open), close); list != nullptr) {
    while (auto const* const entry = ::readdir(list.get())) {
      std::string const each(static_cast<char const*>(entry->d_name));
      if (each != "." && each != "..") remove_state(open, each);
    }
  } else {
    ::close(open);
  }
  ::unlinkat(at, name.c_str(), AT_REMOVEDIR);
}

}  // namespace detail

/// The ranks of a run from one change to the next, as the body of a launch with comm::elastic sees them.
///
/// Ranks    hand_over() and take_over() are collective; the others are local.
class membership {
 public:
  membership(membership const&) = delete;
  membership& operator=(membership const&) = delete;

  /// 0 for the first ranks of a launch; each change adds 1.
  [[nodiscard]] std::int64_t number() const noexcept { return number_; }
  /// Whether this process belonged to the membership before.
  [[nodiscard]] bool is_new() const noexcept { return new_; }
  /// This rank wants to leave at the next boundary. Not safe in a signal handler, which should set a flag.
  void leave() noexcept { leaving_ = true; }
  /// Whether this rank knows of a change that is due. Then the trainer should stop: `trainer.request_stop()`.
  [[nodiscard]] bool is_due() const {
    if (leaving_ && !refused_leave_) return true;
    return world_->rank() == 0 && home_.count() > refused_;
  }

  /// Collective, between two steps: if a change is due, the ranks save the state in memory for the next membership.
  /// @returns whether it is due. Then the body returns; it is called again for all ranks of the next membership.
  /// Errors   what saving throws, on every rank: io_error if there is no room in .memory.
  template <class Trainer>
  [[nodiscard]] bool hand_over(Trainer& trainer) {
    if (!decide()) return false;
    begun_ = clock::now();
    prepare_memory();
    trainer.save(state());
    publish();
    return true;
  }

  /// After hand_over(), the same on all ranks: all want to leave, and nobody is there to take over. Then the body saves
  /// a checkpoint and returns.
  [[nodiscard]] bool is_over() const noexcept { return over_; }

  /// Collective, once the trainer is made: it takes the state that the membership before has handed over. If there is
  /// none (at the start, or after a rank was killed), calls `otherwise()`, which may load a checkpoint.
  /// @returns whether the state came from memory.
  template <class Trainer, class Otherwise>
  bool take_over(Trainer& trainer, Otherwise&& otherwise) {
    bool const handed = is_handed_over();
    if (handed)
      static_cast<void>(trainer.load(state()));
    else
      otherwise();
    settle(trainer.steps(), handed);
    return handed;
  }
  template <class Trainer>
  bool take_over(Trainer& trainer) {
    return take_over(trainer, [] {});
  }

  /// How long this rank took no step at the change that began this membership; 0 without one.
  [[nodiscard]] double seconds() const noexcept { return seconds_; }

 private:
  friend class detail::elastic_launch;
  using clock = std::chrono::steady_clock;
  static constexpr char const* whole = "whole";

  /// What comes next, the same on all ranks.
  struct change {
    bool due = false;
    int size = 0;    ///< of the next membership
    int joined = 0;  ///< how many of them are new
    int left = 0;
    int rank = -1;  ///< of this process; -1 if it leaves
  };

  membership(elastic how, detail::announcements& home) : how_(std::move(how)), home_(home) {}

  [[nodiscard]] std::string state() const { return home_.state_in(how_.memory); }
  [[nodiscard]] std::string name_of_state() const { return state().substr(how_.memory.size() + 1); }
  [[nodiscard]] std::string mark() const { return state() + "." + whole; }

  /// Collective. A number of the first rank, on all of them; or its exception.
  template <class F>
  [[nodiscard]] std::int64_t told_by_first(F&& f) {
    std::int64_t said = 0;
    std::exception_ptr failure;
    if (world_->rank() == 0) {
      try {
        said = f();
      } catch (...) {
        failure = std::current_exception();
        said = std::numeric_limits<std::int64_t>::min();
      }
    }
    world_->broadcast(tensor_view<std::int64_t>(&said, shape{1}), 0);
    if (failure) std::rethrow_exception(failure);
    if (said == std::numeric_limits<std::int64_t>::min())
      throw error(text(detail::elastic_who, ": the first rank could not change the membership; it says why"));
    return said;
  }

  /// Collective. Settles the next membership: as many go and come as .multiple and .most_ranks allow, those who go
  /// first.
  [[nodiscard]] bool decide() {
    auto const size = world_->size();
    std::vector<std::int32_t> leaves(static_cast<std::size_t>(size));
    leaves[static_cast<std::size_t>(world_->rank())] = leaving_ ? 1 : 0;
    world_->all_gather(tensor_view<std::int32_t>(leaves));
    auto const waiting = static_cast<int>(told_by_first([&] {
      ids_ = home_.alive();
      return static_cast<std::int64_t>(ids_.size());
    }));
    auto const wish = static_cast<int>(std::ranges::count(leaves, 1));
    next_ = {};
    for (int go = wish; go >= 0 && !next_.due; --go)
      for (int come = std::min(waiting, how_.most_ranks - size + go); come >= 0 && !next_.due; --come)
        if (size - go + come > 0 && (size - go + come) % how_.multiple == 0 && go + come > 0)
          next_ = {.due = true, .size = size - go + come, .joined = come, .left = go};
    over_ = wish == size && next_.left != size;
    if (over_) next_ = {};
    refused_ = waiting - next_.joined;
    refused_leave_ = leaving_;
    if (!next_.due) return false;
    int to_go = next_.left, rank = 0;
    for (int each = 0; each < size; ++each) {
      bool const goes = leaves[static_cast<std::size_t>(each)] != 0 && to_go > 0;
      if (goes) --to_go;
      if (each == world_->rank()) next_.rank = goes ? -1 : rank;
      if (!goes) ++rank;
    }
    return true;
  }
  void prepare_memory() {
    static_cast<void>(told_by_first([&] {
      clear_memory();
      if (::mkdir(state().c_str(), 0700) != 0)
        throw io_error(state(),
                       text("cannot be made: ", detail::system_sentence(errno), " (", detail::elastic_who, ")"), errno);
      return 0;
    }));
  }
  void clear_memory() const noexcept {
    ::unlink(mark().c_str());
    int const memory = ::open(how_.memory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (memory < 0) return;
    detail::remove_state(memory, name_of_state());
    ::close(memory);
  }
  /// All ranks have saved: from now on this state is the one to go on from.
  void publish() {
    static_cast<void>(told_by_first([&] {
      detail::descriptor const file(::open(mark().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!file.is_open()) throw io_error(mark(), text("cannot be made: ", detail::system_sentence(errno)), errno);
      for (int each = 0; each < next_.joined; ++each)
        home_.admit(ids_[static_cast<std::size_t>(each)], {next_.size - next_.joined + each, next_.size, number_ + 1});
      return 0;
    }));
  }
  /// Collective.
  [[nodiscard]] bool is_handed_over() {
    return told_by_first([&] {
             struct ::stat status {};
             bool const whole_state = ::lstat(mark().c_str(), &status) == 0 && status.st_uid == ::geteuid();
             if (!whole_state) clear_memory();
             return std::int64_t{whole_state ? 1 : 0};
           }) != 0;
  }
  /// Collective: the membership begins.
  void settle(std::int64_t step, bool from_memory) {
    seconds_ = begun_ == clock::time_point() ? 0.0 : std::chrono::duration<double>(clock::now() - begun_).count();
    auto longest = seconds_;
    world_->all_reduce(tensor_view<double>(&longest, shape{1}), reduction::max{});  // so all have read the state
    static_cast<void>(told_by_first([&] {
      if (from_memory) clear_memory();
      home_.record(text("{\"membership\": ", number_, ", \"step\": ", step, ", \"ranks\": ", world_->size(),
                        ", \"joined\": ", came_.joined, ", \"left\": ", came_.left, ", \"killed\": ", killed_,
                        ", \"from\": \"", from_memory ? "memory" : "checkpoint", "\", \"seconds\": ", longest, "}"),
                   number_ == 0 && step == 0);
      return 0;
    }));
    begun_ = {};
  }

  elastic how_;
  detail::announcements& home_;
  any_world* world_ = nullptr;
  std::int64_t number_ = 0;
  bool new_ = false;
  bool leaving_ = false;
  bool refused_leave_ = false;
  bool over_ = false;
  int refused_ = 0;  ///< that have announced themselves, and could not be taken in
  std::vector<std::string> ids_;
  change next_, came_;
  int killed_ = 0;
  clock::time_point begun_{};
  double seconds_ = 0;
};

namespace detail {

/// The memberships of one process, one after the other.
class elastic_launch {
 public:
  elastic_launch(elastic how, std::chrono::milliseconds deadline)
      : how_(valid(std::move(how))), deadline_(deadline), home_(elastic_who, how_.directory), members_(how_, home_) {}

  void run(std::function<void(any_world&, membership&)> const& body) {
    last_report() = report::unsettled;
    if (how_.join)
      join();
    else
      start();
    for (int failures = 0;;) {
      std::exception_ptr failure;
      engine_->worlds->leave_it_to_the_launch();
      members_.next_ = {};
      members_.refused_ = 0;
      members_.refused_leave_ = false;
      bool over = false;
      try {
        any_world world(engine_);
        members_.world_ = &world;
        body(world, members_);
        over = !members_.next_.due;
        if (over && world.rank() == 0) home_.end();
      } catch (comm_error const&) {
        failure = std::current_exception();
      } catch (...) {
        end_with_error(std::current_exception());
        throw;
      }
      if (failure) {
        if (failures++ == how_.attempts || !go_on_after(failure)) {
          end_with_error(failure);
          std::rethrow_exception(failure);
        }
        continue;
      }
      if (over || members_.next_.rank < 0) return;
      change();
    }
  }

 private:
  static elastic valid(elastic how) {
    if (how.multiple < 1)
      throw config_error(text(elastic_who, ": .multiple is ", how.multiple, "; it must be at least 1"));
    if (how.most_ranks < 1 || how.most_ranks > node_most_ranks)
      throw config_error(text(elastic_who, ": .most_ranks is ", how.most_ranks, "; choose 1 to ", node_most_ranks));
    if (how.attempts < 0)
      throw config_error(text(elastic_who, ": .attempts is ", how.attempts, "; it must be at least 0"));
    if (how.join_deadline.count() < 1)
      throw config_error(
          text(elastic_who, ": .join_deadline is ", to_string(how.join_deadline), "; give new ranks at least 1ms"));
    while (how.memory.size() > 1 && how.memory.ends_with('/')) how.memory.pop_back();
    if (!how.memory.starts_with('/'))
      throw config_error(text(elastic_who, ": .memory is \"", how.memory,
                              "\"; give the path of a file system in memory, such as /dev/shm"));
    return how;
  }

  void start() {
    auto const here = bootstrap::detect();
    bootstrap::log(here);
    if (here.size % how_.multiple != 0)
      throw config_error(
          text(elastic_who, ": ", how_many(here.size, "rank"), " at the start, but .multiple is ", how_.multiple));
    if (here.rank == 0) {  // before the others can have announced a wish
      home_.begin();
      members_.clear_memory();
    }
    engine_ = engine_by_rendezvous(elastic_who, here, deadline_);
  }

  /// Announces this process, and waits until the run has come to a boundary.
  void join() {
    members_.new_ = true;
    home_.announce();
    auto const until = std::chrono::steady_clock::now() + deadline_;
    try {
      for (;;) {
        if (auto const told = home_.reply()) {
          members_.number_ = told->membership;
          members_.came_ = {.due = true, .size = static_cast<int>(told->size), .rank = static_cast<int>(told->rank)};
          engine_ = meet(told->membership, static_cast<int>(told->rank), static_cast<int>(told->size), false);
          home_.withdraw();
          return;
        }
        if (home_.has_ended())
          throw comm_error(text(elastic_who, ": the run at ", home_.path(), " has ended, so there is nothing to join"));
        if (std::chrono::steady_clock::now() > until)
          throw comm_error(text(elastic_who, ": the run at ", home_.path(), " has not come to a boundary within ",
                                to_string(deadline_), "; is it running? (.deadline of comm::processes)"));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    } catch (...) {
      home_.withdraw();
      throw;
    }
  }

  /// The engine of membership `number`; the ranks meet at a file of the run's directory.
  [[nodiscard]] std::shared_ptr<collective_engine> meet(std::int64_t number, int rank, int size, bool again) {
    rendezvous where;
    where.file = home_.at(text("meeting-", number, again ? "-again" : ""));
    where.job = text("elastic-", number, again ? "-again" : "");
    where.deadline = again ? deadline_ : how_.join_deadline;
    meeting met(where, rank, size, elastic_who);
    return make_node_engine(elastic_who, rank, size, deadline_,
                            [&met](std::string const& own) { return met.all_gather(own); });
  }

  /// From one membership to the next. The old engine lives until all have met, as after a failure.
  void change() {
    auto const next = members_.next_;
    ++members_.number_;
    members_.new_ = false;
    members_.killed_ = 0;
    members_.came_ = next;
    try {
      engine_ = meet(members_.number_, next.rank, next.size, false);
    } catch (comm_error const&) {
      auto const stay = next.size - next.joined;
      if (next.joined == 0) throw;
      engine_ = meet(members_.number_, next.rank, stay, true);  // a new rank has died meanwhile
      members_.came_.size = stay;
      members_.came_.joined = 0;
    }
  }

  /// A rank was killed. @returns false if this process cannot go on.
  [[nodiscard]] bool go_on_after(std::exception_ptr const& failure) {
    engine_->abandon(sentence_of(failure));  // this rank may have found the failure first
    members_.begun_ = membership::clock::now();
    auto const left = engine_->survivors();
    if (left.empty() || static_cast<int>(left.size()) % how_.multiple != 0) return false;
    auto const rank = static_cast<int>(std::ranges::find(left, engine_->rank()) - left.begin());
    auto const size = static_cast<int>(left.size());
    ++members_.number_;
    members_.new_ = false;
    members_.killed_ = engine_->size() - size;
    members_.came_ = {.due = true, .size = size, .rank = rank};
    engine_ = meet(members_.number_, rank, size, false);
    return true;
  }

  void end_with_error(std::exception_ptr const& failure) noexcept {
    try {
      engine_->abandon(sentence_of(failure));
    } catch (...) {  // no memory for the message: the others' waits end at their deadlines
    }
    last_report() = engine_->reports() ? report::by_this_process : report::by_another;
  }

  elastic how_;
  std::chrono::milliseconds deadline_;
  announcements home_;
  membership members_;
  std::shared_ptr<collective_engine> engine_;
};

}  // namespace detail
}  // namespace trireme::comm

namespace trireme {

/// Runs `body(world, members)` on every rank, as launch does, and again with other ranks each time that processes join
/// or leave:
///
///     launch(comm::processes{}, comm::elastic{.directory = "run.members"}, [&](auto& world, auto& members) {
///       auto trainer = make_trainer(model, optim::adamw{}, world);
///       members.take_over(trainer, [&] { if (checkpoint::exists("run")) trainer.load("run"); });
///       trainer.on_step([&](auto const&) { if (members.is_due()) trainer.request_stop(); });
///       auto const report = trainer.fit(data, options);
///       if (report.stopped && members.hand_over(trainer)) return;
///       trainer.save("run");
///     });
///
/// A process with comm::elastic{.join = true} needs no rank from a launcher. It becomes the last rank at the run's next
/// boundary, which is between two steps. The result is that of ending the run there and resuming it from a checkpoint
/// with the other number of ranks, bit for bit.
///
/// Ranks    processes of one machine. The state passes through shared memory (adr/0035).
/// Errors   as launch. If a rank is killed, the others call the body again, at most .attempts times. A process that
///          joins throws comm_error if the run has ended, or comes to no boundary before .deadline.
template <class Body>
requires std::invocable<Body&, comm::any_world&, comm::membership&>
void launch(comm::processes const& description, comm::elastic const& how, Body&& body) {
  comm::detail::elastic_launch launch(how, description.deadline);
  launch.run([&body](comm::any_world& world, comm::membership& members) { std::invoke(body, world, members); });
}

}  // namespace trireme
