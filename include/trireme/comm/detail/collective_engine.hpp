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

/// A collective in progress, of any engine.
class collective_operation {
 public:
  collective_operation() = default;
  collective_operation(collective_operation const&) = delete;
  collective_operation& operator=(collective_operation const&) = delete;
  virtual ~collective_operation() = default;
};

/// Runs the commands of a group of processes, or of threads. One caller a rank, though a helper thread of the engine
/// may take part. After a failure every call of this engine, and of those that come from the same launch or borrow(),
/// throws the first comm_error. Other engines go on.
class collective_engine {
 public:
  collective_engine() = default;
  collective_engine(collective_engine const&) = delete;
  collective_engine& operator=(collective_engine const&) = delete;
  virtual ~collective_engine() = default;

  /// The count of this engine and those made from it by split() and duplicate().
  std::shared_ptr<world_count> worlds = std::make_shared<world_count>();

  /// The prefix of errors: "trireme::comm::mpi".
  [[nodiscard]] virtual std::string_view who() const noexcept = 0;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  [[nodiscard]] virtual std::chrono::milliseconds deadline() const noexcept = 0;

  /// Returns when this rank's part is done.
  virtual void run(command const& it) = 0;
  /// The engine owns the operation; the caller returns it by release() when it has finished or failed.
  [[nodiscard]] virtual collective_operation& start(command const& it) = 0;
  [[nodiscard]] virtual bool test(collective_operation& op) = 0;
  virtual void wait(collective_operation& op) = 0;
  /// What the caller queues afterwards sees the result (contract/communicator.hpp, order()).
  virtual void order(collective_operation& op) { wait(op); }
  virtual void release(collective_operation& op) noexcept = 0;
  /// Whether started operations progress while the rank computes; otherwise only in test(), wait() and poll().
  [[nodiscard]] virtual bool progresses() const noexcept { return true; }
  /// Makes the progress that is possible now on started operations.
  virtual void poll() = 0;

  /// Collective. The ranks of one color, in the order of (key, rank).
  [[nodiscard]] virtual std::shared_ptr<collective_engine> split(int color, int key) = 0;
  /// Collective. The same ranks, with an order of calls of its own.
  [[nodiscard]] virtual std::shared_ptr<collective_engine> duplicate(std::chrono::milliseconds deadline) = 0;

  /// Whether tensors may lie in memory that the CPU cannot read.
  [[nodiscard]] virtual bool carries_device_memory() const noexcept { return false; }

  /// From now on several threads of this process may call, each on groups of its own.
  virtual void expect_several_callers() {}

  /// Reports to the other ranks that this one ends with an error, which ends their waits.
  virtual void abandon(std::string const& sentence) noexcept = 0;
  [[nodiscard]] virtual bool failed() const noexcept = 0;
  /// After abandon(): whether this rank is the one of the launch that prints the error; see comm/report.hpp.
  [[nodiscard]] virtual bool reports() noexcept = 0;

  /// Collective among the running ranks, after a failure: the list of these ranks, the same on all; empty if unknown.
  [[nodiscard]] virtual std::vector<int> survivors() { return {}; }

  /// Memory that the other ranks can access without a copy; null if the engine has none, or none left.
  [[nodiscard]] virtual void* allocate(std::size_t /*bytes*/) { return nullptr; }
  virtual void deallocate(void* /*block*/, std::size_t /*bytes*/) noexcept {}
};

}  // namespace trireme::comm::detail
