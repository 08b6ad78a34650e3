#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/world_count.hpp"

namespace trireme::comm::detail {

/// A collective in flight, of whichever engine.
class process_operation {
 public:
  process_operation() = default;
  process_operation(process_operation const&) = delete;
  process_operation& operator=(process_operation const&) = delete;
  virtual ~process_operation() = default;
};

/// What carries the commands of a group of processes, or of threads. One caller a rank, though a thread of the engine's
/// own may help. After a failure every call of this engine, and of those that come from the same launch or borrow(),
/// throws the comm_error that said so first. Other engines go on.
class process_engine {
 public:
  process_engine() = default;
  process_engine(process_engine const&) = delete;
  process_engine& operator=(process_engine const&) = delete;
  virtual ~process_engine() = default;

  /// Of this engine and those that come from it by split() and duplicate().
  std::shared_ptr<world_count> worlds = std::make_shared<world_count>();

  /// What errors begin with: "trireme::comm::mpi".
  [[nodiscard]] virtual std::string_view who() const noexcept = 0;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  [[nodiscard]] virtual std::chrono::milliseconds deadline() const noexcept = 0;

  /// Returns when this rank's part is done.
  virtual void run(command const& it) = 0;
  /// The operation stays the engine's; who started it gives it back with release(), finished or failed.
  [[nodiscard]] virtual process_operation& start(command const& it) = 0;
  [[nodiscard]] virtual bool test(process_operation& op) = 0;
  virtual void wait(process_operation& op) = 0;
  virtual void release(process_operation& op) noexcept = 0;
  /// Whether what has been started proceeds while the rank computes; else in test(), wait() and poll().
  [[nodiscard]] virtual bool progresses() const noexcept { return true; }
  /// Makes the progress that is possible now with what has been started.
  virtual void poll() = 0;

  /// Collective. The ranks of one color, in the order of (key, rank).
  [[nodiscard]] virtual std::shared_ptr<process_engine> split(int color, int key) = 0;
  /// Collective. The same ranks, with calls of their own.
  [[nodiscard]] virtual std::shared_ptr<process_engine> duplicate(std::chrono::milliseconds deadline) = 0;

  /// From now on several threads of this process call, each for groups of its own.
  virtual void expect_several_callers() {}

  /// Tells the other ranks that this one ends with an error, which ends their waits.
  virtual void abandon(std::string const& sentence) noexcept = 0;
  [[nodiscard]] virtual bool failed() const noexcept = 0;
  /// After abandon(): whether this rank is the one of the launch that tells the user; see comm/report.hpp.
  [[nodiscard]] virtual bool reports() noexcept = 0;

  /// Collective among those that live, after a failure: who they are, the same on all; nothing where that is unknown.
  [[nodiscard]] virtual std::vector<int> survivors() { return {}; }

  /// Memory that the other ranks reach without a copy; null where the engine has none, or none left.
  [[nodiscard]] virtual void* allocate(std::size_t /*bytes*/) { return nullptr; }
  virtual void deallocate(void* /*block*/, std::size_t /*bytes*/) noexcept {}
};

}  // namespace trireme::comm::detail
