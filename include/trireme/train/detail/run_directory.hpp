#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/hash.hpp"
#include "trireme/train/checkpoint.hpp"
#include "trireme/train/detail/checkpoint_shards.hpp"
#include "trireme/train/patience.hpp"
#include "trireme/train/state_shard.hpp"

namespace trireme::checkpoint::detail {

/// Collective. The numbers that each rank keeps of its own.
/// @param owned  the pieces that this rank saves.
template <class Comm>
[[nodiscard]] own_numbers numbers_of_ranks(Comm& world, std::span<state_shard const> owned) {
  std::uint64_t sums[] = {0, 0, 0, 0};  // pieces, those that are not summands, summands, and a hash of where each lies
  for (auto const& each : owned) {
    if (!each.of_rank) continue;
    ++sums[0];
    if (each.summands == 0) ++sums[1];
    if (each.summands > 0) sums[2] += static_cast<std::uint64_t>(each.size());
    sums[3] +=
        mix(hash_name(each.name) ^ mix(hash_name(box_text(each.box)) ^ mix(static_cast<std::uint64_t>(each.first)) ^
                                       static_cast<std::uint64_t>(each.size())));
  }
  world.all_reduce(tensor_view<std::uint64_t>(sums, shape{4}), reduction::sum{});
  return {.ranks = sums[0] == 0 ? 0 : world.size(),
          .are_summands = sums[1] == 0,
          .summands = static_cast<std::int64_t>(sums[2]),
          .layout = sums[3]};
}

/// How a trainer, or a loop of your own, reaches its checkpoints: the run's identity, and the world with a deadline
/// long enough for disks.
template <class Comm>
class run_directory {
 public:
  /// Collective. As checkpoint::save.
  void save(Comm& world, std::string const& path, run_description const& run, progress const& at,
            std::span<state_shard const> owned, patience const& patience, keeping const& keep,
            formats::file_system& files, std::vector<formats::model_file> const& model_files = {}) {
    patient_.within([&] {
      checkpoint::save(for_disks(world, patience.deadline), path, identity_, run, at, owned, files, keep, patience,
                       model_files);
    });
  }
  /// Collective. Throws what save() would if the directory belongs to another run, or nothing can be written in it.
  void prepare(Comm& world, std::string const& path, progress const& at, patience const& patience,
               formats::file_system& files) {
    patient_.within([&] { writing<Comm>(for_disks(world, patience.deadline), path, identity_, {}, at, {}, files); });
  }
  /// Collective. As checkpoint::load.
  [[nodiscard]] loaded load(Comm& world, std::string const& path, run_description const& run,
                            std::span<state_shard const> kept, std::span<state_shard const> owned,
                            patience const& patience, formats::file_system& files) {
    std::int64_t elements = 0;
    for (auto const& each : owned) elements += each.size();
    loaded found;
    patient_.within([&] {
      found =
          checkpoint::load(for_disks(world, patience.deadline), path, identity_, run, kept, elements, files, patience);
    });
    return found;
  }

  /// Collective if the deadline differs from the last one.
  [[nodiscard]] Comm& for_disks(Comm& world, std::chrono::milliseconds deadline) {
    return patient_.of(world, deadline);
  }
  [[nodiscard]] identity& run() noexcept { return identity_; }

 private:
  identity identity_;
  patient_world<Comm> patient_;
};

}  // namespace trireme::checkpoint::detail
