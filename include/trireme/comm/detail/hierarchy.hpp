#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/detail/hierarchy_parts.hpp"
#include "trireme/comm/detail/relay.hpp"
#include "trireme/comm/detail/waiting.hpp"

namespace trireme::comm::detail {

/// What can be advanced: one rank's part in a hierarchical world.
class advancing {
 public:
  virtual void advance() noexcept = 0;

 protected:
  ~advancing() = default;
};

/// The hierarchical worlds of one rank that were split or duplicated from one another: a wait in one advances all.
using hierarchy_family = std::vector<advancing*>;

/// A collective of all ranks in flight. It goes through four stages, of which it may leave out some, each on a world of
/// its own: counts (inside the node), inside, between the nodes, and inside again.
struct staged {
  static constexpr int stages = 4;

  command it;
  int begun = 0;  ///< stages
  bool finished = false;
  std::exception_ptr error;
  pending_list pending;

  std::vector<std::int64_t> counts;
  std::vector<part> parts;
  std::vector<std::byte> a, b;  // scratch
  std::vector<std::int64_t> sent, received;
  std::vector<part> list;
};

/// One rank of a hierarchical world. In each world below, collectives begin in the order in which they were started
/// here, on every rank: one may begin a stage when the one before it has.
template <class Inner, class Outer>
class hierarchy final : public advancing {
 public:
  using operation = staged;
  using way = relay<Inner, Outer>;

  /// Collective. Without a `family` it begins one.
  hierarchy(Inner inner, Outer outer, std::shared_ptr<hierarchy_family> family)
      : here_{inner.rank(), inner.size(), outer.rank(), outer.size()},
        first_(std::move(inner)),
        between_(std::move(outer)),
        counts_(first_.duplicate()),
        last_(first_.duplicate()),
        family_(family != nullptr ? std::move(family) : std::make_shared<hierarchy_family>()) {
    family_->push_back(this);
  }
  hierarchy(hierarchy const&) = delete;
  hierarchy& operator=(hierarchy const&) = delete;
  ~hierarchy() { std::erase(*family_, this); }

  [[nodiscard]] grid_place here() const noexcept { return here_; }
  [[nodiscard]] Inner& inner() noexcept { return first_; }
  [[nodiscard]] Outer& outer() noexcept { return between_; }
  void carry_with(std::shared_ptr<way> messages) { relay_ = std::move(messages); }

  /// Collective. The grid of the ranks that pass one `group`; every rank passes its place and node there.
  [[nodiscard]] std::shared_ptr<hierarchy> split(int group, int place, int node) {
    auto inner = first_.split(group, place);
    std::optional<Outer> outer;
    in_turn(first_, [&] { outer.emplace(between_.split(group, node)); });
    auto made = std::make_shared<hierarchy>(std::move(inner), std::move(*outer), family_);
    made->carry_with(relay_->remade(made->first_, made->between_, group, made->here_.rank()));
    return made;
  }

  /// Collective. The same ranks, with calls of their own.
  [[nodiscard]] std::shared_ptr<hierarchy> duplicate(std::chrono::milliseconds deadline) {
    auto inner = first_.duplicate(deadline);
    std::optional<Outer> outer;
    in_turn(first_, [&] { outer.emplace(between_.duplicate(deadline)); });
    auto made = std::make_shared<hierarchy>(std::move(inner), std::move(*outer), family_);
    made->carry_with(relay_->duplicate(made->first_, made->between_, deadline));
    return made;
  }

  [[nodiscard]] staged& start(command const& it) {
    auto& op = enlist();
    try {
      op.counts.assign(it.counts.begin(), it.counts.end());
      op.parts.assign(it.parts.begin(), it.parts.end());
      op.it = it;
      op.it.counts = op.counts;
      op.it.parts = op.parts;
      if (it.what.kind == collective::exchange) {
        op.begun = staged::stages;
        exchange(op);
      }
      advance();
    } catch (...) {
      op.pending.clear();
      release(op);
      throw;
    }
    return op;
  }
  void release(staged& op) noexcept {
    auto const place = std::ranges::find_if(live_, [&](auto const& each) { return each.get() == &op; });
    unused_.push_back(std::move(*place));  // never more than enlist() made room for
    live_.erase(place);
  }
  void advance() noexcept override {
    int limit = staged::stages;
    for (auto const& op : live_) {
      step(*op, limit);
      limit = std::min(limit, op->begun);  // an exchange has no stages, and no later call waits for it
    }
  }
  void advance_family() noexcept {
    for (std::size_t i = 0; i < family_->size(); ++i) (*family_)[i]->advance();
  }
  /// Spins, then rests.
  void wait_for(staged& op) {
    auto const since = clock::now();
    for (int round = 0; !op.finished; ++round) {
      advance_family();
      if (op.finished) break;
      if (round < 64)
        pause_core();
      else
        rest(clock::now() - since);
    }
    if (op.error != nullptr) std::rethrow_exception(op.error);
  }

 private:
  [[nodiscard]] staged& enlist() {
    if (unused_.empty()) unused_.push_back(std::make_unique<staged>());
    live_.reserve(live_.size() + 1);
    unused_.reserve(live_.size() + unused_.size());
    live_.push_back(std::move(unused_.back()));
    unused_.pop_back();
    auto& op = *live_.back();
    op.begun = 0;
    op.finished = false;
    op.error = nullptr;
    return op;
  }

  /// Makes the progress that is possible now, into stages that the operation before it has begun.
  void step(staged& op, int limit) noexcept {
    try {
      while (!op.finished && op.pending.done()) {
        if (op.begun == staged::stages) {
          finish(op);
          op.finished = true;
        } else if (op.begun < limit) {
          begin(op, op.begun++);
        } else {
          return;
        }
      }
    } catch (...) {
      op.error = std::current_exception();
      op.pending.clear();
      op.begun = staged::stages;
      op.finished = true;
    }
  }

  void begin(staged& op, int stage) {
    if (here_.nodes == 1 || here_.places == 1) {
      if (stage == 1 && here_.nodes == 1) op.pending.add(first_.submit(op.it));
      if (stage == 2 && here_.nodes != 1) op.pending.add(between_.submit(op.it));
    } else if (stage == 0) {
      if (is_ragged(op) && op.it.what.kind == collective::all_to_all) tell_counts(op);
    } else if (stage == 1) {
      begin_inside(op);
    } else if (stage == 2) {
      begin_between(op);
    } else {
      end_inside(op);
    }
  }

  void begin_inside(staged& op);
  void begin_between(staged& op);
  void end_inside(staged& op);
  void finish(staged& op);
  void exchange(staged& op);
  void tell_counts(staged& op);
  void gather_inside(staged& op);
  void deal_inside(staged& op);
  void deal_between(staged& op);

  void inside(Inner& world, staged& op, collective kind, void const* from, void* to, std::int64_t count,
              int root = -1) {
    op.pending.add(world.submit(part_of(op.it, kind, from, to, count, here_.place, here_.places, root, 1)));
  }
  void between(staged& op, collective kind, void const* from, void* to, std::int64_t count, int root = -1) {
    auto const divisor = op.it.divisor != 0 ? op.it.divisor : here_.size();
    op.pending.add(between_.submit(part_of(op.it, kind, from, to, count, here_.node, here_.nodes, root, divisor)));
  }
  [[nodiscard]] static bool is_ragged(staged const& op) noexcept { return op.it.what.shape != 0; }
  [[nodiscard]] static std::int64_t bytes(staged const& op, std::int64_t count) noexcept {
    return count * static_cast<std::int64_t>(op.it.element_bytes);
  }
  [[nodiscard]] static void* scratch(staged const& op, std::vector<std::byte>& block, std::int64_t count) {
    if (!op.it.elements->touchable) return nullptr;
    if (block.size() < static_cast<std::size_t>(bytes(op, count)))
      block.resize(static_cast<std::size_t>(bytes(op, count)));
    return block.data();
  }
  static void copy(staged const& op, void* to, void const* from, std::int64_t count) {
    op.it.elements->copy(to, from, static_cast<std::size_t>(bytes(op, count)));
  }
  static void settle(staged const& op) {
    if (op.it.elements->complete != nullptr) op.it.elements->complete();
  }
  /// All_reduce: so small that one stage less is worth more than less to send.
  [[nodiscard]] bool is_small(staged const& op) const noexcept {
    return bytes(op, op.it.what.count) <= 4096 || op.it.what.count < here_.places;
  }
  [[nodiscard]] int root_place(staged const& op) const noexcept { return op.it.what.root % here_.places; }
  [[nodiscard]] int root_node(staged const& op) const noexcept { return op.it.what.root / here_.places; }
  [[nodiscard]] bool leads(staged const& op) const noexcept { return root_place(op) == here_.place; }
  [[nodiscard]] bool is_root(staged const& op) const noexcept { return op.it.what.root == here_.rank(); }

  grid_place here_;
  Inner first_;
  Outer between_;
  Inner counts_, last_;
  std::shared_ptr<way> relay_;
  std::shared_ptr<hierarchy_family> family_;
  std::vector<std::unique_ptr<staged>> live_, unused_;
};

}  // namespace trireme::comm::detail
