#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/buffer_pool.hpp"
#include "trireme/parallel/detail/partial_sums.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::parallel::detail {

/// The gradients of all buckets, from zero to the sum over all ranks.
///
/// Resident gradients have their memory for good, and a bucket is reduced once a step. Pooled ones (sharded, or summed
/// in a tree) borrow it for each micro-batch, from open() until they are reduced or have become a term of the tree.
/// Each use of a tied tensor has a lane, a gradient the size of its bucket. Resident lanes are added and then reduced;
/// pooled ones are reduced by themselves and then added.
template <class Env, class Comm, strategy Strategy, class Compressor>
class gradient_store {
 public:
  using space = typename Env::space;
  using element = typename Env::gradient;
  using view = tensor_view<element, space>;
  using kernels = ops::on<space>;
  using bucket_transport = transport<Env, Comm, Strategy, Compressor>;
  static constexpr bool sharded = Strategy::gradients == distribution::shard;

  /// @param direct  sums are formed by who reads them: nothing is sent.
  gradient_store(layout const& plan, std::vector<parameter<Env>*> const& uses, Comm& world,
                 Compressor const& compressor, bool in_a_tree, bool direct)
      : plan_(plan),
        uses_(uses),
        world_(world),
        compressor_(compressor),
        pool_(plan),
        in_a_tree_(in_a_tree),
        direct_(direct),
        in_order_(plan.units().empty()) {
    first_lane_.reserve(plan.buckets().size());
    for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
      first_lane_.push_back(static_cast<int>(lanes_.size()));
      auto const& entries = plan.buckets()[static_cast<std::size_t>(b)].entries;
      auto const ways = plan.at(entries.front()).uses.size();  // several only where the tensor is alone
      for (std::size_t which = 0; which < ways; ++which) {
        auto& it = lanes_.emplace_back();
        it.bucket = b;
        it.sent = pooled() || which == 0;
        for (int const e : entries) it.uses.push_back(plan.at(e).uses[which]);
        it.reports = static_cast<int>(it.uses.size()) * (pooled() || which > 0 ? 1 : static_cast<int>(ways));
        if (!pooled()) open(it);
        if constexpr (sharded) {
          it.shard = trireme::tensor<element, space>(shape{plan.slice_elements(b)});
          kernels::fill(it.shard.view(), 0.0);
        }
      }
    }
    lane_of_use_.resize(uses_count());
    for (int l = 0; l < static_cast<int>(lanes_.size()); ++l) {
      for (int const use : lanes_[static_cast<std::size_t>(l)].uses) {
        auto const& it = lanes_[static_cast<std::size_t>(l)];
        lane_of_use_[static_cast<std::size_t>(use)] = it.sent ? l : first_lane_[static_cast<std::size_t>(it.bucket)];
      }
    }
  }
  gradient_store(gradient_store const&) = delete;
  gradient_store& operator=(gradient_store const&) = delete;

  [[nodiscard]] bool pooled() const noexcept { return sharded || in_a_tree_; }
  [[nodiscard]] exchange_times& times() noexcept { return times_; }
  [[nodiscard]] exchange_times const& times() const noexcept { return times_; }
  [[nodiscard]] bool lost_finiteness() const noexcept { return lost_finiteness_; }
  void record(observe::timeline& timeline) {
    timeline_ = &timeline;
    for (auto& it : lanes_) it.label = timeline.intern(text("bucket ", it.bucket));
  }
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  /// Starts a step.
  /// @param leaves  logical micro-batches of this rank, the terms of its part of the tree.
  /// @param places  which of them it runs, ascending; the others add nothing. Its first one is at `first`.
  /// @param rounds  the most micro-batches that any rank runs: lanes are reported so often.
  void begin(std::int64_t leaves, std::span<std::int64_t const> places, std::int64_t first, std::int64_t rounds) {
    leaves_ = leaves;
    rounds_ = rounds;
    places_.clear();
    for (auto const place : places) places_.push_back(place - first);
    for (auto& it : lanes_) {
      it.missing = it.reports;
      it.rounds = 0;
      if (!pooled()) {
        kernels::fill(whole(it), 0.0);
        continue;
      }
      if (it.flying) it.open->wire->wait();
      it.flying = false;
      close(it);
      it.sums.clear([&](std::unique_ptr<buffer> sum) { pool_.give(elements(it), std::move(sum)); });
    }
    in_flight_.clear();
    next_ = 0;
    lost_finiteness_ = false;
  }

  /// Gives the gradients of a unit memory, zero, for one micro-batch. Meanwhile only the unit before it is reduced.
  void open_unit(int unit) {
    if (!pooled()) return;
    make_room();
    auto const& [first, last, buckets] = plan_.units()[static_cast<std::size_t>(unit)];
    for (int use = first; use < last; ++use) open(lane_of(use));
  }
  /// The gradient of one use, where the caller writes it himself (parameters in his memory).
  [[nodiscard]] view open_use(int use) {
    auto& it = lane_of(use);
    if (it.open == nullptr) {
      make_room();
      open(it);
    }
    auto const& entry = plan_.at(plan_.entry_of_use(use));
    return whole(it).flat(entry.offset, entry.size());
  }

  /// The gradient of one use is final for this micro-batch.
  void ready(int use) {
    auto const start = now();
    auto& it = lane_of(use);
    --it.missing;
    if (in_order_) {
      start_in_order();
    } else if (pooled()) {
      if (it.missing == 0) complete(it);
    } else {
      start_in_order();
    }
    progress();
    if constexpr (!progresses_alone<Comm>) times_.covered += now() - start;
  }

  /// Starts what has not been reported (a rank without samples has reported nothing) and waits for everything.
  void finish(double start) {
    if (!pooled() || in_order_) {
      for (auto& it : lanes_) it.missing = 0;
      start_in_order();
    }
    while (!in_flight_.empty()) collect(*in_flight_.front(), start);
    if (!pooled()) return;
    for (std::size_t l = 1; l < lanes_.size(); ++l) {  // the uses of a tied tensor, in their order
      auto& it = lanes_[l];
      auto& first = first_lane(it.bucket);
      if (&first == &it) continue;
      auto const sum = sharded ? first.shard.view() : whole(first);
      kernels::add(sum, tensor_view<element const, space>(sharded ? it.shard.view() : whole(it)));
    }
  }

  /// After finish(): the sum over all ranks of elements [first, first + count) of a bucket, of the owned slice where
  /// the optimizer's state is sharded.
  [[nodiscard]] view reduced(int bucket, std::int64_t first, std::int64_t count) const {
    auto const& it = first_lane(bucket);
    if constexpr (sharded) {
      return it.shard.view().flat(first - world_.rank() * plan_.slice_elements(bucket), count);
    } else {
      return whole(it).flat(first, count);
    }
  }
  /// All of a bucket's resident gradient.
  [[nodiscard]] view resident(int bucket) const { return whole(first_lane(bucket)); }
  /// The compressor's state of a bucket whose gradient is resident; null where it is pooled.
  [[nodiscard]] compressor_state<Compressor, Env>* compressor(int bucket) const {
    if (pooled()) return nullptr;
    return &first_lane(bucket).open->wire->compressor();
  }
  void record_bucket(int bucket) { record_lane(first_lane(bucket)); }

  /// Bytes of gradients that are always here, and of what is borrowed: buffers, and payloads of compressors.
  [[nodiscard]] std::int64_t kept_bytes() const {
    std::int64_t sum = 0;
    for (auto const& it : lanes_) {
      sum += static_cast<std::int64_t>(it.shard.view().bytes());
      if (!pooled()) sum += static_cast<std::int64_t>(it.open->values.view().bytes());
    }
    return sum;
  }
  [[nodiscard]] std::int64_t buffer_bytes() const noexcept {
    return (pooled() ? pool_.elements() * static_cast<std::int64_t>(sizeof(element)) : 0) + payload_bytes_;
  }

 private:
  struct buffer {
    trireme::tensor<element, space> values;
    std::optional<bucket_transport> wire;
  };
  struct lane {
    int bucket = 0;
    bool sent = true;       // reduced by itself
    std::vector<int> uses;  // whose gradients lie here
    int reports = 0;        // calls of ready() that complete it
    int missing = 0;
    std::unique_ptr<buffer> open;
    partial_sums<buffer> sums;              // of the tree over this rank's micro-batches
    trireme::tensor<element, space> shard;  // the own slice of what has been reduced in this step
    std::int64_t rounds = 0;                // micro-batches reported, or (sharded) reduced, in this step
    bool flying = false;
    std::int64_t epoch = 0;  // open_unit() calls before it was sent
    double start_time = 0;
    double done_time = 0;
    std::uint64_t start_ns = 0;
    std::string_view label;
  };

  [[nodiscard]] std::size_t uses_count() const {
    std::size_t count = 0;
    for (auto const& entry : plan_.entries()) count += entry.uses.size();
    return count;
  }
  [[nodiscard]] lane& first_lane(int bucket) {
    return lanes_[static_cast<std::size_t>(first_lane_[static_cast<std::size_t>(bucket)])];
  }
  [[nodiscard]] lane const& first_lane(int bucket) const {
    return lanes_[static_cast<std::size_t>(first_lane_[static_cast<std::size_t>(bucket)])];
  }
  [[nodiscard]] lane& lane_of(int use) {
    return lanes_[static_cast<std::size_t>(lane_of_use_[static_cast<std::size_t>(use)])];
  }
  [[nodiscard]] std::int64_t elements(lane const& it) const {
    return plan_.buckets()[static_cast<std::size_t>(it.bucket)].elements;
  }
  [[nodiscard]] view whole(lane const& it) const { return it.open->values.view().flat(0, elements(it)); }

  void open(lane& it) {
    if (it.flying) collect(it, now());
    if (it.open != nullptr) return;
    it.open = pool_.take(elements(it), [&](std::int64_t n) {
      auto made = std::make_unique<buffer>();
      made->values = message_tensor<element, space>(world_, shape{pooled() ? n : elements(it)});
      if (it.sent) {
        made->wire.emplace(compressor_, made->values.view().size(), world_);
        payload_bytes_ += static_cast<std::int64_t>(made->wire->bytes());
      }
      return made;
    });
    kernels::fill(whole(it), 0.0);
    bind(it, whole(it));
  }
  void close(lane& it) {
    if (it.open == nullptr) return;
    bind(it, {});
    pool_.give(elements(it), std::move(it.open));
  }
  void bind(lane const& it, view values) {
    if (uses_.empty()) return;
    for (int const use : it.uses) {
      auto const& entry = plan_.at(plan_.entry_of_use(use));
      uses_[static_cast<std::size_t>(use)]->gradient =
          values.empty() ? view{} : values.flat(entry.offset, entry.size()).reshaped(entry.info.extents);
    }
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
    for (; next_ < lanes_.size() && (lanes_[next_].missing == 0 || !lanes_[next_].sent); ++next_) {
      auto& it = lanes_[next_];
      if (!it.sent) continue;
      if (it.open == nullptr) open(it);
      add_uses(next_);
      send(it);
    }
  }
  void add_uses(std::size_t first) {
    for (auto l = first + 1; l < lanes_.size() && !lanes_[l].sent; ++l) {
      kernels::add(whole(lanes_[first]), tensor_view<element const, space>(whole(lanes_[l])));
    }
  }
  // One micro-batch of a pooled lane, or nothing where it was not opened.
  void complete(lane& it) {
    it.missing = it.reports;
    if (in_a_tree_) {
      auto const n = elements(it);
      auto const merge = [&](buffer& left, std::unique_ptr<buffer> right) {
        kernels::add(left.values.view().flat(0, n), tensor_view<element const, space>(right->values.view().flat(0, n)));
        pool_.give(n, std::move(right));
      };
      auto const round = static_cast<std::size_t>(it.rounds++);
      if (it.open != nullptr) it.sums.add(leaves_, places_[round], std::move(it.open), merge);
      if (it.rounds < rounds_) return bind(it, {});
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
      if (!kernels::finite(tensor_view<element const, space>(whole(it)))) lost_finiteness_ = true;
    }
    if (direct_) return;
    it.open->wire->begin(world_, whole(it), in_a_tree_);
    it.flying = true;
    it.epoch = epoch_;
    in_flight_.push_back(&it);
  }
  void progress() {
    for (auto* const it : in_flight_) {
      if (it->open->wire->test() && it->done_time == not_done) it->done_time = now();
    }
  }
  // Waits for a lane; what it did before `asked` was covered by backward.
  void collect(lane& it, double asked) {
    it.open->wire->wait();
    it.flying = false;
    in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &it));
    if constexpr (progresses_alone<Comm>) {
      times_.covered += std::max(0.0, std::min(asked, it.done_time) - it.start_time);
    }
    record_lane(it);
    if constexpr (sharded) {
      auto const n = plan_.slice_elements(it.bucket);
      auto const slice = tensor_view<element const, space>(whole(it).flat(world_.rank() * n, n));
      if (it.rounds++ == 0) {
        kernels::copy(it.shard.view(), slice);
      } else {
        kernels::add(it.shard.view(), slice);
      }
      close(it);
    }
  }
  void record_lane(lane const& it) {
    if (timeline_ == nullptr) return;
    timeline_->record({it.label, "exchange", it.start_ns, observe::timeline::now(), 1});
  }

  static constexpr double not_done = std::numeric_limits<double>::infinity();
  layout const& plan_;
  std::vector<parameter<Env>*> const& uses_;
  Comm& world_;
  Compressor compressor_;
  buffer_pool<buffer> pool_;
  bool in_a_tree_;
  bool direct_;
  bool in_order_;  // no units: ready() may come in any order
  std::vector<lane> lanes_;
  std::vector<int> first_lane_;   // by bucket
  std::vector<int> lane_of_use_;  // whose missing reports it counts in
  std::vector<lane*> in_flight_;  // in the order in which they were sent
  std::int64_t leaves_ = 1;
  std::int64_t rounds_ = 1;
  std::vector<std::int64_t> places_;
  std::int64_t epoch_ = 0;
  std::size_t next_ = 0;
  std::int64_t payload_bytes_ = 0;
  bool lost_finiteness_ = false;
  exchange_times times_;
  observe::timeline* timeline_ = nullptr;
};

}  // namespace trireme::parallel::detail
