#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/detail/waiting.hpp"

namespace trireme::comm::detail {

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
  auto const where = it.group == 0 ? std::string("the whole world")
                                   : text("group ", it.group % 10000, " (", it.size, it.size == 1 ? " rank" : " ranks",
                                          " from rank ", it.first, ")");
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
    std::string missing;
    for (auto const& each : open)
      missing += text(missing.empty() ? "" : ", ", names_[static_cast<std::size_t>(each.peer)]);
    return text("trireme::comm::checked: ", called(rank(), mail_[static_cast<std::size_t>(open[0].peer)].mine),
                ", but ", open.size() == 1 ? "rank " : "ranks ", missing, " did not call it within ",
                to_string(patience_), last_calls(open),
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

}  // namespace trireme::comm::detail
