#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/agreement.hpp"

namespace trireme::detail {

/// Hashes of the tensors that a rank keeps, by what they are and where in them they lie: ranks that keep the same must
/// have the same numbers.
class kept_copies {
 public:
  /// Elements [first, first + size) of the part of a tensor that `part` says.
  template <class View>
  void add(std::string const& name, parameter_info const& part, std::int64_t first, View const& values) {
    auto const box = text(name, "@", to_string(part.first), to_string(part.extents), first, "+", values.size());
    at_.emplace(hash_name(box), names_.size());
    keys_.push_back(hash_name(box));
    hashes_.push_back(ops::on<typename View::space>::hash(values, 0, 0));
    names_.push_back(name);
  }

  /// Collective. Throws numeric_error on every rank if two ranks' copies of a tensor differ; the sentence names it.
  ///
  /// Bytes    an all_reduce of all hashes of each rank, one rank after the other.
  template <class Comm>
  void expect_equal(Comm& world) const {
    if (world.size() == 1) return;
    std::vector<std::int64_t> counts(static_cast<std::size_t>(world.size()));
    counts[static_cast<std::size_t>(world.rank())] = static_cast<std::int64_t>(keys_.size());
    world.all_reduce(tensor_view<std::int64_t>(counts), reduction::sum{});
    std::string sentence;
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
      for (std::size_t i = 0; i < count && sentence.empty(); ++i) {
        auto const own = at_.find(theirs[i]);
        if (own == at_.end() || hashes_[own->second] == theirs[count + i]) continue;
        sentence = text("trireme::trainer: the copies of \"", names_[own->second], "\" on ranks ", rank, " and ",
                        world.rank(), " differ: they were changed on one of them alone, or their machines round ",
                        "differently; load a checkpoint, or call broadcast()");
      }
    }
    std::int64_t first = sentence.empty() ? world.size() : world.rank();
    world.all_reduce(tensor_view<std::int64_t>(&first, shape{1}), reduction::min{});
    if (first == world.size()) return;
    throw numeric_error(parallel::detail::said_by(world, static_cast<int>(first), sentence));
  }

 private:
  std::unordered_map<std::uint64_t, std::size_t> at_;
  std::vector<std::uint64_t> keys_, hashes_;
  std::vector<std::string> names_;
};

}  // namespace trireme::detail
