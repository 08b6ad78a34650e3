// Trireme 0.1.0: trireme/comm/checked.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 36ee667d3c8c90e8e7238fd8cbbbbd875e960ad47ca043ed9f6b2accbfb07e64
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

/// What a rank tells another about the call that it is about to make. Plain bytes.
struct intent {
  std::uint64_t group = 0;  ///< 0: the world that was decorated
  std::uint64_t number = 0;
  call what;
  std::int64_t sends = 0;  ///< ragged all_to_all: elements to the one who is told
  std::int64_t expects = 0;
  std::int32_t size = 0;   ///< ranks of the group
  std::int32_t first = 0;  ///< its rank 0
};

[[nodiscard]] inline std::string describe(intent const& it) {
  auto const where =
      it.group == 0 ? std::string("the whole world")
                    : text("group ", it.group % 10000, " (", how_many(it.size, "rank"), " from rank ", it.first, ")");
  return text(to_string(it.what), " as call number ", it.number, " on ", where);
}

/// The world through which a checked world and all worlds split from it compare calls, and what has been received.
/// Between each two ranks it carries one intent a call each way, in the order of the calls, of whichever group.
template <class World>
class agreement {
 public:
  agreement(World world, std::vector<std::int32_t> names, std::chrono::milliseconds patience)
      : world_(std::move(world)),
        names_(std::move(names)),
        patience_(patience),
        heard_(names_.size()),
        mail_(names_.size()) {}

  [[nodiscard]] int rank() const noexcept { return world_.rank(); }
  [[nodiscard]] std::chrono::milliseconds patience() const noexcept { return patience_; }

  /// Returns when every one of `members` (ranks here, in the order of the group) has called `mine`; otherwise ends
  /// everybody's waits and throws. `tell(member, intent)` completes the intent for one member.
  template <class Tell>
  void reach(intent const& mine, std::vector<std::int32_t> const& members, Tell const& tell) {
    auto const since = clock::now();
    std::vector<waiting>& open = open_;
    open.clear();
    try {
      for (std::size_t place = 0; place < members.size(); ++place) {
        auto const peer = members[place];
        if (peer == rank()) continue;
        auto& box = mail_[static_cast<std::size_t>(peer)];
        box.mine = mine;
        tell(static_cast<int>(place), box.mine);
        auto* const out = reinterpret_cast<std::byte*>(&box.mine);
        auto* const in = reinterpret_cast<std::byte*>(&box.theirs);
        // Not through the typed face, whose list of parts may be that of the command that is being checked.
        part const both[] = {{peer, true, dtype::u8, sizeof(intent), out},
                             {peer, false, dtype::u8, sizeof(intent), in}};
        open.push_back(
            {peer, world_.submit(command{
                       .what = {.kind = collective::exchange}, .elements = &moving_kernels<host>, .parts = both})});
      }
      for (std::uint32_t round = 1; !all_arrived(open); ++round) pause(round, since, open);
    } catch (disagreement const& found) {
      give_up(found.sentence, mine);
    } catch (comm_error const& problem) {
      std::string const what = problem.what();
      if (what.find("trireme::comm::checked") != std::string::npos || open.empty()) throw;
      auto const sentence =
          text("trireme::comm::checked: ", called(rank(), mine), ", but not everyone did: ", what, last_calls(open));
      open.clear();
      throw comm_error(sentence, {names_[static_cast<std::size_t>(rank())], std::string(name_of(mine.what.kind))});
    }
  }

 private:
  struct letter {
    intent mine, theirs;
  };
  struct waiting {
    int peer;
    decltype(std::declval<World&>().submit(std::declval<command const&>())) pending;
  };
  struct disagreement {
    std::string sentence;
  };

  [[nodiscard]] std::string called(int rank, intent const& it) const {
    return text("rank ", names_[static_cast<std::size_t>(rank)], " called ", describe(it));
  }

  /// Compares the intents that have come, and removes them from `open`; whether none is left.
  [[nodiscard]] bool all_arrived(std::vector<waiting>& open) {
    for (std::size_t i = 0; i < open.size();) {
      if (!open[i].pending.test()) {
        ++i;
        continue;
      }
      auto const peer = open[i].peer;
      std::swap(open[i], open.back());
      open.pop_back();
      auto const& [mine, theirs] = mail_[static_cast<std::size_t>(peer)];
      heard_[static_cast<std::size_t>(peer)] = theirs;
      bool const same = mine.group == theirs.group && mine.number == theirs.number && mine.what == theirs.what;
      if (same && mine.sends == theirs.expects && mine.expects == theirs.sends) continue;
      auto sentence = text("trireme::comm::checked: calls differ between ranks: ",
                           rank() < peer ? called(rank(), mine) : called(peer, theirs), ", ",
                           rank() < peer ? called(peer, theirs) : called(rank(), mine));
      if (same)
        sentence += text("; rank ", names_[static_cast<std::size_t>(rank())], " sends ", mine.sends,
                         " elements and expects ", mine.expects, ", rank ", names_[static_cast<std::size_t>(peer)],
                         " expects ", theirs.expects, " and sends ", theirs.sends);
      throw disagreement{sentence + "; make every rank call the same collectives in the same order"};
    }
    return open.empty();
  }

  /// Spins, then rests, for no longer than the patience.
  void pause(std::uint32_t round, clock::time_point since, std::vector<waiting> const& open) {
    if (round < 64) return pause_core();
    auto const waited = clock::now() - since;
    if (waited > patience_) throw disagreement{missing_sentence(open)};
    rest(waited);
  }

  [[nodiscard]] std::string last_calls(std::vector<waiting> const& open) const {
    std::string out;
    for (auto const& each : open) {
      auto const& last = heard_[static_cast<std::size_t>(each.peer)];
      auto const name = names_[static_cast<std::size_t>(each.peer)];
      out += last.number == 0 ? text("; rank ", name, " has made no call yet")
                              : text("; the last call of rank ", name, " was ", describe(last));
    }
    return out;
  }
  [[nodiscard]] std::string missing_sentence(std::vector<waiting> const& open) const {
    std::vector<std::int32_t> missing;
    for (auto const& each : open) missing.push_back(names_[static_cast<std::size_t>(each.peer)]);
    return text("trireme::comm::checked: ", called(rank(), mail_[static_cast<std::size_t>(open[0].peer)].mine),
                ", but ", list_of("rank", missing), " did not call it within ", to_string(patience_), last_calls(open),
                "; make every rank call the same collectives, or raise comm::checked{.patience}");
  }

  [[noreturn]] void give_up(std::string const& sentence, intent const& mine) {
    if constexpr (requires { world_.abandon(sentence); }) world_.abandon(sentence);
    open_.clear();  // waits for them: at once where abandon has ended all waits, else until the deadline
    throw comm_error(sentence, {names_[static_cast<std::size_t>(rank())], std::string(name_of(mine.what.kind))});
  }

  World world_;
  std::vector<std::int32_t> names_;  ///< by rank here
  std::chrono::milliseconds patience_;
  std::vector<intent> heard_;  ///< the last one from each rank
  std::vector<letter> mail_;
  std::vector<waiting> open_;
};

}  // namespace detail

template <communicator Inner>
class checked_world;

/// Decorator: before every collective all ranks make sure that they mean the same one.
///
/// Errors  config_error if there is no patience.
struct checked {
  using is_decorator_description = void;
  template <class Inner>
  using world = checked_world<Inner>;

  std::chrono::milliseconds patience = std::chrono::seconds(1);  ///< by how much ranks may be apart

  friend bool operator==(checked const&, checked const&) = default;
};

[[nodiscard]] inline std::string to_string(checked const& it) {
  return text("comm::checked{.patience = ", to_string(it.patience), "}");
}

/// A world where a collective starts once all of its ranks have asked for it: the same kind, type, count, reduction and
/// root, as the same call of the same group. A rank that asks for another, or for none within the patience, is an error
/// on every rank that names both ranks, both calls and their numbers; of a missing rank, the last call that it made.
///
/// Starting a collective synchronises, also in the `_async` forms: a start returns when all ranks have started. So a
/// rank that is later than `patience` for good reasons is an error too, and an exchange that another rank needs before
/// it can start must itself be started before. Exchanges do not synchronise; the engine checks them, a pair of ranks at
/// a time. Worlds that are split from a checked world are compared together: two ranks that share several groups call
/// them in one order, and calls on different groups are told apart at once. A duplicate is compared apart, as its calls
/// are ordered apart; if its deadline is longer than the original's, its patience is at least that deadline.
///
/// Bytes    its own messages are not counted; each two ranks exchange 64 bytes each way a call. On two threads that
///          takes about 1 us: 8 % of an all_reduce of 1 MiB (13 us), seven times one of 4 bytes.
/// Threads  one caller a rank, also of all worlds split from one another.
/// Errors   comm_error on every rank within the patience, if the engine can end the waits of others (as threads, mpi
///          and processes can); otherwise on the ranks that wait for the missing one.
/// @models  communicator, and every capability that Inner has, which needs exchange in host memory.
template <communicator Inner>
class checked_world : public detail::decorator<checked_world<Inner>, Inner> {
  using base = detail::decorator<checked_world, Inner>;
  using agreement = detail::agreement<detail::undecorated_t<Inner>>;
  static_assert(
      has_exchange<detail::undecorated_t<Inner>, host>,
      "trireme::comm::checked: ranks agree through an exchange in host memory, which this communicator lacks.");

 public:
  static constexpr std::string_view name = "checked";

  explicit checked_world(Inner inner, checked const& how = {})
      : base(std::move(inner)), places_(detail::first_ranks(this->size())), agreement_(apart(patience_of(how))) {}
  checked_world(Inner inner, checked_world const& parent, detail::descent how, int color)
      : base(std::move(inner), parent, how) {
    if (how == detail::descent::duplicate) {
      places_ = detail::first_ranks(this->size());
      group_ = parent.group_;
      agreement_ = apart(patience_after(parent));
      return;
    }
    agreement_ = parent.agreement_;
    group_ = mix(parent.group_ + mix(parent.number_ * 4096 + static_cast<std::uint64_t>(color))) | 1U;
    places_ = detail::first_ranks(this->size());
    places_[static_cast<std::size_t>(this->rank())] = agreement_->rank();
    detail::undecorated(this->inner()).all_gather(tensor_view{places_});
  }

  template <class F>
  decltype(auto) around(command const& it, F&& f) {
    if (it.what.kind != collective::exchange && this->size() > 1) agree(it);
    return f();
  }

 private:
  static std::chrono::milliseconds patience_of(checked const& how) {
    if (how.patience.count() < 1)
      throw config_error(
          text("trireme::comm::checked: .patience is ", to_string(how.patience), "; give the ranks at least 1ms"));
    return how.patience;
  }
  // Who gives a duplicate a longer deadline has a reason why ranks may be late there.
  [[nodiscard]] std::chrono::milliseconds patience_after(checked_world const& parent) {
    auto const patience = parent.agreement_->patience();
    if constexpr (requires { this->deadline(); }) {
      if (this->deadline() > parent.deadline()) return std::max(patience, this->deadline());
    }
    return patience;
  }
  [[nodiscard]] std::shared_ptr<agreement> apart(std::chrono::milliseconds patience) {
    return std::make_shared<agreement>(detail::undecorated(this->inner()).duplicate(), this->names(), patience);
  }

  void agree(command const& it) {
    detail::intent const mine{.group = group_,
                              .number = ++number_,
                              .what = it.what,
                              .sends = 0,
                              .expects = 0,
                              .size = this->size(),
                              .first = this->name_of_rank(0)};
    bool const ragged = it.what.kind == collective::all_to_all && it.what.shape != 0;
    agreement_->reach(mine, places_, [&](int member, detail::intent& told) {
      if (!ragged) return;
      told.sends = it.parts[static_cast<std::size_t>(member)].count;
      told.expects = it.parts[static_cast<std::size_t>(this->size() + member)].count;
    });
  }

  std::vector<std::int32_t> places_;  ///< the ranks of this group, as the agreement numbers them
  std::shared_ptr<agreement> agreement_;
  std::uint64_t group_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace trireme::comm
