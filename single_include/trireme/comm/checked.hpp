// Trireme 0.1.0: trireme/comm/checked.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 95e3b346a8c7668416609f0a8cd4538db38c8bde86890ed48d531c352e08779d
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/decorate.hpp"

// ---- trireme/comm/checked.hpp
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::comm {

namespace detail {

/// What a rank sends to another about the call that it is about to make. Trivially copyable.
struct intent {
  std::uint64_t group = 0;  ///< 0: the world that was decorated
  std::uint64_t number = 0;
  call what;
  std::int64_t sends = 0;  ///< ragged all_to_all: elements to the receiver of this intent
  std::int64_t expects = 0;
  std::int32_t size = 0;   ///< ranks of the group
  std::int32_t first = 0;  ///< its rank 0
};

/// @param other  a call that differs.
[[nodiscard]] inline std::string describe(intent const& it, call const& other) {
  auto const where =
      it.group == 0 ? std::string("the whole world")
                    : text("group ", it.group % 10000, " (", how_many(it.size, "rank"), " from rank ", it.first, ")");
  return text(labelled_call(it.what, other), " as call number ", it.number, " on ", where);
}

[[nodiscard]] inline std::string describe(intent const& it) { return describe(it, it.what); }

/// The world through which a checked world and all worlds split from it compare calls, and what each rank has received.
/// Each pair of ranks exchanges one intent each way per call, in the order of the calls, whatever their group.
template <class World>
class call_checker {
 public:
  call_checker(World world, std::vector<std::int32_t> names, std::chrono::milliseconds patience)
      : world_(std::move(world)),
        names_(std::move(names)),
        patience_(patience),
        last_intents_(names_.size()),
        intents_(names_.size()) {}

  [[nodiscard]] int rank() const noexcept { return world_.rank(); }
  [[nodiscard]] std::chrono::milliseconds patience() const noexcept { return patience_; }

  /// Returns when all `members` (ranks here, in the order of the group) have called `mine`; otherwise ends the waits of
  /// all ranks and throws. `prepare(member, intent)` completes the intent for one member.
  template <class Prepare>
  void compare(intent const& mine, std::vector<std::int32_t> const& members, Prepare const& prepare) {
    auto const since = clock::now();
    std::vector<waiting>& open = open_;
    open.clear();
    try {
      for (std::size_t place = 0; place < members.size(); ++place) {
        auto const peer = members[place];
        if (peer == rank()) continue;
        auto& box = intents_[static_cast<std::size_t>(peer)];
        box.mine = mine;
        prepare(static_cast<int>(place), box.mine);
        auto* const out = reinterpret_cast<std::byte*>(&box.mine);
        auto* const in = reinterpret_cast<std::byte*>(&box.theirs);
        // Not through the typed calls: their list of parts may be that of the command that is being checked.
        raw_transfer const both[] = {{peer, true, dtype::u8, sizeof(intent), out},
                                     {peer, false, dtype::u8, sizeof(intent), in}};
        open.push_back({peer, world_.submit(command{.what = {.kind = collective::exchange},
                                                    .elements = &moving_kernels<host>,
                                                    .raw_transfers = both})});
      }
      for (std::uint32_t round = 1; !all_arrived(open); ++round) pause(round, since, open);
    } catch (disagreement const& found) {
      give_up(found.sentence, mine);
    } catch (comm_error const& problem) {
      std::string const what = problem.what();
      if (what.find("trireme::comm::checked") != std::string::npos || open.empty()) throw;
      auto const sentence =
          text("trireme::comm::checked: ", called(rank(), mine), ", but some ranks did not:  ", what, last_calls(open));
      open.clear();
      throw comm_error(sentence, {names_[static_cast<std::size_t>(rank())], std::string(name_of(mine.what.kind))});
    }
  }

 private:
  struct intent_pair {
    intent mine, theirs;
  };
  struct waiting {
    int peer;
    decltype(std::declval<World&>().submit(std::declval<command const&>())) pending;
  };
  struct disagreement {
    std::string sentence;
  };

  [[nodiscard]] std::string called(int rank, intent const& it) const { return called(rank, it, it.what); }
  [[nodiscard]] std::string called(int rank, intent const& it, call const& other) const {
    return text("rank ", names_[static_cast<std::size_t>(rank)], " called ", describe(it, other));
  }

  /// Compares the intents that have arrived, and removes them from `open`. Returns whether none is left.
  [[nodiscard]] bool all_arrived(std::vector<waiting>& open) {
    for (std::size_t i = 0; i < open.size();) {
      if (!open[i].pending.test()) {
        ++i;
        continue;
      }
      auto const peer = open[i].peer;
      std::swap(open[i], open.back());
      open.pop_back();
      auto const& [mine, theirs] = intents_[static_cast<std::size_t>(peer)];
      last_intents_[static_cast<std::size_t>(peer)] = theirs;
      bool const same = mine.group == theirs.group && mine.number == theirs.number && mine.what == theirs.what;
      if (same && mine.sends == theirs.expects && mine.expects == theirs.sends) continue;
      auto sentence = text("trireme::comm::checked: calls differ between ranks: ",
                           rank() < peer ? called(rank(), mine, theirs.what) : called(peer, theirs, mine.what), ", ",
                           rank() < peer ? called(peer, theirs, mine.what) : called(rank(), mine, theirs.what));
      if (same)
        sentence += text("; rank ", names_[static_cast<std::size_t>(rank())], " sends ", mine.sends,
                         " elements and expects ", mine.expects, ", rank ", names_[static_cast<std::size_t>(peer)],
                         " expects ", theirs.expects, " and sends ", theirs.sends);
      throw disagreement{sentence.append(remedy_of(mine.what, theirs.what))};
    }
    return open.empty();
  }

  /// Spins, then sleeps, for at most the patience.
  void pause(std::uint32_t round, clock::time_point since, std::vector<waiting> const& open) {
    if (round < 64) return pause_core();
    auto const waited = clock::now() - since;
    if (waited > patience_) throw disagreement{missing_sentence(open)};
    rest(waited);
  }

  [[nodiscard]] std::string last_calls(std::vector<waiting> const& open) const {
    std::string out;
    for (auto const& each : open) {
      auto const& last = last_intents_[static_cast<std::size_t>(each.peer)];
      auto const name = names_[static_cast<std::size_t>(each.peer)];
      out += last.number == 0 ? text("; rank ", name, " has made no call yet")
                              : text("; the last call of rank ", name, " was ", describe(last));
    }
    return out;
  }
  [[nodiscard]] std::string missing_sentence(std::vector<waiting> const& open) const {
    std::vector<std::int32_t> missing;
    for (auto const& each : open) missing.push_back(names_[static_cast<std::size_t>(each.peer)]);
    return text("trireme::comm::checked: ", called(rank(), intents_[static_cast<std::size_t>(open[0].peer)].mine),
                ", but ", list_of("rank", missing), " did not call it within ", to_string(patience_), last_calls(open),
                "; make every rank call the same collectives, or raise comm::checked{.patience}");
  }

  [[noreturn]] void give_up(std::string const& sentence, intent const& mine) {
    if constexpr (requires { world_.abandon(sentence); }) world_.abandon(sentence);
    open_.clear();  // waits for them: not at all if abandon has ended all waits, else until the deadline
    throw comm_error(sentence, {names_[static_cast<std::size_t>(rank())], std::string(name_of(mine.what.kind))});
  }

  World world_;
  std::vector<std::int32_t> names_;  ///< by rank here
  std::chrono::milliseconds patience_;
  std::vector<intent> last_intents_;  ///< the last one from each rank
  std::vector<intent_pair> intents_;
  std::vector<waiting> open_;
};

}  // namespace detail

template <communicator Inner>
class checked_world;

/// Decorator: before every collective all ranks compare their calls.
///
/// Errors   config_error if the patience is under 1 ms.
struct checked {
  using is_decorator_description = void;
  template <class Inner>
  using world = checked_world<Inner>;

  std::chrono::milliseconds patience = std::chrono::seconds(1);  ///< how far apart the calls of ranks may be

  friend bool operator==(checked const&, checked const&) = default;
};

[[nodiscard]] inline std::string to_string(checked const& it) {
  return text("comm::checked{.patience = ", to_string(it.patience), "}");
}

/// A world where a collective starts once all of its ranks have called it with the same kind, type, count, reduction
/// and root, as the same call of the same group. If a rank calls another collective, or none within the patience, every
/// rank gets an error that names both ranks, both calls and their numbers; of a missing rank, its last call.
///
/// Starting a collective synchronises, also in the `_async` forms: a start returns when all ranks have started. So a
/// rank that is more than `patience` late for a good reason is an error too, and an exchange that another rank needs
/// before it can start must be started first. Exchanges do not synchronise; the engine checks them for each pair of
/// ranks. Worlds that are split from a checked world are compared together: two ranks that share several groups must
/// call them in one order, and calls on different groups are detected at once. A duplicate is compared on its own,
/// because its calls have an order of their own; if its deadline is longer than the original's, its patience is at
/// least that deadline.
///
/// Bytes    its own messages are not counted; each pair of ranks exchanges 64 bytes each way per call. On two threads
///          that takes about 1 us: 8 % of an all_reduce of 1 MiB (13 us), seven times one of 4 bytes.
/// Threads  one caller a rank, also of all worlds split from one another.
/// Errors   comm_error on every rank within the patience, if the engine can end the waits of others (as threads, mpi
///          and processes can); otherwise on the ranks that wait for the missing one.
/// @models  communicator, and every capability that Inner has. Inner needs exchange in host memory.
template <communicator Inner>
class checked_world : public detail::decorator<checked_world<Inner>, Inner> {
  using base = detail::decorator<checked_world, Inner>;
  using call_checker = detail::call_checker<detail::undecorated_t<Inner>>;
  static_assert(has_exchange<detail::undecorated_t<Inner>, host>,
                "trireme::comm::checked: needs a communicator with exchange in host memory, to compare calls; "
                "this one has none.");

 public:
  static constexpr std::string_view name = "checked";

  explicit checked_world(Inner inner, checked const& how = {})
      : base(std::move(inner)), checker_ranks_(detail::first_ranks(this->size())), checker_(apart(patience_of(how))) {}
  checked_world(Inner inner, checked_world const& parent, detail::descent how, int color)
      : base(std::move(inner), parent, how) {
    if (how == detail::descent::duplicate) {
      checker_ranks_ = detail::first_ranks(this->size());
      group_ = parent.group_;
      checker_ = apart(patience_after(parent));
      return;
    }
    checker_ = parent.checker_;
    group_ = mix(parent.group_ + mix(parent.number_ * 4096 + static_cast<std::uint64_t>(color))) | 1U;
    checker_ranks_ = detail::first_ranks(this->size());
    checker_ranks_[static_cast<std::size_t>(this->rank())] = checker_->rank();
    detail::undecorated(this->inner()).all_gather(tensor_view{checker_ranks_});
  }

  template <class F>
  decltype(auto) around(command const& it, F&& f) {
    if (it.what.kind != collective::exchange && this->size() > 1) check_call(it);
    return f();
  }

 private:
  static std::chrono::milliseconds patience_of(checked const& how) {
    if (how.patience.count() < 1)
      throw config_error(
          text("trireme::comm::checked: .patience is ", to_string(how.patience), "; give the ranks at least 1ms"));
    return how.patience;
  }
  // A duplicate with a longer deadline expects late ranks.
  [[nodiscard]] std::chrono::milliseconds patience_after(checked_world const& parent) {
    auto const patience = parent.checker_->patience();
    if constexpr (requires { this->deadline(); }) {
      if (this->deadline() > parent.deadline()) return std::max(patience, this->deadline());
    }
    return patience;
  }
  [[nodiscard]] std::shared_ptr<call_checker> apart(std::chrono::milliseconds patience) {
    return std::make_shared<call_checker>(detail::undecorated(this->inner()).duplicate(), this->names(), patience);
  }

  void check_call(command const& it) {
    detail::intent const mine{.group = group_,
                              .number = ++number_,
                              .what = it.what,
                              .sends = 0,
                              .expects = 0,
                              .size = this->size(),
                              .first = this->name_of_rank(0)};
    bool const ragged = it.what.kind == collective::all_to_all && it.what.shape != 0;
    checker_->compare(mine, checker_ranks_, [&](int member, detail::intent& sent_intent) {
      if (!ragged) return;
      sent_intent.sends = it.raw_transfers[static_cast<std::size_t>(member)].count;
      sent_intent.expects = it.raw_transfers[static_cast<std::size_t>(this->size() + member)].count;
    });
  }

  std::vector<std::int32_t> checker_ranks_;  ///< the ranks of this group, as the comparing world numbers them
  std::shared_ptr<call_checker> checker_;
  std::uint64_t group_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace trireme::comm
