// Trireme 0.1.0: trireme/comm/hierarchical.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 1e0603ca8794deb15f83be45bbbb6eb8677fb9c16472ced6f836e3576709fd82
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/decorate.hpp"

// ---- trireme/comm/hierarchical.hpp
#include <algorithm>
#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef TRIREME_COMM_DETAIL_HIERARCHY_INCLUDED
#define TRIREME_COMM_DETAIL_HIERARCHY_INCLUDED

// ---- trireme/comm/detail/hierarchy.hpp
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <numeric>
#include <span>

namespace trireme::comm::detail {

/// A command inside a node or between nodes, derived from a command of all ranks, with its bytes counted; ragged with
/// `counts`.
[[nodiscard]] inline command shard_of(command const& whole, collective kind, void const* from, void* to,
                                      std::int64_t count, int rank, int size, int root = -1, int divisor = 0,
                                      std::span<std::int64_t const> counts = {}) {
  auto const op = row_of(kind).moves[0].folds ? whole.what.op : reduction_kind::none;
  command it{.what = {kind, whole.what.type, op, false, root, count, counts.empty() ? 0 : fingerprint(counts)},
             .from = from,
             .to = to,
             .element_bytes = whole.element_bytes,
             .elements = whole.elements,
             .counts = counts,
             .divisor = divisor};
  count_sent(it, rank, size);
  return it;
}
/// The same for a command that is a list of parts.
[[nodiscard]] inline command parts_of(command const& whole, collective kind,
                                      std::span<raw_transfer const> raw_transfers, int rank) {
  command it{.what = {kind, whole.what.type},
             .element_bytes = whole.element_bytes,
             .elements = whole.elements,
             .raw_transfers = raw_transfers};
  if (kind == collective::all_to_all) it.what.shape = 1;
  if (kind == collective::exchange) it.what.type = dtype::u8;
  count_transfers(it, rank);
  return it;
}

/// Requests of several types.
class pending_list {
 public:
  template <class Request>
  void add(Request it) {
    all_.push_back(std::make_unique<holder<Request>>(std::move(it)));
  }
  /// Whether all are done.
  [[nodiscard]] bool done() {
    std::erase_if(all_, [](auto& each) { return each->test(); });
    return all_.empty();
  }
  void clear() noexcept { all_.clear(); }

 private:
  struct any {
    virtual ~any() = default;
    virtual bool test() = 0;
  };
  template <class Request>
  struct holder final : any {
    explicit holder(Request it) : request(std::move(it)) {}
    bool test() override { return request.test(); }
    Request request;
  };
  std::vector<std::unique_ptr<any>> all_;
};

/// The coordinates of a rank: rank = node * places + place.
struct node_coordinate {
  int local_rank = 0, local_size = 1, node = 0, nodes = 1;
  [[nodiscard]] int rank() const noexcept { return node * local_size + local_rank; }
  [[nodiscard]] int size() const noexcept { return nodes * local_size; }
};

/// Runs f on the ranks of a node one after the other. Collectives between the nodes are made in this way, because two
/// threads of a process must not be in one at the same time.
template <class Inner, class F>
void in_turn(Inner& inner, F&& f) {
  for (int local_rank = 0; local_rank < inner.size(); ++local_rank) {
    if (local_rank == inner.rank()) f();
    inner.barrier();
  }
}

[[nodiscard]] inline std::byte* at(void* base, std::int64_t bytes) noexcept {
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + bytes;
}
[[nodiscard]] inline std::byte const* at(void const* base, std::int64_t bytes) noexcept {
  return base == nullptr ? nullptr : static_cast<std::byte const*>(base) + bytes;
}

/// Carries the messages of exchanges between nodes.
template <class Inner, class Outer>
class relay {
 public:
  virtual ~relay() = default;
  /// `raw_transfers` are messages of `whole` with ranks of other nodes.
  virtual void start(command const& whole, std::span<raw_transfer const> raw_transfers, pending_list& out) = 0;
  /// Collective. The same kind of relay for some of the ranks, whose worlds are `inner` and `outer`.
  [[nodiscard]] virtual std::shared_ptr<relay> remade(Inner& inner, Outer& outer, int group, int key) = 0;
  /// Collective. The same kind of relay for the same ranks with another deadline, which `outer` already has.
  [[nodiscard]] virtual std::shared_ptr<relay> duplicate(Inner& inner, Outer& outer, std::chrono::milliseconds) {
    return remade(inner, outer, 0, inner.rank());  // its messages travel in duplicates of `outer`
  }
};

/// Carries messages only between ranks of one place.
template <class Inner, class Outer>
class column_relay final : public relay<Inner, Outer> {
 public:
  column_relay(Outer world, node_coordinate here) : world_(std::move(world)), here_(here) {}
  void start(command const& whole, std::span<raw_transfer const> raw_transfers, pending_list& out) override {
    list_.assign(raw_transfers.begin(), raw_transfers.end());
    for (auto& each : list_) {
      if (each.peer % here_.local_size != here_.local_rank)
        throw config_error(
            text("trireme::comm::hierarchical::exchange: rank ", here_.rank(), " cannot reach rank ", each.peer,
                 ", which is in another node and another place; "
                 "give hierarchical_world the whole world as its third argument, or make it with launch"));
      each.peer /= here_.local_size;
    }
    out.add(world_.submit(parts_of(whole, collective::exchange, list_, here_.node)));
  }
  std::shared_ptr<relay<Inner, Outer>> remade(Inner& inner, Outer& outer, int /*group*/, int /*key*/) override {
    return std::make_shared<column_relay>(outer.duplicate(),
                                          node_coordinate{inner.rank(), inner.size(), outer.rank(), outer.size()});
  }

 private:
  Outer world_;
  node_coordinate here_;
  std::vector<raw_transfer> list_;
};

/// Through a world of all ranks, with the same ranks as the hierarchical one.
template <class Inner, class Outer, class Whole>
class whole_relay final : public relay<Inner, Outer> {
 public:
  explicit whole_relay(Whole world) : world_(std::move(world)) {}
  void start(command const& whole, std::span<raw_transfer const> raw_transfers, pending_list& out) override {
    out.add(world_.submit(parts_of(whole, collective::exchange, raw_transfers, world_.rank())));
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

/// For nodes whose ranks are threads of one process: one world between the processes for each pair of places, shared by
/// two threads of a process, under a lock.
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
    for (std::size_t local_rank = 0; local_rank < rows.size(); ++local_rank)
      from_[local_rank] = (*reinterpret_cast<std::vector<std::shared_ptr<way>> const*>(
          rows[local_rank].address()))[static_cast<std::size_t>(here_.local_rank)];
    inner.barrier();
  }
  void start(command const& whole, std::span<raw_transfer const> raw_transfers, pending_list& out) override {
    for (int local_rank = 0; local_rank < here_.local_size; ++local_rank) {
      for (bool const sent : {true, false}) {
        list_.clear();
        for (auto const& each : raw_transfers) {
          if (each.sent != sent || each.peer % here_.local_size != local_rank) continue;
          list_.push_back(each);
          list_.back().peer /= here_.local_size;
        }
        if (list_.empty()) continue;
        auto const& through = (sent ? to_ : from_)[static_cast<std::size_t>(local_rank)];
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

  node_coordinate here_;
  std::vector<std::shared_ptr<way>> to_, from_;  ///< by place: where this rank sends, where it receives
  std::vector<raw_transfer> list_;
};

/// A rank's part in a hierarchical world, whose operations can be advanced.
class advancing {
 public:
  virtual void advance() noexcept = 0;

 protected:
  ~advancing() = default;
};

/// The hierarchical worlds of one rank that were split or duplicated from one another: a wait in one advances all of
/// them.
using hierarchy_family = std::vector<advancing*>;

/// A collective of all ranks in progress. It has up to four stages, each on a world of its own: counts (inside the
/// node), inside, between the nodes, and inside again.
struct staged {
  static constexpr int stages = 4;

  command it;
  int begun = 0;  ///< number of stages begun
  bool finished = false;
  std::exception_ptr error;
  pending_list pending;

  std::vector<std::int64_t> counts;
  std::vector<raw_transfer> raw_transfers;
  std::vector<std::byte> a, b;  // scratch
  std::vector<std::int64_t> sent, received;
  std::vector<raw_transfer> list;
};

/// One rank of a hierarchical world. In each world below, collectives begin in the order in which they were started
/// here, on every rank: a collective may begin a stage when the previous one has begun it.
template <class Inner, class Outer>
class hierarchy final : public advancing {
 public:
  using operation = staged;
  using way = relay<Inner, Outer>;

  /// Collective. Without a `family` it starts a new one.
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

  [[nodiscard]] node_coordinate here() const noexcept { return here_; }
  [[nodiscard]] Inner& inner() noexcept { return first_; }
  [[nodiscard]] Outer& outer() noexcept { return between_; }
  void carry_with(std::shared_ptr<way> messages) { relay_ = std::move(messages); }

  /// Collective. The grid of the ranks that pass one `group`; every rank passes its place and node in the new grid.
  [[nodiscard]] std::shared_ptr<hierarchy> split(int group, int local_rank, int node) {
    auto inner = first_.split(group, local_rank);
    std::optional<Outer> outer;
    in_turn(first_, [&] { outer.emplace(between_.split(group, node)); });
    auto made = std::make_shared<hierarchy>(std::move(inner), std::move(*outer), family_);
    made->carry_with(relay_->remade(made->first_, made->between_, group, made->here_.rank()));
    return made;
  }

  /// Collective. The same ranks, with an order of calls of its own.
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
      op.raw_transfers.assign(it.raw_transfers.begin(), it.raw_transfers.end());
      op.it = it;
      op.it.counts = op.counts;
      op.it.raw_transfers = op.raw_transfers;
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
    auto const local_rank = std::ranges::find_if(live_, [&](auto const& each) { return each.get() == &op; });
    unused_.push_back(std::move(*local_rank));  // enlist() has reserved the space
    live_.erase(local_rank);
  }
  void advance() noexcept override {
    int limit = staged::stages;
    for (auto const& op : live_) {
      step(*op, limit);
      limit = std::min(limit, op->begun);  // an exchange has no stages, and no later call waits for it
    }
  }
  [[nodiscard]] bool test(staged& op) {
    for (std::size_t i = 0; i < family_->size(); ++i) (*family_)[i]->advance();
    if (op.finished && op.error != nullptr) std::rethrow_exception(op.error);
    return op.finished;
  }
  /// Spins, then sleeps.
  void wait(staged& op) {
    auto const since = clock::now();
    for (int round = 0; !test(op); ++round) round < 64 ? pause_core() : rest(clock::now() - since);
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

  /// Makes the progress that is possible now, into stages that the previous operation has begun.
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
    if (here_.nodes == 1 || here_.local_size == 1) {
      if (stage == 1 && here_.nodes == 1) op.pending.add(first_.submit(op.it));
      if (stage == 2 && here_.nodes != 1) op.pending.add(between_.submit(op.it));
    } else if (stage == 0) {
      if (is_ragged(op) && op.it.what.kind == collective::all_to_all) exchange_counts(op);
    } else if (stage == 1) {
      begin_inside(op);
    } else if (stage == 2) {
      begin_between(op);
    } else {
      end_inside(op);
    }
  }

  void inside(Inner& world, staged& op, collective kind, void const* from, void* to, std::int64_t count,
              int root = -1) {
    op.pending.add(world.submit(shard_of(op.it, kind, from, to, count, here_.local_rank, here_.local_size, root, 1)));
  }
  void between(staged& op, collective kind, void const* from, void* to, std::int64_t count, int root = -1) {
    auto const divisor = op.it.divisor != 0 ? op.it.divisor : here_.size();
    op.pending.add(between_.submit(shard_of(op.it, kind, from, to, count, here_.node, here_.nodes, root, divisor)));
  }
  [[nodiscard]] static bool is_ragged(staged const& op) noexcept { return op.it.what.shape != 0; }
  [[nodiscard]] geometry cuts(staged const& op) const noexcept {
    return {op.it.what, op.it.element_bytes, here_.size(), op.counts};
  }
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
  /// All_reduce: so small that saving a stage is worth more than sending less.
  [[nodiscard]] bool is_small(staged const& op) const noexcept {
    return bytes(op, op.it.what.count) <= 4096 || op.it.what.count < here_.local_size;
  }
  [[nodiscard]] int root_local_rank(staged const& op) const noexcept { return op.it.what.root % here_.local_size; }
  [[nodiscard]] int root_node(staged const& op) const noexcept { return op.it.what.root / here_.local_size; }
  [[nodiscard]] bool leads(staged const& op) const noexcept { return root_local_rank(op) == here_.local_rank; }
  [[nodiscard]] bool is_root(staged const& op) const noexcept { return op.it.what.root == here_.rank(); }

  // --- the stages of each collective inside a node and between the nodes

  void begin_inside(staged& op) {
    using enum collective;
    auto const& it = op.it;
    auto const count = it.what.count;
    switch (it.what.kind) {
      case barrier:
        op.pending.add(first_.submit(command{}));
        return;
      case all_reduce: {
        if (is_small(op)) return inside(first_, op, all_reduce, it.from, it.to, count);
        auto const even = count - count % here_.local_size;
        inside(first_, op, reduce_scatter, it.from, it.to, even);
        if (even < count)
          inside(first_, op, all_reduce, at(it.from, bytes(op, even)), at(it.to, bytes(op, even)), count - even);
        return;
      }
      case reduce_scatter:
        return inside_each_node(first_, op);
      case reduce: {  // only the root's values may change
        auto* const to = !leads(op) ? it.to : is_root(op) ? it.to : scratch(op, op.a, count);
        return inside(first_, op, reduce, it.from, to, count, root_local_rank(op));
      }
      case gather:
        return inside(first_, op, gather, it.from, leads(op) ? scratch(op, op.a, count * here_.local_size) : nullptr,
                      count, root_local_rank(op));
      case all_to_all:
        return scatter_inside(op);
      default:
        return;
    }
  }

  void begin_between(staged& op) {
    using enum collective;
    auto const& it = op.it;
    auto const count = it.what.count;
    switch (it.what.kind) {
      case barrier:
        op.pending.add(between_.submit(command{}));
        return;
      case all_reduce: {
        if (is_small(op)) return between(op, all_reduce, it.to, it.to, count);
        auto const each = count / here_.local_size;
        auto const even = each * here_.local_size;
        auto* const own = at(it.to, bytes(op, here_.local_rank * each));
        between(op, all_reduce, own, own, each);
        auto* const rest = at(it.to, bytes(op, even));
        if (even < count) between(op, all_reduce, rest, rest, count - even);
        return;
      }
      case reduce_scatter: {
        if (is_ragged(op)) {
          for (int node = 0; node < here_.nodes; ++node) {
            auto const slice = cuts(op).owned(node * here_.local_size + here_.local_rank);
            auto* const values = at(it.to, bytes(op, slice.first));
            between(op, reduce, values, values, slice.count, node);
          }
          return;
        }
        // The slices of this place are moved together, over other slices that are no longer needed.
        auto const each = count / here_.size();
        for (int node = 0; node < here_.nodes; ++node)
          copy(op, at(it.to, bytes(op, node * each)),
               at(it.to, bytes(op, (node * here_.local_size + here_.local_rank) * each)), each);
        settle(op);
        return between(op, reduce_scatter, it.to, it.to, each * here_.nodes);
      }
      case reduce: {
        if (!leads(op)) return;
        auto* const partial = is_root(op) ? it.to : op.it.elements->touchable ? op.a.data() : nullptr;
        return between(op, reduce, partial, partial, count, root_node(op));
      }
      case all_gather:
        return gather_inside(op);
      case broadcast:
        if (leads(op)) between(op, broadcast, it.from, it.to, count, root_node(op));
        return;
      case gather:
        if (leads(op))
          between(op, gather, it.elements->touchable ? op.a.data() : nullptr, it.to, count * here_.local_size,
                  root_node(op));
        return;
      case scatter:
        if (leads(op))
          between(op, scatter, it.from, scratch(op, op.a, count * here_.local_size), count * here_.local_size,
                  root_node(op));
        return;
      case all_to_all:
        return scatter_between(op);
      default:
        return;
    }
  }

  void end_inside(staged& op) {
    using enum collective;
    auto const& it = op.it;
    auto const count = it.what.count;
    switch (it.what.kind) {
      case all_reduce:
        if (!is_small(op)) inside(last_, op, all_gather, it.to, it.to, count - count % here_.local_size);
        return;
      case all_gather:
        return inside_each_node(last_, op);
      case broadcast:
        return inside(last_, op, broadcast, it.from, it.to, count, root_local_rank(op));
      case scatter:
        return inside(last_, op, scatter, leads(op) && it.elements->touchable ? op.a.data() : nullptr, it.to, count,
                      root_local_rank(op));
      default:
        return;
    }
  }

  void finish(staged& op) {
    if (op.it.what.kind != collective::reduce_scatter || is_ragged(op) || here_.nodes == 1 || here_.local_size == 1)
      return;
    auto const each = op.it.what.count / here_.size();
    copy(op, at(op.it.to, bytes(op, here_.rank() * each)), at(op.it.to, bytes(op, here_.node * each)), each);
    settle(op);
  }

  /// The same collective inside, once for each node: the elements of a node's ranks are contiguous.
  void inside_each_node(Inner& world, staged& op) {
    auto const local_size = here_.local_size;
    for (int node = 0; node < here_.nodes; ++node) {
      auto const first = cuts(op).owned(node * local_size).first;
      auto const last = cuts(op).owned(node * local_size + local_size - 1);
      std::span<std::int64_t const> counts = op.counts;
      if (is_ragged(op))
        counts = counts.subspan(static_cast<std::size_t>(node * local_size), static_cast<std::size_t>(local_size));
      auto* const values = at(op.it.to, bytes(op, first));  // also where it.from is
      op.pending.add(world.submit(shard_of(op.it, op.it.what.kind, values, values, last.first + last.count - first,
                                           here_.local_rank, local_size, -1, 1, counts)));
    }
  }

  /// All_gather between the nodes: sends a rank's own part to its place in every node.
  void gather_inside(staged& op) {
    auto const& it = op.it;
    auto const part_of_rank = [&](int rank, bool sent, int node) {
      auto const own = cuts(op).owned(rank);
      return raw_transfer{node, sent, it.what.type, own.count, at(it.to, bytes(op, own.first))};
    };
    op.list.clear();
    for (int node = 0; node < here_.nodes; ++node) {
      if (node == here_.node) continue;
      op.list.push_back(part_of_rank(here_.rank(), true, node));
      op.list.push_back(part_of_rank(node * here_.local_size + here_.local_rank, false, node));
    }
    op.pending.add(between_.submit(parts_of(it, collective::exchange, op.list, here_.node)));
  }

  /// Ragged all_to_all: exchanges how much each rank of this node sends to this place of every node.
  void exchange_counts(staged& op) {
    auto const size = static_cast<std::size_t>(here_.size());
    op.sent.resize(size);
    op.received.resize(size);
    for (int local_rank = 0; local_rank < here_.local_size; ++local_rank)
      for (int node = 0; node < here_.nodes; ++node)
        op.sent[static_cast<std::size_t>(local_rank * here_.nodes + node)] =
            op.raw_transfers[static_cast<std::size_t>(node * here_.local_size + local_rank)].count;
    command it{.what = {collective::all_to_all, dtype::i64, reduction_kind::none, false, -1, here_.size()},
               .from = op.sent.data(),
               .to = op.received.data(),
               .element_bytes = sizeof(std::int64_t),
               .elements = &moving_kernels<host>};
    count_sent(it, here_.local_rank, here_.local_size);
    op.pending.add(counts_.submit(it));
  }

  /// All_to_all inside the node: sends to each place the elements for it, ordered by nodes.
  void scatter_inside(staged& op) {
    auto const& it = op.it;
    auto const local_size = here_.local_size;
    auto const nodes = here_.nodes;
    if (!is_ragged(op)) {
      auto const each = it.what.count / here_.size();
      auto* const packed = scratch(op, op.a, it.what.count);
      auto* const got = scratch(op, op.b, it.what.count);
      for (int local_rank = 0; local_rank < local_size; ++local_rank)
        for (int node = 0; node < nodes; ++node)
          copy(op, at(packed, bytes(op, (local_rank * nodes + node) * each)),
               at(it.from, bytes(op, (node * local_size + local_rank) * each)), each);
      settle(op);
      return inside(first_, op, collective::all_to_all, packed, got, it.what.count);
    }
    auto const total = [](std::vector<std::int64_t> const& counts) {
      return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    };
    auto* const packed = scratch(op, op.a, total(op.sent));
    auto* const got = scratch(op, op.b, total(op.received));
    std::int64_t first = 0;
    for (int local_rank = 0; local_rank < local_size; ++local_rank)
      for (int node = 0; node < nodes; ++node) {
        auto const& mine = op.raw_transfers[static_cast<std::size_t>(node * local_size + local_rank)];
        copy(op, at(packed, bytes(op, first)), mine.address, mine.count);
        first += mine.count;
      }
    settle(op);
    op.list.clear();
    auto const append = [&](bool sent, void* block, std::vector<std::int64_t> const& counts) {
      std::int64_t begin = 0;
      for (int local_rank = 0; local_rank < local_size; ++local_rank) {
        auto const* const row = counts.data() + local_rank * nodes;
        auto const count = std::accumulate(row, row + nodes, std::int64_t{0});
        op.list.push_back({local_rank, sent, it.what.type, count, at(block, bytes(op, begin))});
        begin += count;
      }
    };
    append(true, packed, op.sent);
    append(false, got, op.received);
    op.pending.add(first_.submit(parts_of(it, collective::all_to_all, op.list, here_.local_rank)));
  }

  /// All_to_all between the nodes: sends to each node the elements for its rank of this place, ordered by places.
  void scatter_between(staged& op) {
    auto const& it = op.it;
    auto const local_size = here_.local_size;
    auto const nodes = here_.nodes;
    bool const touchable = it.elements->touchable;
    void* const got = touchable ? op.b.data() : nullptr;
    auto const each = is_ragged(op) ? 0 : it.what.count / here_.size();
    auto const count_from = [&](int local_rank, int node) {
      return is_ragged(op) ? op.received[static_cast<std::size_t>(local_rank * nodes + node)] : each;
    };
    auto const all =
        is_ragged(op) ? std::accumulate(op.received.begin(), op.received.end(), std::int64_t{0}) : it.what.count;
    auto* const packed = scratch(op, op.a, all);
    op.list.clear();
    std::int64_t to = 0;
    for (int node = 0; node < nodes; ++node) {
      auto const begin = to;
      std::int64_t from = 0;
      for (int local_rank = 0; local_rank < local_size; ++local_rank)
        for (int other = 0; other < nodes; ++other) {
          auto const count = count_from(local_rank, other);
          if (other == node) {
            copy(op, at(packed, bytes(op, to)), at(got, bytes(op, from)), count);
            to += count;
          }
          from += count;
        }
      op.list.push_back({node, true, it.what.type, to - begin, at(packed, bytes(op, begin))});
    }
    settle(op);
    if (!is_ragged(op)) return between(op, collective::all_to_all, packed, it.to, it.what.count);
    for (int node = 0; node < nodes; ++node) {
      auto const* const row = op.raw_transfers.data() + here_.size() + node * local_size;
      std::int64_t count = 0;
      for (int local_rank = 0; local_rank < local_size; ++local_rank) count += row[local_rank].count;
      op.list.push_back({node, false, it.what.type, count, row[0].address});
    }
    op.pending.add(between_.submit(parts_of(it, collective::all_to_all, op.list, here_.node)));
  }

  /// Messages inside the node, and messages between nodes.
  void exchange(staged& op) {
    std::vector<raw_transfer> near;
    op.list.clear();
    for (auto const& each : op.raw_transfers) {
      auto& list = each.peer / here_.local_size == here_.node ? near : op.list;
      list.push_back(each);
      if (&list == &near) list.back().peer %= here_.local_size;
    }
    // Check for errors first, so that nothing is half sent.
    if (!op.list.empty()) relay_->start(op.it, op.list, op.pending);
    if (!near.empty()) op.pending.add(last_.submit(parts_of(op.it, collective::exchange, near, here_.local_rank)));
  }

  node_coordinate here_;
  Inner first_;
  Outer between_;
  Inner counts_, last_;
  std::shared_ptr<way> relay_;
  std::shared_ptr<hierarchy_family> family_;
  std::vector<std::unique_ptr<staged>> live_, unused_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_HIERARCHY_INCLUDED

// ---- trireme/comm/hierarchical.hpp (goes on)
namespace trireme::comm {

/// The description of a hierarchical communicator: each rank of `outer` is a node, which runs the ranks of `inner`:
/// `comm::hierarchical{comm::threads{.ranks = 4}, comm::mpi{}}`.
///
/// Inner has `.ranks`, threads of one process (comm::threads); Outer's ranks are processes (comm::mpi,
/// comm::processes), or one (comm::self).
template <class Inner, class Outer>
struct hierarchical {
  using policy_category = slot::communicator;

  Inner inner;
  Outer outer;

  friend bool operator==(hierarchical const&, hierarchical const&) = default;
};
template <class Inner, class Outer>
hierarchical(Inner, Outer) -> hierarchical<Inner, Outer>;

template <class Inner, class Outer>
[[nodiscard]] std::string to_string(hierarchical<Inner, Outer> const& it) {
  return text("comm::hierarchical{", to_string(it.inner), ", ", to_string(it.outer), "}");
}

/// A world of nodes x places, composed of one world inside each node and, for each place, one world across the nodes:
/// rank = outer.rank() * inner.size() + inner.rank().
///
/// Large messages are reduced inside a node first, so that each node sends only one slice of them to other nodes:
///   all_reduce      inner reduce_scatter, outer all_reduce of the slice, inner all_gather; small ones and the elements
///                   that do not divide: inner, then outer all_reduce
///   reduce_scatter  inner for each node, then outer (ragged: an outer reduce for each node)
///   all_gather  to the same place of each node, then inside
///   broadcast, scatter  outer to the root's place, then inside           reduce, gather  inside, then outer
///   all_to_all      inside to the place, then between to the node        barrier         inside, then between
///
/// Bytes    traffic() counts by the formulas of comm::bytes_sent for all ranks; inner() and outer() count the traffic
///          inside and between nodes.
/// Ranks    every rank calls the same collectives in the same order. split: the members of every color must form a grid
///          of whole places and whole nodes, in rank order; otherwise config_error on every rank.
/// Numerics deterministic: the values of a node are combined in the order of its places, then those of the nodes in the
///          order of nodes, each time rounded to the element type. The bits differ from those of a flat world. A mean
///          is divided once, by size().
/// Threads  one caller a rank. Requests progress while their rank tests or waits.
/// Errors   as the worlds below, with their rank numbers. An exchange with a rank of another node and another place
///          needs a world of all ranks: the third argument of the constructor, or a world made by launch; otherwise
///          config_error.
/// @models  communicator; reduce, gather, scatter and all_to_all in host and phantom memory only.
template <communicator Inner, communicator Outer>
class hierarchical_world : public collectives<hierarchical_world<Inner, Outer>> {
  using hierarchy = detail::hierarchy<Inner, Outer>;

 public:
  /// Progresses while this rank tests or waits for any request of this world, or of one that was split or duplicated
  /// from it.
  using request = engine_request<hierarchy, typename hierarchy::operation>;
  using space = typename space_of<Inner>::type;
  static constexpr std::string_view name = "hierarchical";
  static constexpr bool ordered = false;  // node by node

  /// Collective over both. `inner` holds this node's ranks, `outer` the ranks with this place of every node. Without
  /// `whole`, exchanges can only reach ranks of this node or this place.
  hierarchical_world(Inner inner, Outer outer)
      : core_(std::make_shared<hierarchy>(std::move(inner), std::move(outer), nullptr)) {
    expect_grid();
    core_->carry_with(std::make_shared<detail::column_relay<Inner, Outer>>(this->outer().duplicate(), core_->here()));
  }
  /// `whole` holds all ranks in the same order as here: the world that both were split from.
  template <communicator Whole>
  hierarchical_world(Inner inner, Outer outer, Whole& whole)
      : core_(std::make_shared<hierarchy>(std::move(inner), std::move(outer), nullptr)) {
    expect_grid();
    if (whole.rank() != rank() || whole.size() != size())
      throw config_error(text("trireme::comm::hierarchical: this is rank ", whole.rank(), " of ", whole.size(),
                              " in the whole world, but rank ", rank(), " of ", size(),
                              " by its parts; split it by rank / places and by rank % places"));
    core_->carry_with(std::make_shared<detail::whole_relay<Inner, Outer, Whole>>(whole.duplicate()));
  }
  explicit hierarchical_world(std::shared_ptr<hierarchy> core) : core_(std::move(core)) {}

  [[nodiscard]] int rank() const noexcept { return core_->here().rank(); }
  [[nodiscard]] int size() const noexcept { return core_->here().size(); }
  [[nodiscard]] Inner& inner() noexcept { return core_->inner(); }
  [[nodiscard]] Outer& outer() noexcept { return core_->outer(); }

  template <class Space>
  static constexpr bool supports(collective kind, dtype type, reduction_kind op) noexcept {
    using enum collective;
    if (op == reduction_kind::pairwise) return false;  // the tree over all ranks does not follow the two levels
    constexpr collective staged[] = {barrier, all_reduce, reduce_scatter, reduce,     all_gather,
                                     gather,  scatter,    broadcast,      all_to_all, exchange};
    if (std::ranges::find(staged, kind) == std::ranges::end(staged))
      return false;  // the collectives that detail/hierarchy.hpp implements
    auto const below = [&](collective each, reduction_kind how) {
      return Inner::template supports<Space>(each, type, how) && Outer::template supports<Space>(each, type, how);
    };
    bool const scratch = kind == reduce || kind == gather || kind == scatter || kind == all_to_all;
    if (scratch && !std::same_as<Space, host> && !std::same_as<Space, phantom>) return false;
    if (kind == all_reduce && !(below(reduce_scatter, op) && below(all_gather, reduction_kind::none))) return false;
    if (kind == reduce_scatter && !below(reduce, op)) return false;  // ragged
    if (kind == all_gather && !below(exchange, reduction_kind::none)) return false;
    return below(kind, op);
  }
  void run(command const& it) { start(it).wait(); }
  [[nodiscard]] request start(command const& it) { return {core_, core_->start(it)}; }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] hierarchical_world split(int color, int key) {
    detail::expect_color(hierarchical_world::who(), color);
    auto const part = choose(color, key);
    return hierarchical_world(core_->split(part.group, part.local_rank, part.node));
  }
  /// The same ranks again, with counters and an order of calls of its own.
  [[nodiscard]] hierarchical_world duplicate() {
    return hierarchical_world(core_->split(0, core_->here().local_rank, core_->here().node));
  }
  [[nodiscard]] hierarchical_world duplicate(std::chrono::milliseconds deadline) requires
      requires(Inner& inside, Outer& between) {
    Inner(inside.duplicate(deadline));
    Outer(between.duplicate(deadline));
  }
  { return hierarchical_world(core_->duplicate(deadline)); }

  template <element T>
  [[nodiscard]] auto allocate(shape extents) {
    if constexpr (requires { outer().template allocate<T>(extents); })
      return outer().template allocate<T>(extents);
    else if constexpr (requires { inner().template allocate<T>(extents); })
      return inner().template allocate<T>(extents);
    else
      return tensor<T>(extents);
  }
  /// Reports to the other ranks that this one ends with an error, which ends their waits.
  void abandon(std::string const& sentence) noexcept {
    if constexpr (requires { inner().abandon(sentence); }) inner().abandon(sentence);
    if constexpr (requires { outer().abandon(sentence); }) outer().abandon(sentence);
  }

 private:
  struct chosen {
    int group = 0, local_rank = 0, node = 0;
  };

  /// All ranks see the choices of all, so either all ranks throw or none.
  [[nodiscard]] chosen choose(int color, int key) {
    std::vector<detail::color_and_key> wishes(static_cast<std::size_t>(size()));
    wishes[static_cast<std::size_t>(rank())] = {color, key};
    command gather{.what = {collective::all_gather, dtype::i32, reduction_kind::none, false, -1,
                            2 * static_cast<std::int64_t>(wishes.size())},
                   .from = wishes.data(),
                   .to = wishes.data(),
                   .element_bytes = sizeof(std::int32_t),
                   .elements = &detail::moving_kernels<host>};
    run(gather);

    auto const color_of = [&](int rank) { return wishes[static_cast<std::size_t>(rank)].color; };
    int const local_size = core_->here().local_size;
    chosen out;
    for (int first = 0; first < size(); ++first) {
      bool seen = false;
      for (int rank = 0; rank < first; ++rank) seen = seen || color_of(rank) == color_of(first);
      if (seen) continue;
      auto const members = detail::ranks_of_color(wishes, color_of(first));
      // A grid: rows of one node each, all with the same places in the same order.
      int wide = 1;
      while (wide < static_cast<int>(members.size()) &&
             members[static_cast<std::size_t>(wide)] / local_size == members[0] / local_size)
        ++wide;
      for (int i = 0; i < static_cast<int>(members.size()); ++i) {
        auto const it = members[static_cast<std::size_t>(i)];
        auto const node = members[static_cast<std::size_t>(i / wide * wide)] / local_size;
        auto const local_rank = members[static_cast<std::size_t>(i % wide)] % local_size;
        if (it != node * local_size + local_rank || static_cast<int>(members.size()) % wide != 0)
          throw config_error(text("trireme::comm::hierarchical::split: the ranks of color ", color_of(first),
                                  " do not form a grid of nodes and places (rank ", it,
                                  " does not fit); "
                                  "give one color to the same places of whole nodes, "
                                  "or split the world that this one was made of"));
        if (it == rank()) out = {first, i % wide, i / wide};
      }
    }
    return out;
  }

  /// Every node has as many places, and every place as many nodes.
  void expect_grid() {
    auto const here = core_->here();
    std::vector<std::int32_t> seen(4 * static_cast<std::size_t>(here.local_size));
    auto const mine = 4 * static_cast<std::size_t>(here.local_rank);
    seen[mine] = here.node;
    seen[mine + 1] = here.nodes;
    seen[mine + 2] = here.local_rank;
    seen[mine + 3] = here.local_size;
    inner().all_gather(tensor_view{seen});
    bool right = true;
    for (std::size_t i = 0; i < seen.size(); i += 4) right = right && seen[i] == here.node && seen[i + 1] == here.nodes;
    std::int32_t extremes[] = {here.local_rank, -here.local_rank, here.local_size, -here.local_size, right ? 0 : 1};
    outer().all_reduce(tensor_view<std::int32_t>(extremes, shape{5}), reduction::max{});
    if (!(extremes[0] == -extremes[1] && extremes[2] == -extremes[3] && extremes[4] == 0))
      throw config_error(
          "trireme::comm::hierarchical: the worlds do not form a grid; "
          "split one world by rank / places for the inner worlds and by rank % places for the outer worlds");
  }

  std::shared_ptr<hierarchy> core_;
};

/// How trireme::launch runs a body on comm::hierarchical: in each process of Outer, on the ranks of Inner.
template <class Inner, class Outer, class Body>
auto launch_ranks(hierarchical<Inner, Outer> const& description, Body& body) {
  auto node = [&](auto& between) {
    using outer_world = std::remove_reference_t<decltype(between)>;
    static_assert(std::same_as<outer_world, self_world> || !has_peers<outer_world, std::uint8_t, host>,
                  "trireme::launch: comm::hierarchical needs processes as outer communicator (comm::mpi{...} or "
                  "comm::processes{...}); "
                  "for threads alone, split one world of threads.");
    auto local_rank = [&](auto& inside) {
      using inner_world = std::remove_reference_t<decltype(inside)>;
      using hierarchy = detail::hierarchy<inner_world, outer_world>;
      std::optional<outer_world> own;
      detail::in_turn(inside, [&] { own.emplace(between.duplicate()); });
      auto core = std::make_shared<hierarchy>(inside.duplicate(), std::move(*own), nullptr);
      core->carry_with(
          std::make_shared<detail::crossing_relay<inner_world, outer_world>>(core->inner(), core->outer()));
      hierarchical_world<inner_world, outer_world> world(std::move(core));
      try {
        return std::invoke(body, world);
      } catch (...) {
        world.abandon(detail::sentence_of(std::current_exception()));
        throw;
      }
    };
    if constexpr (requires { between.expect_several_callers(); }) between.expect_several_callers();
    return launch_ranks(description.inner, local_rank);
  };
  return launch_ranks(description.outer, node);
}

}  // namespace trireme::comm
