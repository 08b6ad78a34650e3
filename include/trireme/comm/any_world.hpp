#pragma once

#include <chrono>
#include <concepts>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/detail/collective_engine.hpp"
#include "trireme/comm/detail/kernels.hpp"
#include "trireme/comm/detail/waiting.hpp"

namespace trireme::comm {

/// A pending collective, which an engine carries out: it proceeds as the world that started it says, and in `test()`
/// and `wait()`.
///
/// Threads  the rank that started it. One that MPI does not let call gets a config_error, and the request goes on.
/// Errors   comm_error as the world that started it. The destructor waits and swallows it. While an exception unwinds
///          the stack it waits at most a tenth of the deadline, and then fails the launch, if the engine can.
///
/// @tparam Engine  test(op), wait(op), and release(op) once the operation has finished or failed.
template <class Engine, class Operation>
class engine_request {
 public:
  engine_request() = default;
  engine_request(std::shared_ptr<Engine> engine, Operation& op) noexcept : engine_(std::move(engine)), op_(&op) {}
  engine_request(engine_request&& other) noexcept
      : engine_(std::move(other.engine_)), op_(std::exchange(other.op_, nullptr)) {}
  engine_request& operator=(engine_request&& other) noexcept {
    if (this != &other) {
      finish();
      engine_ = std::move(other.engine_);
      op_ = std::exchange(other.op_, nullptr);
    }
    return *this;
  }
  ~engine_request() { finish(); }

  [[nodiscard]] bool test() {
    if (op_ == nullptr) return true;
    try {
      if (!engine_->test(*op_)) return false;
    } catch (config_error const&) {  // not for this thread to ask
      throw;
    } catch (...) {
      release();
      throw;
    }
    release();
    return true;
  }
  void wait() {
    finish_by([this] { engine_->wait(*op_); });
  }
  void order() {
    finish_by([this] { engine_->order(*op_); });
  }

 private:
  template <class F>
  void finish_by(F&& f) {
    if (op_ == nullptr) return;
    try {
      f();
    } catch (config_error const&) {
      throw;
    } catch (...) {
      release();
      throw;
    }
    release();
  }
  void release() noexcept {
    engine_->release(*std::exchange(op_, nullptr));
    engine_.reset();
  }
  void finish() noexcept {
    try {
      if constexpr (requires { engine_->abandon(std::string()); })
        if (op_ != nullptr && std::uncaught_exceptions() > 0) expect_soon();
      order();
    } catch (...) {  // every later call throws it again
    }
    if (op_ != nullptr) release();
  }
  /// An exception leaves the body of this rank; the others learn of it only when it has left the launch. Until then
  /// they may wait for this rank elsewhere, and never take part in what is pending here. So this wait is short.
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

  std::shared_ptr<Engine> engine_;
  Operation* op_ = nullptr;
};

using collective_request = engine_request<detail::collective_engine, detail::collective_operation>;

/// What worlds of threads and any_world have in common: an engine.
template <class Derived>
class engine_world : public collectives<Derived> {
 public:
  using request = collective_request;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return engine_->deadline(); }

  void run(command const& it) { engine_->run(it); }
  [[nodiscard]] request start(command const& it) { return {engine_, engine_->start(it)}; }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] Derived split(int color, int key) {
    detail::expect_color(self().who(), color);
    return Derived(of_same_worlds(engine_->split(color, key)));
  }
  /// The same ranks again, whose calls are counted and ordered apart from this one's.
  [[nodiscard]] Derived duplicate() { return duplicate(deadline()); }
  [[nodiscard]] Derived duplicate(std::chrono::milliseconds deadline) {
    return Derived(of_same_worlds(engine_->duplicate(deadline)));
  }

  /// Lets requests proceed that wait for this rank, in a long computation between start and wait: needed by messages of
  /// comm::mpi where MPI gives the library no thread (docs/communicators.md), otherwise of no use and harmless.
  /// Throws as every call does when the world has failed.
  void poll() { engine_->poll(); }

  /// Tells the other ranks that this one ends with an error, which ends their waits. A borrowed world that ends while
  /// an exception unwinds does so itself, but does not know what the exception says.
  void abandon(std::string const& sentence) noexcept { engine_->abandon(sentence); }

 protected:
  explicit engine_world(std::shared_ptr<detail::collective_engine> engine) noexcept
      : engine_(std::move(engine)), rank_(engine_->rank()), size_(engine_->size()) {
    engine_->worlds->add();
  }
  engine_world(engine_world&& other) noexcept = default;
  engine_world& operator=(engine_world&& other) noexcept {
    if (this == &other) return *this;
    leave();
    collectives<Derived>::operator=(std::move(other));
    engine_ = std::move(other.engine_);
    rank_ = other.rank_;
    size_ = other.size_;
    return *this;
  }
  ~engine_world() { leave(); }

  std::shared_ptr<detail::collective_engine> engine_;

 private:
  [[nodiscard]] Derived const& self() const noexcept { return static_cast<Derived const&>(*this); }
  [[nodiscard]] std::shared_ptr<detail::collective_engine> of_same_worlds(
      std::shared_ptr<detail::collective_engine> made) {
    made->worlds = engine_->worlds;
    return made;
  }
  void leave() noexcept {
    if (engine_ == nullptr) return;  // moved from
    if (engine_->worlds->remove(std::uncaught_exceptions() > exceptions_) && !engine_->failed())
      engine_->abandon(std::string(detail::world_count::sentence));
    engine_.reset();
  }

  int exceptions_ = std::uncaught_exceptions();  ///< when it was made, so that those of others do not count
  int rank_;
  int size_;
};

/// A rank behind an engine that is chosen at run time: of comm::processes and comm::mpi, and of any communicator that
/// is lent (comm/lend.hpp). One type for all of them, so that what is compiled for it serves each: trireme::compiled
/// has the trainers of ranks that are processes.
///
/// Ranks on one machine work in memory that all of them map; buffers from `allocate` are reached by the others without
/// a copy. Between machines messages travel, and the ranks form sums themselves; MPI forms the large ones where
/// comm::mpi has `.order = sum_order::any`.
///
/// Bytes    counted as comm::bytes_sent says, whatever travels.
/// Ranks    every rank calls the same collectives in the same order; what differs in kind, type, count, reduction or
///          root is an error on every rank (level normal).
/// Numerics in rank order; bfloat16 and float16 are summed in float and rounded once. The same bits as comm::threads.
///          With sum_order::any large sums of comm::mpi are in MPI's order.
/// Threads  one caller a rank. A view must outlive its request.
/// Errors   comm_error if a rank is late past the deadline, has died, or announces its failure; it names the rank and
///          the operation. After an error every communicator of the same launch, or of the same borrow(), only throws.
///          Others go on, and one may borrow again.
class any_world : public engine_world<any_world> {
 public:
  static constexpr std::string_view name = "any";
  static constexpr bool progresses = true;  // a request may travel while its rank computes

  explicit any_world(std::shared_ptr<detail::collective_engine> engine) noexcept
      : engine_world<any_world>(std::move(engine)) {}

  /// Which communicator its errors name: "trireme::comm::mpi".
  [[nodiscard]] std::string_view who() const noexcept { return engine_->who(); }

  /// Whether it does in this world: not where MPI gives the library no thread, nor in a world lent from comm::threads.
  [[nodiscard]] bool progresses_here() const noexcept { return engine_->progresses(); }

  /// Also of a device's memory; only some of the worlds carry that, and the others throw config_error.
  template <class Space>
  static constexpr bool supports(collective, dtype, reduction_kind op) noexcept {
    if (touchable<Space> || without_elements<Space>) return true;
    return requires { &space_kernels<Space>::copy; }
    &&detail::can_combine<Space>(op);
  }
  void run(command const& it) {
    expect_carried(it);
    engine_->run(it);
  }
  [[nodiscard]] request start(command const& it) {
    expect_carried(it);
    return {engine_, engine_->start(it)};
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

 private:
  void expect_carried(command const& it) const {
    if (it.elements == nullptr || it.elements->touchable || it.elements->phantom || engine_->carries_device_memory())
      return;
    throw config_error(text(engine_->who(), "::", name_of(it.what.kind),
                            ": the tensor lies in a device's memory, which this communicator does not carry; use "
                            "comm::threads, or comm::nccl"));
  }
};

}  // namespace trireme::comm
