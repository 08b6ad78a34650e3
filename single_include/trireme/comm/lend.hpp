// Trireme 0.1.0: trireme/comm/lend.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 227a81e5959a260683c078993aa277648d43b736ac6d46238e0813ec2cdfe428
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/comm/lend.hpp
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::comm {

namespace detail {

/// The engine of a lent world: passes every command on to it.
template <class World>
class lent_engine final : public collective_engine {
 public:
  explicit lent_engine(World& world) noexcept : world_(&world) { worlds->leave_it_to_the_launch(); }
  explicit lent_engine(World&& own) : own_(std::move(own)), world_(&*own_) { worlds->leave_it_to_the_launch(); }

  [[nodiscard]] std::string_view who() const noexcept override { return who_; }
  [[nodiscard]] int rank() const noexcept override { return world_->rank(); }
  [[nodiscard]] int size() const noexcept override { return world_->size(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept override {
    if constexpr (requires { world_->deadline(); })
      return world_->deadline();
    else
      return std::chrono::seconds(60);
  }

  [[nodiscard]] bool carries_device_memory() const noexcept override {
    return requires { World::carries_device_memory; };
  }

  void run(command const& it) override {
    expect_supported(it.what);
    noting_failure([&] { world_->execute(it); });
  }
  [[nodiscard]] collective_operation& start(command const& it) override {
    expect_supported(it.what);
    auto op = free_.empty() ? std::make_unique<operation>() : std::move(free_.back());
    if (!free_.empty()) free_.pop_back();
    noting_failure([&] { op->pending.emplace(world_->submit(it)); });
    return *op.release();
  }
  [[nodiscard]] bool test(collective_operation& op) override {
    return noting_failure([&] { return static_cast<operation&>(op).pending->test(); });
  }
  void wait(collective_operation& op) override {
    noting_failure([&] { static_cast<operation&>(op).pending->wait(); });
  }
  void order(collective_operation& op) override {
    noting_failure([&] { trireme::order(*static_cast<operation&>(op).pending); });
  }
  void release(collective_operation& op) noexcept override {
    std::unique_ptr<operation> mine(&static_cast<operation&>(op));
    mine->pending.reset();
    try {
      free_.push_back(std::move(mine));
    } catch (...) {  // no memory to keep it for the next call
    }
  }
  [[nodiscard]] bool progresses() const noexcept override { return requests_travel_alone(*world_); }
  void poll() override {
    if constexpr (requires { world_->poll(); }) world_->poll();
  }

  [[nodiscard]] std::shared_ptr<collective_engine> split(int color, int key) override {
    return noting_failure([&] { return std::make_shared<lent_engine>(world_->split(color, key)); });
  }
  [[nodiscard]] std::shared_ptr<collective_engine> duplicate(
      [[maybe_unused]] std::chrono::milliseconds deadline) override {
    return noting_failure([&] {
      if constexpr (requires { world_->duplicate(deadline); })
        return std::make_shared<lent_engine>(world_->duplicate(deadline));
      else
        return std::make_shared<lent_engine>(world_->duplicate());
    });
  }
  void expect_several_callers() override {
    if constexpr (requires { world_->expect_several_callers(); }) world_->expect_several_callers();
  }
  void abandon(std::string const& sentence) noexcept override {
    failed_ = true;
    if constexpr (requires { world_->abandon(sentence); }) world_->abandon(sentence);
  }
  [[nodiscard]] bool failed() const noexcept override { return failed_; }
  [[nodiscard]] bool reports() noexcept override { return true; }

 private:
  struct operation final : collective_operation {
    std::optional<typename World::request> pending;
  };

  void expect_supported(call const& what) const {
    if (what.kind == collective::barrier || World::template supports<host>(what.kind, what.type, what.op)) return;
    throw config_error(text(who_, ": ", World::name, ", which is lent, has no ", to_string(what)));
  }
  template <class F>
  decltype(auto) noting_failure(F const& call) {
    try {
      return call();
    } catch (comm_error const&) {
      failed_ = true;
      throw;
    }
  }

  static inline std::string const who_{text("trireme::comm::", World::name)};

  std::optional<World> own_;
  World* world_;
  std::vector<std::unique_ptr<operation>> free_;
  bool failed_ = false;
};

}  // namespace detail

/// A world of any communicator as comm::any_world, for what is compiled for that type: a trainer of trireme::compiled,
/// or your own functions that are not templates. Its collectives are those of `world`, which must outlive it.
///
/// Bytes    counted in both worlds. Groups of split() and duplicate() have their own counters.
/// Ranks    local; each rank lends its own.
/// Numerics those of `world`, to the bit.
/// Threads  as `world`. Requests proceed as they do there: on comm::threads only while they are tested or waited for.
/// Errors   as `world`; config_error for a collective of host memory that it does not have. It computes on host memory
///          only: a world of a device does not compile.
/// @example trireme::launch(comm::threads{}, [](auto& world) { train(comm::lend(world)); });
template <communicator World>
[[nodiscard]] any_world lend(World& world) {
  static_assert(
      std::same_as<typename space_of<World>::type, host>,
      "trireme::comm::lend: comm::any_world computes in host memory, but this communicator's trainers compute "
      "on a device; use its own type.");
  return any_world(std::make_shared<detail::lent_engine<World>>(world));
}

}  // namespace trireme::comm
