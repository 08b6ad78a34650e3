#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/train/state_shard.hpp"

namespace trireme::checkpoint {

/// How long ranks wait for each other's disks while a checkpoint is written or read, and a callback for progress.
///
/// A disk may need minutes. A step's collectives have the communicator's deadline, which is short so that a lost rank
/// is detected soon. A rank that dies while others wait here is an error at once if the communicator detects it by
/// itself; one that hangs is an error when this deadline has passed.
///
/// Ranks    the deadline is the same on all of them.
struct patience {
  std::chrono::milliseconds deadline = std::chrono::minutes(30);
  /// Called after each piece, in the thread that saves or loads: the bytes of this rank that are done, and the total.
  std::function<void(std::int64_t done, std::int64_t all)> on_progress{};
  void validate() const {
    if (deadline.count() < 1)
      throw config_error(
          text("trireme::checkpoint::patience: .deadline is ", deadline.count(), "ms; give the ranks at least 1ms"));
  }
};

namespace detail {

/// A duplicate of a world with another deadline for its calls.
template <class Comm>
class patient_world {
 public:
  /// Collective if the deadline differs from the last one. Returns the world itself if the communicator cannot have
  /// another deadline.
  Comm& of(Comm& world, std::chrono::milliseconds deadline) {
    if constexpr (has_own_deadline) {
      if (own_ == nullptr || deadline != deadline_) own_.reset(new Comm(world.duplicate(deadline)));
      deadline_ = deadline;
      return *own_;
    } else {
      return world;
    }
  }
  /// Calls f. If a late rank ends it, the error names this deadline, not the communicator's.
  template <class F>
  static void within(F&& f) {
    try {
      f();
    } catch (comm_error const& problem) {
      std::string_view const said = problem.what(), offered = ", or raise ";
      auto const at = said.rfind(offered);
      if (!has_own_deadline || at == said.npos || !said.ends_with("{.deadline}")) throw;
      auto const first = problem.rank() < 0 ? std::size_t{0} : text("rank ", problem.rank(), ": ").size();
      throw comm_error(text(said.substr(first, at + offered.size() - first), "checkpoint::patience{.deadline}"),
                       {problem.rank(), problem.operation()});
    }
  }

 private:
  static constexpr bool has_own_deadline = requires(Comm & world, std::chrono::milliseconds deadline) {
    Comm(world.duplicate(deadline));
  };
  std::unique_ptr<Comm> own_;
  std::chrono::milliseconds deadline_{};
};

/// Reports after each piece how many bytes of a rank are done.
class progress_reporter {
 public:
  /// @param passes  how often all pieces will be read.
  progress_reporter(patience const& whom, int passes, std::span<state_shard const> shards) : whom_(whom) {
    for (auto const& each : shards) all_ += passes * static_cast<std::int64_t>(each.bytes());
  }

  void add(state_shard const& shard) {
    done_ += static_cast<std::int64_t>(shard.bytes());
    if (whom_.on_progress) whom_.on_progress(done_, all_);
  }

 private:
  patience const& whom_;
  std::int64_t all_ = 0;
  std::int64_t done_ = 0;
};

}  // namespace detail

}  // namespace trireme::checkpoint
