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
#include "trireme/train/state_piece.hpp"

namespace trireme::checkpoint {

/// How long ranks wait for each other's disks while a checkpoint is written or read, and who hears how far this one is.
///
/// A disk may need minutes for what a step's collectives must not: they have the communicator's deadline, which is
/// short, so that a rank that is gone is soon known. A rank that dies while others wait here is an error at once where
/// the communicator notices that by itself; one that stands still is an error when the deadline has passed.
///
/// Ranks    the deadline is the same on all of them.
struct patience {
  std::chrono::milliseconds deadline = std::chrono::minutes(30);
  /// After each piece: the bytes of this rank that are done, and all of them. In the thread that saves or loads.
  std::function<void(std::int64_t done, std::int64_t all)> on_progress{};
  void validate() const {
    if (deadline.count() < 1)
      throw config_error(
          text("trireme::checkpoint::patience: .deadline is ", deadline.count(), "ms; give the ranks at least 1ms"));
  }
};

namespace detail {

/// The ranks of a world once more, with a deadline of their own for their calls.
template <class Comm>
class patient_world {
 public:
  /// Collective when the deadline is another one than before. Of a communicator that cannot be given another deadline
  /// the world itself.
  Comm& of(Comm& world, std::chrono::milliseconds deadline) {
    if constexpr (has_own_deadline) {
      if (own_ == nullptr || deadline != deadline_) own_.reset(new Comm(world.duplicate(deadline)));
      deadline_ = deadline;
      return *own_;
    } else {
      return world;
    }
  }
  /// Calls f. Where it ends because a rank is late, the sentence names this deadline, not the communicator's.
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

/// Says after each piece of a rank how many bytes are done.
class told_progress {
 public:
  /// @param passes  how often all of them will be gone through.
  told_progress(patience const& whom, int passes, std::span<state_piece const> pieces) : whom_(whom) {
    for (auto const& each : pieces) all_ += passes * static_cast<std::int64_t>(each.bytes());
  }

  void add(state_piece const& piece) {
    done_ += static_cast<std::int64_t>(piece.bytes());
    if (whom_.on_progress) whom_.on_progress(done_, all_);
  }

 private:
  patience const& whom_;
  std::int64_t all_ = 0;
  std::int64_t done_ = 0;
};

}  // namespace detail

}  // namespace trireme::checkpoint
