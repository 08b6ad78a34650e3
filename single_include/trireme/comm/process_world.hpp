// Trireme 0.1.0: trireme/comm/process_world.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 821af5926fdfc38b7d595d88a02ee2b594e609f51562c7a09ec2e6671d9da8cb
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/comm/process_world.hpp
#include <chrono>
#include <concepts>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#ifndef TRIREME_COMM_DETAIL_PROCESS_ENGINE_INCLUDED
#define TRIREME_COMM_DETAIL_PROCESS_ENGINE_INCLUDED

// ---- trireme/comm/detail/process_engine.hpp
#include <cstddef>
#include <vector>

namespace trireme::comm::detail {

/// A collective in flight, of whichever engine.
class process_operation {
 public:
  process_operation() = default;
  process_operation(process_operation const&) = delete;
  process_operation& operator=(process_operation const&) = delete;
  virtual ~process_operation() = default;
};

/// What carries the commands of a group of processes. One caller a rank, though a thread of the engine's own may help.
/// After a failure every call throws the comm_error that said so first.
class process_engine {
 public:
  process_engine() = default;
  process_engine(process_engine const&) = delete;
  process_engine& operator=(process_engine const&) = delete;
  virtual ~process_engine() = default;

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

#endif  // TRIREME_COMM_DETAIL_PROCESS_ENGINE_INCLUDED

// ---- trireme/comm/process_world.hpp (goes on)
namespace trireme::comm {

/// A pending collective of ranks that are processes. It proceeds by itself; `test()` and `wait()` help.
///
/// Threads  the rank that started it.
/// Errors   comm_error as process_world. The destructor waits and swallows it; while an exception is on its way
///          it waits for a tenth of the deadline, and then ends the launch.
class process_request {
 public:
  process_request() = default;
  process_request(std::shared_ptr<detail::process_engine> engine, detail::process_operation& op) noexcept
      : engine_(std::move(engine)), op_(&op) {}
  process_request(process_request&& other) noexcept
      : engine_(std::move(other.engine_)), op_(std::exchange(other.op_, nullptr)) {}
  process_request& operator=(process_request&& other) noexcept {
    if (this != &other) {
      finish();
      engine_ = std::move(other.engine_);
      op_ = std::exchange(other.op_, nullptr);
    }
    return *this;
  }
  ~process_request() { finish(); }

  [[nodiscard]] bool test() {
    if (op_ == nullptr) return true;
    try {
      if (!engine_->test(*op_)) return false;
    } catch (...) {
      release();
      throw;
    }
    release();
    return true;
  }
  void wait() {
    if (op_ == nullptr) return;
    try {
      engine_->wait(*op_);
    } catch (...) {
      release();
      throw;
    }
    release();
  }

 private:
  void release() noexcept {
    engine_->release(*std::exchange(op_, nullptr));
    engine_.reset();
  }
  void finish() noexcept {
    try {
      if (op_ != nullptr && std::uncaught_exceptions() > 0) expect_soon();
      wait();
    } catch (...) {  // every later call throws it again
    }
  }
  /// An exception is on its way out of this rank, and is told to the others when it has left the launch. They may wait
  /// for this rank by then and never take their part in what is pending here, so they are not waited for that long.
  void expect_soon() {
    auto const patience = engine_->deadline() / 10;
    auto const end = detail::clock::now() + patience;
    while (!test()) {
      if (detail::clock::now() > end)
        return engine_->abandon(
            text("an exception left a call pending, in which others took no part for another ", to_string(patience)));
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::shared_ptr<detail::process_engine> engine_;
  detail::process_operation* op_ = nullptr;
};

/// One rank that is a process, as Description made it: comm::mpi or comm::processes.
///
/// Ranks on one machine work in memory that all of them map; between machines messages travel, and sums are formed
/// here, not by the message library. Buffers from `allocate` are reached by the others without a copy.
///
/// Bytes    counted as comm::bytes_sent says, whatever travels.
/// Ranks    every rank calls the same collectives in the same order; what differs in kind, type, count, reduction or
///          root is an error on every rank (level normal).
/// Numerics in rank order; bfloat16 and float16 are summed in float and rounded once. The same bits as comm::threads.
/// Threads  one caller a rank. A view must outlive its request.
/// Errors   comm_error if a rank is late past the deadline, has died, or announces its failure; it names the rank and
///          the operation. After an error every communicator of the launch only throws.
template <class Description>
class process_world : public collectives<process_world<Description>> {
 public:
  using request = process_request;
  static constexpr std::string_view name = Description::name;
  static constexpr bool progresses = true;  // a request travels while its rank computes

  explicit process_world(std::shared_ptr<detail::process_engine> engine) noexcept : engine_(std::move(engine)) {}

  [[nodiscard]] int rank() const noexcept { return engine_->rank(); }
  [[nodiscard]] int size() const noexcept { return engine_->size(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return engine_->deadline(); }

  template <class Space>
  static constexpr bool supports(collective, dtype, reduction_kind) noexcept {
    return std::same_as<Space, host> || std::same_as<Space, phantom>;
  }
  void run(command const& it) { engine_->run(it); }
  [[nodiscard]] request start(command const& it) { return {engine_, engine_->start(it)}; }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] process_world split(int color, int key) {
    detail::expect_color(process_world::who, color);
    return process_world(engine_->split(color, key));
  }
  /// The same ranks again, whose calls are counted and ordered apart from this one's.
  [[nodiscard]] process_world duplicate() { return duplicate(deadline()); }
  [[nodiscard]] process_world duplicate(std::chrono::milliseconds deadline) {
    return process_world(engine_->duplicate(deadline));
  }

  /// Uninitialised memory for messages: the other ranks of this machine reach it directly. Local; may outlive the
  /// world.
  template <element T>
  [[nodiscard]] tensor<T> allocate(shape extents) {
    auto const bytes = static_cast<std::size_t>(extents.size()) * sizeof(T);
    void* const block = bytes == 0 ? nullptr : engine_->allocate(bytes);
    if (block == nullptr) return tensor<T>(extents);
    std::shared_ptr<void> owner(block, [engine = engine_, bytes](void* it) { engine->deallocate(it, bytes); });
    return tensor<T>(tensor_view<T>(static_cast<T*>(block), extents), std::move(owner));
  }

  /// Before threads of this process start that have duplicates of this world, one each.
  void expect_several_callers() { engine_->expect_several_callers(); }

  /// Tells the other ranks that this one ends with an error, which ends their waits.
  void abandon(std::string const& sentence) noexcept { engine_->abandon(sentence); }

 private:
  std::shared_ptr<detail::process_engine> engine_;
};

}  // namespace trireme::comm
