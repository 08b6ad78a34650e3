#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/detail/hierarchy_parts.hpp"

namespace trireme::comm::detail {

/// What carries the messages of exchanges between nodes.
template <class Inner, class Outer>
class relay {
 public:
  virtual ~relay() = default;
  /// `parts` are messages of `whole` with ranks of other nodes.
  virtual void start(command const& whole, std::span<part const> parts, pending_list& out) = 0;
  /// Collective. The same kind of relay for a part of the ranks, whose worlds are `inner` and `outer`.
  [[nodiscard]] virtual std::shared_ptr<relay> remade(Inner& inner, Outer& outer, int group, int key) = 0;
  /// Collective. The same kind of relay for the same ranks with another deadline, which `outer` has already.
  [[nodiscard]] virtual std::shared_ptr<relay> duplicate(Inner& inner, Outer& outer, std::chrono::milliseconds) {
    return remade(inner, outer, 0, inner.rank());  // what its messages travel in are duplicates of `outer`
  }
};

/// Carries messages between ranks of one place only.
template <class Inner, class Outer>
class column_relay final : public relay<Inner, Outer> {
 public:
  column_relay(Outer world, grid_place here) : world_(std::move(world)), here_(here) {}
  void start(command const& whole, std::span<part const> parts, pending_list& out) override {
    list_.assign(parts.begin(), parts.end());
    for (auto& each : list_) {
      if (each.peer % here_.places != here_.place)
        throw config_error(
            text("trireme::comm::hierarchical::exchange: rank ", here_.rank(), " has no way to rank ", each.peer,
                 ", which is in another node and another place; give hierarchical_world the whole world as its third "
                 "argument, or make it with launch"));
      each.peer /= here_.places;
    }
    out.add(world_.submit(parts_of(whole, collective::exchange, list_, here_.node)));
  }
  std::shared_ptr<relay<Inner, Outer>> remade(Inner& inner, Outer& outer, int /*group*/, int /*key*/) override {
    return std::make_shared<column_relay>(outer.duplicate(),
                                          grid_place{inner.rank(), inner.size(), outer.rank(), outer.size()});
  }

 private:
  Outer world_;
  grid_place here_;
  std::vector<part> list_;
};

/// Through a world of all ranks, numbered as the hierarchical one.
template <class Inner, class Outer, class Whole>
class whole_relay final : public relay<Inner, Outer> {
 public:
  explicit whole_relay(Whole world) : world_(std::move(world)) {}
  void start(command const& whole, std::span<part const> parts, pending_list& out) override {
    out.add(world_.submit(parts_of(whole, collective::exchange, parts, world_.rank())));
  }
  std::shared_ptr<relay<Inner, Outer>> remade(Inner&, Outer&, int group, int key) override {
    return std::make_shared<whole_relay>(world_.split(group, key));
  }
  std::shared_ptr<relay<Inner, Outer>> duplicate(Inner&, Outer&, std::chrono::milliseconds deadline) override {
    if constexpr (requires { Whole(world_.duplicate(deadline)); }) {
      return std::make_shared<whole_relay>(world_.duplicate(deadline));
    } else {
      return std::make_shared<whole_relay>(world_.duplicate());
    }
  }

 private:
  Whole world_;
};

/// For nodes whose ranks are threads of one process: one world between the processes for each pair of places. Two
/// threads of a process share it, under a lock.
template <class Inner, class Outer>
class crossing_relay final : public relay<Inner, Outer> {
 public:
  /// Collective over all ranks.
  crossing_relay(Inner& inner, Outer& outer)
      : here_{inner.rank(), inner.size(), outer.rank(), outer.size()},
        to_(static_cast<std::size_t>(inner.size())),
        from_(to_.size()) {
    in_turn(inner, [&] {
      for (auto& each : to_) each = std::make_shared<way>(outer.duplicate());
    });
    auto const rows = inner.peers(tensor_view<std::uint8_t>(reinterpret_cast<std::uint8_t*>(&to_), shape{1}));
    for (std::size_t place = 0; place < rows.size(); ++place)
      from_[place] = (*reinterpret_cast<std::vector<std::shared_ptr<way>> const*>(
          rows[place].address()))[static_cast<std::size_t>(here_.place)];
    inner.barrier();
  }
  void start(command const& whole, std::span<part const> parts, pending_list& out) override {
    for (int place = 0; place < here_.places; ++place) {
      for (bool const sent : {true, false}) {
        list_.clear();
        for (auto const& each : parts) {
          if (each.sent != sent || each.peer % here_.places != place) continue;
          list_.push_back(each);
          list_.back().peer /= here_.places;
        }
        if (list_.empty()) continue;
        auto const& through = (sent ? to_ : from_)[static_cast<std::size_t>(place)];
        std::lock_guard const lock(through->mutex);
        out.add(locked{through, through->world.submit(parts_of(whole, collective::exchange, list_, here_.node))});
      }
    }
  }
  std::shared_ptr<relay<Inner, Outer>> remade(Inner& inner, Outer& outer, int /*group*/, int /*key*/) override {
    return std::make_shared<crossing_relay>(inner, outer);
  }

 private:
  struct way {
    explicit way(Outer it) : world(std::move(it)) {}
    std::mutex mutex;
    Outer world;
  };
  using below = decltype(std::declval<Outer&>().submit(std::declval<command const&>()));
  struct locked {
    std::shared_ptr<way> through;
    below pending;
    locked(std::shared_ptr<way> where, below it) : through(std::move(where)), pending(std::move(it)) {}
    locked(locked&&) = default;
    locked& operator=(locked&&) = default;
    ~locked() {
      if (through == nullptr) return;
      std::lock_guard const lock(through->mutex);
      static_cast<void>(below(std::move(pending)));
    }
    [[nodiscard]] bool test() {
      std::lock_guard const lock(through->mutex);
      return pending.test();
    }
  };

  grid_place here_;
  std::vector<std::shared_ptr<way>> to_, from_;  ///< by place: where this rank sends, where it receives
  std::vector<part> list_;
};

}  // namespace trireme::comm::detail
