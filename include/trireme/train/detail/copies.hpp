#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/parallel/broadcast.hpp"
#include "trireme/parallel/distinct_lists.hpp"
#include "trireme/train/state_shard.hpp"

namespace trireme::detail {

/// Which of this rank's tensors other ranks keep as well. Recomputed only when the set of kept tensors changes.
struct copy_holders {
  struct holders {
    int first = 0;  ///< rank
    std::int64_t ranks = 0;
  };
  std::uint64_t of = 0;  ///< hash of the list of tensors that this rank keeps; 0: not known yet
  std::unordered_map<std::uint64_t, holders> shared;  ///< the tensors that several ranks keep
};

/// The beginning of an error sentence about differing copies, and the remedy it gives.
struct copies_words {
  std::string_view who = "trireme::trainer";
  std::string_view remedy = "load a checkpoint, or call broadcast()";
};

/// Hashes of the tensors that a rank keeps, by name and position: ranks that keep the same elements must have the same
/// numbers.
class kept_copies {
 public:
  void add(std::span<state_shard const> shards) {
    for (auto const& each : shards) {
      if (!each.of_rank) add(each);
    }
  }
  void add(state_shard const& shard) {
    auto const& part = shard.box;
    auto const key = hash_name(
        text(shard.name, "@", to_string(part.first), to_string(part.extents), shard.first, "+", shard.size()));
    if (!at_.emplace(key, names_.size()).second) return;
    keys_.push_back(key);
    hashes_.push_back(shard.hash(0, shard.size(), 0, 0));
    names_.push_back(shard.name);
  }

  /// Collective. Throws numeric_error on every rank if two ranks' copies of a tensor differ. The sentence names the
  /// tensor, and the rank whose copy differs from all others if there are at least three copies and only one such rank.
  ///
  /// Method   each copy adds a hash of its numbers, and the first rank that keeps it subtracts its own hash once for
  ///          each copy. The sum over all ranks is 0 if all copies are equal (and, with probability 2^-64, if some are
  ///          not).
  /// Bytes    one all_reduce of two numbers. Which ranks keep what is exchanged when that changes; the hashes
  ///          themselves are gathered only if there is a difference.
  template <class Comm>
  void expect_equal(Comm& world, copy_holders& holders, copies_words const& words = {}) const {
    if (world.size() == 1) return;
    auto const own = std::max<std::uint64_t>(1, parallel::hash_words(keys_));
    for (;;) {
      std::uint64_t numbers[2] = {holders.of == own ? 0U : 1U, 0};
      if (holders.of == own) numbers[1] = difference(world.rank(), holders);
      world.all_reduce(tensor_view<std::uint64_t>(numbers, shape{2}), reduction::sum{});
      if (numbers[0] == 0 && numbers[1] == 0) return;
      if (numbers[0] == 0) throw numeric_error(sentence_for_all(world, words));
      holders = find_holders(world, own);
    }
  }

 private:
  /// The copies on other ranks of one of this rank's tensors.
  struct others {
    std::int64_t alike = 0;
    std::int64_t unlike = 0;
    int first = -1;  ///< a rank whose copy differs, and its hash
    std::uint64_t hash = 0;
    bool agree = true;  ///< whether all copies that differ from this one are equal to each other

    void add(int rank, std::uint64_t theirs, std::uint64_t own) {
      if (theirs == own) {
        ++alike;
        return;
      }
      agree = agree && (unlike == 0 || theirs == hash);
      if (++unlike == 1 || rank < first) {
        first = rank;
        hash = theirs;
      }
    }
  };

  [[nodiscard]] std::uint64_t difference(int rank, copy_holders const& holders) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      auto const found = holders.shared.find(keys_[i]);
      if (found == holders.shared.end()) continue;
      auto const one = mix(hashes_[i] ^ keys_[i]);
      sum += found->second.first == rank ? one * (1 - static_cast<std::uint64_t>(found->second.ranks)) : one;
    }
    return sum;
  }

  // Collective. Tensors of one kind ("value/", "moment/") are sent as one list, since ranks often have the same one.
  template <class Comm>
  [[nodiscard]] copy_holders find_holders(Comm& world, std::uint64_t own) const {
    std::map<std::string_view, parallel::word_list> kinds;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      std::string_view const name = names_[i];
      auto const slash = name.find('/');
      kinds[slash == name.npos ? std::string_view() : name.substr(0, std::min(slash, name.find('.')))].push_back(
          keys_[i]);
    }
    std::vector<parallel::word_list> lists;
    for (auto& each : kinds) lists.push_back(std::move(each.second));
    copy_holders out{own, {}};
    for (auto const& list : parallel::distinct_lists(world, lists)) {
      for (auto const key : list.words) {
        if (!at_.contains(key)) continue;
        auto& here = out.shared.try_emplace(key, copy_holders::holders{list.first, 0}).first->second;
        here.first = std::min(here.first, list.first);
        here.ranks += list.ranks;
      }
    }
    std::erase_if(out.shared, [](auto const& each) { return each.second.ranks == 1; });
    return out;
  }

  // Collective, called where copies differ: all ranks' hashes are gathered in blocks, and one rank writes the sentence.
  template <class Comm>
  [[nodiscard]] std::string sentence_for_all(Comm& world, copies_words const& words) const {
    constexpr std::size_t at_a_time = 512;
    auto most = static_cast<std::int64_t>(keys_.size());
    world.all_reduce(tensor_view<std::int64_t>(&most, shape{1}), reduction::max{});
    std::vector<others> seen(names_.size());
    std::vector<std::uint64_t> table(2 * at_a_time * static_cast<std::size_t>(world.size()));  // keys and hashes
    for (std::size_t begin = 0; begin < static_cast<std::size_t>(most); begin += at_a_time) {
      auto* const mine = table.data() + 2 * at_a_time * static_cast<std::size_t>(world.rank());
      std::fill_n(mine, 2 * at_a_time, 0);
      for (std::size_t i = begin; i < std::min(begin + at_a_time, keys_.size()); ++i) {
        mine[2 * (i - begin)] = keys_[i];
        mine[2 * (i - begin) + 1] = hashes_[i];
      }
      world.all_gather(tensor_view<std::uint64_t>(table));
      for (std::size_t i = 0; i < table.size(); i += 2) {
        auto const rank = static_cast<int>(i / (2 * at_a_time));
        auto const own = rank == world.rank() ? at_.end() : at_.find(table[i]);
        if (own != at_.end()) seen[own->second].add(rank, table[i + 1], hashes_[own->second]);
      }
    }
    // Of the ranks that see a difference, the one whose copy has the fewest equals reports it.
    std::size_t odd = names_.size();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (seen[i].unlike > 0 && (odd == names_.size() || seen[i].alike < seen[odd].alike)) odd = i;
    }
    std::int64_t speaker =
        odd == names_.size() ? std::numeric_limits<std::int64_t>::max() : seen[odd].alike * world.size() + world.rank();
    world.all_reduce(tensor_view<std::int64_t>(&speaker, shape{1}), reduction::min{});
    auto const rank = static_cast<int>(speaker % world.size());
    return parallel::detail::value_of_rank(
        world, rank, rank == world.rank() ? sentence(odd, rank, seen[odd], words) : std::string());
  }
  [[nodiscard]] std::string sentence(std::size_t item, int rank, others const& seen, copies_words const& words) const {
    bool const alone = seen.alike == 0 && seen.unlike > 1 && seen.agree;
    auto const what = alone ? text("the copy of \"", names_[item], "\" on rank ", rank,
                                   " differs from those of the other ", how_many(seen.unlike, "rank"),
                                   " that keep it: it was changed there alone, or that machine rounds ")
                            : text("the copies of \"", names_[item], "\" on ranks ", std::min(rank, seen.first),
                                   " and ", std::max(rank, seen.first),
                                   " differ: they were changed on one of them alone, or their machines round ");
    return text(words.who, ": ", what, "differently; ", words.remedy);
  }

  std::unordered_map<std::uint64_t, std::size_t> at_;
  parallel::word_list keys_, hashes_;
  std::vector<std::string> names_;
};

}  // namespace trireme::detail
