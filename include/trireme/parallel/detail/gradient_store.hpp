#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/gradient_lanes.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::parallel::detail {

/// The gradients of all buckets, from zero to the sum over all ranks.
///
/// Resident gradients are reduced once a step. Pooled ones (sharded, or summed in a tree) have memory from open_unit()
/// until they are reduced or have become a term of the tree, in each micro-batch.
template <class Env, class Comm, strategy Strategy, class Compressor>
class gradient_store {
  using lanes = gradient_lanes<Env, Comm, Strategy, Compressor>;
  using lane = typename lanes::lane;
  using buffer = typename lanes::buffer;
  using kernels = typename lanes::kernels;
  using wire = typename lanes::bucket_transport;

 public:
  using space = typename lanes::space;
  using element = typename lanes::element;
  using view = typename lanes::view;
  static constexpr bool sharded = lanes::sharded;

  /// @param direct  sums are formed by who reads them: nothing is sent.
  gradient_store(layout const& plan, std::vector<parameter<Env>*> const& uses, Comm& world,
                 Compressor const& compressor, bool in_a_tree, bool direct)
      : plan_(plan),
        world_(world),
        lanes_(plan, uses, world, compressor, sharded || in_a_tree),
        in_a_tree_(in_a_tree),
        direct_(direct),
        in_order_(!pooled() || plan.units().empty()) {}
  gradient_store(gradient_store const&) = delete;
  gradient_store& operator=(gradient_store const&) = delete;

  [[nodiscard]] bool pooled() const noexcept { return lanes_.pooled(); }
  [[nodiscard]] exchange_times& times() noexcept { return times_; }
  [[nodiscard]] exchange_times const& times() const noexcept { return times_; }
  [[nodiscard]] bool lost_finiteness() const noexcept { return lost_finiteness_; }
  void record(observe::timeline& timeline) {
    timeline_ = &timeline;
    for (auto& it : lanes_.all()) it.label = timeline.intern(text("bucket ", it.bucket));
  }
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  /// Starts a step.
  /// @param leaves  logical micro-batches of this rank, the terms of its part of the tree.
  /// @param places  which of them it runs, ascending; the others add nothing. Its first one is at `first`.
  /// @param rounds  the most micro-batches that any rank runs: lanes are reported so often.
  /// @param scale   the factor that this step's gradients carry.
  void begin(std::int64_t leaves, std::span<std::int64_t const> places, std::int64_t first, std::int64_t rounds,
             double scale = 1) {
    scale_ = scale;
    leaves_ = leaves;
    rounds_ = rounds;
    places_.clear();
    for (auto const place : places) places_.push_back(place - first);
    for (auto& it : lanes_.all()) {
      it.missing = it.reports;
      it.rounds = 0;
      while (it.flying) it.flying = !it.open->wire->turn();  // of a step that was given up
      if (!pooled()) {
        kernels::fill(lanes_.whole(it), 0.0);
        continue;
      }
      lanes_.close(it);
      it.sums.clear([&](std::unique_ptr<buffer> sum) { lanes_.give_back(it, std::move(sum)); });
    }
    lanes_.clear_frozen();
    in_flight_.clear();
    next_ = 0;
    lost_finiteness_ = false;
  }

  /// Gives the gradients of a unit memory, zero, for one micro-batch. Meanwhile only the unit before it is reduced.
  void open_unit(int unit) {
    if (!pooled()) return;
    make_room();
    auto const& [first, last, buckets] = plan_.units()[static_cast<std::size_t>(unit)];
    for (int use = first; use < last; ++use) {
      if (plan_.trains(use)) open(lanes_.of_use(use));
    }
  }
  /// The gradient of one use, where the caller writes it himself (parameters in his memory).
  [[nodiscard]] view open_use(int use) {
    auto& it = lanes_.of_use(use);
    if (it.open == nullptr) {
      make_room();
      open(it);
    }
    return lanes_.of_use(it, use);
  }

  /// The gradient of one use is final for this micro-batch.
  void ready(int use) {
    if (!plan_.trains(use)) return;
    auto const start = now();
    auto& it = lanes_.of_use(use);
    --it.missing;
    if (in_order_) {
      start_in_order();
    } else if (it.missing == 0) {
      complete(it);
    }
    progress();
    if constexpr (!progresses_alone<Comm>) times_.covered += now() - start;
  }

  /// Starts what has not been reported (a rank without samples has reported nothing) and waits for everything.
  void finish(double start) {
    if (in_order_) {
      for (auto& it : lanes_.all()) it.missing = 0;
      start_in_order();
    }
    while (!in_flight_.empty()) turn_all(start);
    if (!pooled()) return;
    for (auto& it : lanes_.all()) {  // the uses of a tied tensor, in their order
      auto& first = lanes_.first(it.bucket);
      if (&first == &it) continue;
      auto const sum = sharded ? first.shard.view() : lanes_.whole(first);
      kernels::add(sum, tensor_view<element const, space>(sharded ? it.shard.view() : lanes_.whole(it)));
    }
  }

  /// After finish(): the sum over all ranks of elements [first, first + count) of a bucket, of the owned slice where
  /// the optimizer's state is sharded.
  [[nodiscard]] view reduced(int bucket, std::int64_t first, std::int64_t count) const {
    auto const& it = lanes_.first(bucket);
    if constexpr (sharded) {
      return it.shard.view().flat(first - world_.rank() * plan_.slice_elements(bucket), count);
    } else {
      return lanes_.whole(it).flat(first, count);
    }
  }
  /// All of a bucket's resident gradient.
  [[nodiscard]] view resident(int bucket) const { return lanes_.whole(lanes_.first(bucket)); }
  /// The step was taken: compressors make what they have prepared their state.
  void commit() {
    if (pooled()) return;
    for (auto& it : lanes_.all()) {
      if (it.sent) it.open->wire->commit();
    }
  }
  /// Calls f(name, place, view) for what the compressor of a bucket keeps from step to step.
  template <class F>
  void visit_state(int bucket, state_scope scope, F&& f) const {
    if constexpr (keeps_state<wire>) {
      if (!pooled()) lanes_.first(bucket).open->wire->visit_state(scope, f);
    }
  }
  void forget_state() { lanes_.forget_state(); }
  void record_bucket(int bucket) { record_lane(lanes_.first(bucket)); }

  /// Bytes of gradients that are always here, and of what is borrowed: buffers, and what compressors hold.
  [[nodiscard]] std::int64_t kept_bytes() const { return lanes_.kept_bytes(); }
  [[nodiscard]] std::int64_t buffer_bytes() const noexcept { return lanes_.buffer_bytes(); }

 private:
  void open(lane& it) {
    if (it.flying) collect(it, now());
    lanes_.open(it);
  }
  // Waits for what was sent before the last unit was opened.
  void make_room() {
    while (!in_flight_.empty() && in_flight_.front()->epoch < epoch_) {
      auto const start = now();
      collect(*in_flight_.front(), start);
      times_.exposed += now() - start;
    }
    ++epoch_;
  }

  // In the order of buckets, so that every rank starts the same collectives in the same order.
  void start_in_order() {
    auto& all = lanes_.all();
    for (; next_ < all.size() && (all[next_].missing == 0 || !all[next_].sent); ++next_) {
      auto& it = all[next_];
      if (!it.sent) continue;
      if (it.open == nullptr) open(it);
      for (auto l = next_ + 1; l < all.size() && !all[l].sent; ++l)  // further uses of a tied tensor
        kernels::add(lanes_.whole(it), tensor_view<element const, space>(lanes_.whole(all[l])));
      send(it);
    }
  }
  // One micro-batch of a pooled lane, or nothing where it was not opened.
  void complete(lane& it) {
    it.missing = it.reports;
    if (in_a_tree_) {
      auto const n = lanes_.elements(it);
      auto const merge = [&](buffer& left, std::unique_ptr<buffer> right) {
        kernels::add(left.values.view().flat(0, n), tensor_view<element const, space>(right->values.view().flat(0, n)));
        lanes_.give_back(it, std::move(right));
      };
      auto const round = static_cast<std::size_t>(it.rounds++);
      if (it.open != nullptr) it.sums.add(leaves_, places_[round], std::move(it.open), merge);
      if (it.rounds < rounds_) return lanes_.bind(it, {});
      it.open = it.sums.take(leaves_, merge);
      open(it);  // if it has nothing
      it.rounds = 0;
    }
    send(it);
  }
  void send(lane& it) {
    it.start_time = now();
    it.done_time = not_done;
    if (timeline_ != nullptr) it.start_ns = observe::timeline::now();
    // A lossy payload may leave out the very number that is not finite: look before it is coded.
    if constexpr (!lossless_identity<Compressor>) {
      if (!kernels::finite(tensor_view<element const, space>(lanes_.whole(it)))) lost_finiteness_ = true;
    }
    if (direct_) return;
    start(*it.open->wire, lanes_.whole(it));
    // Buckets are sent in one order on every rank, so this is a place where rounds may begin.
    if (takes_rounds(*it.open->wire)) turn_all(now());
    it.flying = true;
    it.epoch = epoch_;
    in_flight_.push_back(&it);
  }
  void start(wire& way, view gradient) {
    if constexpr (sums_in_tree<wire>) {
      if (in_a_tree_) return way.begin_in_a_tree(gradient);
    }
    way.begin(gradient, scale_);
  }
  void progress() {
    for (auto* const it : in_flight_) {
      if (it->open->wire->test() && it->done_time == not_done) it->done_time = now();
    }
  }
  // A round of every bucket that is on its way, in the order in which they were sent.
  void turn_all(double asked) {
    for (std::size_t i = 0; i < in_flight_.size();) {
      if (!turn(*in_flight_[i], asked)) ++i;  // else it has left the list
    }
  }
  void collect(lane& it, double asked) {
    while (!turn(it, asked)) {
    }
  }
  // Waits for a round of a lane; what it did before `asked` was covered by backward.
  bool turn(lane& it, double asked) {
    if (!it.open->wire->turn()) return false;
    it.flying = false;
    in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &it));
    if constexpr (progresses_alone<Comm>) {
      times_.covered += std::max(0.0, std::min(asked, it.done_time) - it.start_time);
    }
    record_lane(it);
    if constexpr (sharded) {
      auto const n = plan_.slice_elements(it.bucket);
      auto const slice = tensor_view<element const, space>(lanes_.whole(it).flat(world_.rank() * n, n));
      if (it.rounds++ == 0) {
        kernels::copy(it.shard.view(), slice);
      } else {
        kernels::add(it.shard.view(), slice);
      }
      lanes_.close(it);
    }
    return true;
  }
  void record_lane(lane const& it) {
    if (timeline_ == nullptr) return;
    timeline_->record({it.label, "exchange", it.start_ns, observe::timeline::now(), 1});
  }

  static constexpr double not_done = std::numeric_limits<double>::infinity();
  layout const& plan_;
  Comm& world_;
  lanes lanes_;
  bool in_a_tree_;
  bool direct_;
  bool in_order_;                 // ready() may come in any order: lanes are sent in theirs
  std::vector<lane*> in_flight_;  // in the order in which they were sent
  std::int64_t leaves_ = 1;
  std::int64_t rounds_ = 1;
  double scale_ = 1;
  std::vector<std::int64_t> places_;
  std::int64_t epoch_ = 0;
  std::size_t next_ = 0;
  bool lost_finiteness_ = false;
  exchange_times times_;
  observe::timeline* timeline_ = nullptr;
};

}  // namespace trireme::parallel::detail
