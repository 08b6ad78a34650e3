#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "trireme/comm/detail/advance.hpp"
#include "trireme/comm/detail/colors.hpp"
#include "trireme/comm/detail/failure.hpp"
#include "trireme/comm/detail/group.hpp"
#include "trireme/comm/detail/shares.hpp"
#include "trireme/comm/threads.hpp"

// Bodies of threads.hpp (see core/compiled.hpp).

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

/// The cores that this thread may use.
[[nodiscard]] inline std::vector<int> usable_cores() {
  std::vector<int> cores;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
#endif
  if (cores.empty()) {
    cores.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

/// Keeps the calling thread on one core. Without effect where that is not allowed: it is an optimisation.
inline void stay_on([[maybe_unused]] int core) noexcept {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
#endif
}

TRIREME_BODY void check(threads const& description) {
  if (description.ranks < 1 || description.ranks > most_ranks)
    throw config_error(text("trireme::comm::threads: .ranks is ", description.ranks, "; choose 1 to ", most_ranks));
  if (description.deadline.count() < 1)
    throw config_error(text("trireme::comm::threads: .deadline is ", to_string(description.deadline),
                            "; give the ranks at least 1ms"));
}

TRIREME_BODY void run_ranks(threads const& description, std::function<void(int, threads_world&)> const& body) {
  check(description);
  auto const ranks = static_cast<std::size_t>(description.ranks);
  auto const cores = usable_cores();
  bool const core_each = ranks <= cores.size();
  auto const crew = std::make_shared<team>(description.ranks, core_each);
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  auto const members = std::make_shared<group>(crew, std::move(everyone), description.deadline);

  std::vector<std::exception_ptr> failures(ranks + 1);
  auto const run = [&](int rank) noexcept {
    auto& failure = failures[static_cast<std::size_t>(rank)];
    try {
      if (core_each && description.pin) stay_on(cores[static_cast<std::size_t>(rank)]);
      threads_world world(members, rank);
      body(rank, world);
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure != nullptr)
      crew->fail(rank, text("trireme::comm::threads: rank ", rank, " ended with an error: ", sentence_of(failure)));
    crew->ranks[static_cast<std::size_t>(rank)].left.store(true);
    crew->ring();
  };

  std::vector<std::thread> workers;
  workers.reserve(ranks);
  try {
    for (int rank = 0; rank < description.ranks; ++rank) workers.emplace_back(run, rank);
  } catch (...) {
    failures[ranks] = std::current_exception();
    crew->fail(description.ranks, text("trireme::comm::threads: rank ", workers.size(),
                                       " could not be started: ", sentence_of(failures[ranks])));
  }
  for (auto& each : workers) each.join();

  // The first in time; or, where that rank has dealt with it, the first in rank order.
  auto const first = crew->culprit();
  if (first >= 0 && failures[static_cast<std::size_t>(first)] != nullptr)
    std::rethrow_exception(failures[static_cast<std::size_t>(first)]);
  for (auto const& failure : failures)
    if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace trireme::comm::detail

namespace trireme::comm {

/// Gives the operation back if it is finished, whether it succeeded or not.
struct threads_request::releaser {
  threads_request& request;
  ~releaser() {
    if (request.op_->at == detail::operation::stage::finished) request.release();
  }
};

TRIREME_BODY bool threads_request::test() {
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

TRIREME_BODY void threads_request::wait() {
  if (op_ == nullptr) return;
  releaser const guard{*this};
  try {
    detail::wait_for(*op_);
  } catch (...) {
    op_->at = detail::operation::stage::finished;
    throw;
  }
}

TRIREME_BODY void threads_request::release() noexcept {
  auto const keep = std::move(op_->keep);  // what it belongs to may have ended, and end with it
  detail::dismiss(op_->mine(), *op_);
  op_ = nullptr;
}

TRIREME_BODY void threads_request::finish() noexcept {
  if (op_ == nullptr) return;
  try {
    if (std::uncaught_exceptions() > 0) expect_soon();
    wait();
  } catch (...) {  // the error has ended the whole launch, which reports it
  }
}

/// An exception is on its way out of this rank, and is told to the others when it has left the launch. They may wait
/// for this rank by then and never take their part in what is pending here, so they are not waited for that long.
TRIREME_BODY void threads_request::expect_soon() {
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

TRIREME_BODY threads_world::threads_world(std::shared_ptr<detail::group> members, int rank) noexcept
    : group_(std::move(members)), rank_(rank), size_(group_->size()) {}

TRIREME_BODY std::chrono::milliseconds threads_world::deadline() const noexcept { return group_->deadline; }

TRIREME_BODY void threads_world::run(command const& it) {
  if (it.what.kind == collective::exchange) {  // its list of transfers has memory of its own
    start(it).wait();
    return;
  }
  detail::operation op;
  op.counts = it.counts;
  post(op, it, it.parts.data());
  detail::wait_for(op);
}

TRIREME_BODY threads_request threads_world::start(command const& it) {
  auto& mine = group_->crew->ranks[static_cast<std::size_t>(group_->members[static_cast<std::size_t>(rank_)])];
  auto& op = detail::enlist(mine);
  try {
    op.kept_counts.assign(it.counts.begin(), it.counts.end());
    op.counts = op.kept_counts;
    op.kept_parts.assign(it.parts.begin(), it.parts.end());
    if (it.what.kind == collective::exchange)
      post_exchange(op, it);
    else
      post(op, it, op.kept_parts.data());
  } catch (...) {
    detail::dismiss(mine, op);
    throw;
  }
  op.keep = group_;
  return request(op);
}

TRIREME_BODY threads_world threads_world::split(int color, int key) {
  detail::expect_color(who, color);
  return regroup(collective::split, color, key, deadline());
}

TRIREME_BODY threads_world threads_world::duplicate(std::chrono::milliseconds deadline) {
  return regroup(collective::duplicate, 0, 0, deadline);
}

TRIREME_BODY void threads_world::abandon(std::string const& sentence) noexcept {
  try {
    auto const launched_as = group_->members[static_cast<std::size_t>(rank_)];
    group_->crew->fail(launched_as, text(who, ": rank ", launched_as, " ended with an error: ", sentence));
  } catch (...) {  // without memory for a sentence their deadlines end the waits
  }
}

TRIREME_BODY threads_world threads_world::regroup(collective kind, int color, int key,
                                                  std::chrono::milliseconds deadline) {
  auto const chosen = detail::ranks_of_color(collect(kind, dtype::i32, detail::color_and_key{color, key}), color);
  std::shared_ptr<detail::group> made;
  if (chosen.front() == rank_) {
    std::vector<int> members;
    for (int const rank : chosen) members.push_back(group_->members[static_cast<std::size_t>(rank)]);
    made = std::make_shared<detail::group>(group_->crew, std::move(members), deadline);
  }
  auto const groups = collect(kind, dtype::u64, made);
  auto const place = std::ranges::find(chosen, rank_) - chosen.begin();
  return {groups[static_cast<std::size_t>(chosen.front())], static_cast<int>(place)};
}

TRIREME_BODY bool threads_world::fits_in_posting(command const& it) const noexcept {
  if (it.elements == nullptr || !it.elements->touchable || it.what.shape != 0) return it.elements == nullptr;
  auto const whole = it.what.kind == collective::scatter ? it.what.count * size() : it.what.count;
  return static_cast<std::size_t>(whole) * it.element_bytes <= detail::posting::value_bytes;
}

TRIREME_BODY void threads_world::prepare(detail::operation& op, command const& it) {
  op.where = group_.get();
  op.what = it.what;
  op.rank = rank_;
  op.elements = it.elements;
  op.element_bytes = it.element_bytes;
  op.divisor = it.divisor;
  op.from_ = it.from;
  op.own = it.to;
  if (group_->crew->failed()) detail::throw_failure(op);
  if (it.elements != nullptr && it.elements->complete != nullptr) it.elements->complete();  // others read it now
}

TRIREME_BODY void threads_world::post(detail::operation& op, command const& it, part const* parts) {
  prepare(op, it);
  op.what.by_value = op.collect == nullptr && fits_in_posting(it);
  op.number = group_->boxes[static_cast<std::size_t>(rank_)].claim([this] { return group_->lowest_unfinished(); });
  auto& posting = group_->at(rank_, op.number);
  posting.what = op.what;
  if (!op.what.by_value) {
    posting.memory = {it.from, it.to, parts};
  } else if (it.what.kind == collective::scatter) {
    if (rank_ == it.what.root)
      std::memcpy(posting.values, it.from, static_cast<std::size_t>(it.what.count * size()) * it.element_bytes);
  } else if (it.what.count > 0) {
    std::memcpy(posting.values, it.from, static_cast<std::size_t>(it.what.count) * it.element_bytes);
  }
  posting.word.store(detail::arrived_word(op.number));
  group_->crew->ring();
}

TRIREME_BODY void threads_world::post_exchange(detail::operation& op, command const& it) {
  prepare(op, it);
  for (auto const& each : it.parts) {
    auto& way = each.sent ? group_->between(rank_, each.peer) : group_->between(each.peer, rank_);
    op.transfers.push_back({each, each.sent ? way.post(each) : way.expect()});
  }
  group_->crew->ring();
}

TRIREME_BODY void threads_world::show(collective kind, dtype type, void const* mine, void* all,
                                      void (*take)(void*, int, void const*)) {
  detail::operation op;
  op.collect = take;
  post(op, {.what = {kind, type}, .from = mine, .to = all}, nullptr);
  detail::wait_for(op);
}

}  // namespace trireme::comm
