#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/parallel/agreement.hpp"
#include "trireme/train/state_piece.hpp"

namespace trireme::detail {

/// Hashes of the tensors that a rank keeps, by what they are and where in them they lie: ranks that keep the same must
/// have the same numbers.
class kept_copies {
 public:
  void add(state_piece const& piece) {
    auto const& part = piece.part;
    auto const box =
        text(piece.name, "@", to_string(part.first), to_string(part.extents), piece.first, "+", piece.size());
    at_.emplace(hash_name(box), names_.size());
    keys_.push_back(hash_name(box));
    hashes_.push_back(piece.hash(0, piece.size(), 0, 0));
    names_.push_back(piece.name);
  }

  /// Collective. Throws numeric_error on every rank if two ranks' copies of a tensor differ; the sentence names it, and
  /// the rank whose copy is unlike all others, if there are at least three and only one such.
  ///
  /// Bytes    an all_reduce of all hashes of each rank, one rank after the other.
  template <class Comm>
  void expect_equal(Comm& world) const {
    if (world.size() == 1) return;
    std::vector<std::int64_t> counts(static_cast<std::size_t>(world.size()));
    counts[static_cast<std::size_t>(world.rank())] = static_cast<std::int64_t>(keys_.size());
    world.all_reduce(tensor_view<std::int64_t>(counts), reduction::sum{});
    std::vector<others> seen(names_.size());
    std::vector<std::uint64_t> theirs;
    for (int rank = 0; rank < world.size(); ++rank) {
      auto const count = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]);
      if (count == 0) continue;
      theirs.assign(2 * count, 0);
      if (rank == world.rank()) {
        std::copy(keys_.begin(), keys_.end(), theirs.begin());
        std::copy(hashes_.begin(), hashes_.end(), theirs.begin() + static_cast<std::ptrdiff_t>(count));
      }
      world.all_reduce(tensor_view<std::uint64_t>(theirs), reduction::sum{});
      for (std::size_t i = 0; i < count && rank != world.rank(); ++i) {
        auto const own = at_.find(theirs[i]);
        if (own != at_.end()) seen[own->second].add(rank, theirs[count + i], hashes_[own->second]);
      }
    }
    // Of all that see a difference the rank speaks that has the fewest on its side.
    std::size_t odd = names_.size();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (seen[i].unlike > 0 && (odd == names_.size() || seen[i].alike < seen[odd].alike)) odd = i;
    }
    auto const none = std::numeric_limits<std::int64_t>::max();
    std::int64_t speaker = odd == names_.size() ? none : seen[odd].alike * world.size() + world.rank();
    world.all_reduce(tensor_view<std::int64_t>(&speaker, shape{1}), reduction::min{});
    if (speaker == none) return;
    auto const rank = static_cast<int>(speaker % world.size());
    throw numeric_error(
        parallel::detail::said_by(world, rank, rank == world.rank() ? sentence(odd, rank, seen[odd]) : std::string()));
  }

 private:
  /// The copies that other ranks have of one of this rank's tensors.
  struct others {
    std::int64_t alike = 0;
    std::int64_t unlike = 0;
    int first = -1;  ///< rank that is not alike, and its hash
    std::uint64_t hash = 0;
    bool agree = true;  ///< all that are not alike are so among themselves

    void add(int rank, std::uint64_t theirs, std::uint64_t own) {
      if (theirs == own) {
        ++alike;
        return;
      }
      if (++unlike == 1) {
        first = rank;
        hash = theirs;
      }
      agree = agree && theirs == hash;
    }
  };
  [[nodiscard]] std::string sentence(std::size_t item, int rank, others const& seen) const {
    bool const alone = seen.alike == 0 && seen.unlike > 1 && seen.agree;
    auto const what =
        alone ? text("the copy of \"", names_[item], "\" on rank ", rank, " differs from those of the other ",
                     seen.unlike, " ranks that keep it: it was changed there alone, or that machine rounds ")
              : text("the copies of \"", names_[item], "\" on ranks ", std::min(rank, seen.first), " and ",
                     std::max(rank, seen.first),
                     " differ: they were changed on one of them alone, or their machines round ");
    return text("trireme::trainer: ", what, "differently; load a checkpoint, or call broadcast()");
  }

  std::unordered_map<std::uint64_t, std::size_t> at_;
  std::vector<std::uint64_t> keys_, hashes_;
  std::vector<std::string> names_;
};

}  // namespace trireme::detail
