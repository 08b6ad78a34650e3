#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/buffer_pool.hpp"
#include "trireme/parallel/detail/chosen_transport.hpp"
#include "trireme/parallel/detail/partial_sums.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::parallel::detail {

/// Where gradients lie: each bucket has a lane, a gradient of its size, for each use of its tensors (several only where
/// a tied tensor is alone). Resident lanes have their memory for good, pooled ones borrow it from open() to close().
/// What is frozen has no lane: layers write its gradients, as all others, and all of them share one place for that.
template <class Env, class Comm, strategy Strategy, class Compressor>
class gradient_lanes {
 public:
  using space = typename Env::space;
  using element = typename Env::gradient;
  using view = tensor_view<element, space>;
  using kernels = ops::on<space>;
  using bucket_transport = transport<Env, Comm, Strategy, Compressor>;
  static constexpr bool sharded = Strategy::gradients == distribution::shard;

  /// The memory of a lane, and its way to the other ranks.
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
    std::int64_t epoch = 0;  // units opened before it was sent
    double start_time = 0;
    double done_time = 0;
    std::uint64_t start_ns = 0;
    std::string_view label;
  };

  gradient_lanes(layout const& plan, std::vector<parameter<Env>*> const& uses, Comm& world,
                 Compressor const& compressor, bool pooled)
      : plan_(plan), uses_(uses), world_(world), compressor_(compressor), pool_(plan), pooled_(pooled) {
    std::size_t count = 0;
    for (int b = 0; b < plan.trained_buckets(); ++b) {
      first_.push_back(count);
      count += plan.at(plan.buckets()[static_cast<std::size_t>(b)].entries.front()).uses.size();
    }
    lanes_ = std::vector<lane>(count);
    for (std::size_t b = 0; b < first_.size(); ++b) {
      auto const end = b + 1 < first_.size() ? first_[b + 1] : count;
      for (auto l = first_[b]; l < end; ++l) make(l, static_cast<int>(b), static_cast<int>(end - first_[b]));
    }
    bind_frozen();
  }
  gradient_lanes(gradient_lanes const&) = delete;
  gradient_lanes& operator=(gradient_lanes const&) = delete;

  [[nodiscard]] bool pooled() const noexcept { return pooled_; }
  [[nodiscard]] std::vector<lane>& all() noexcept { return lanes_; }
  /// That of the first uses, where the bucket's sum ends up.
  [[nodiscard]] lane& first(int bucket) { return lanes_[first_[static_cast<std::size_t>(bucket)]]; }
  [[nodiscard]] lane const& first(int bucket) const { return lanes_[first_[static_cast<std::size_t>(bucket)]]; }
  /// That in which missing reports of a use are counted.
  [[nodiscard]] lane& of_use(int use) { return lanes_[lane_of_use_[static_cast<std::size_t>(use)]]; }

  [[nodiscard]] std::int64_t elements(lane const& it) const {
    return plan_.buckets()[static_cast<std::size_t>(it.bucket)].elements;
  }
  [[nodiscard]] view whole(lane const& it) const { return it.open->values.view().flat(0, elements(it)); }
  /// The gradient of one use within its open lane.
  [[nodiscard]] view of_use(lane const& it, int use) const {
    auto const& entry = plan_.at(plan_.entry_of_use(use));
    return whole(it).flat(entry.offset, entry.size());
  }

  /// What layers have written for frozen parameters in the step before does not add up for ever.
  void clear_frozen() {
    if (!unread_.view().empty()) kernels::fill(unread_.view(), 0.0);
  }

  /// Gives a lane memory, zero, unless it has some.
  void open(lane& it) {
    if (it.open != nullptr) return;
    it.open = pool_.take(elements(it), [&](std::int64_t n) {
      auto made = std::make_unique<buffer>();
      made->values = message_tensor<element, space>(world_, shape{pooled_ ? n : elements(it)});
      if (it.sent) {
        made->wire.emplace(compressor_, form_of(it, made->values.view().size()), world_);
        payload_bytes_ += made->wire->bytes();
      }
      return made;
    });
    kernels::fill(whole(it), 0.0);
    bind(it, whole(it));
  }
  void close(lane& it) {
    if (it.open == nullptr) return;
    bind(it, {});
    give_back(it, std::move(it.open));
  }
  /// Compressors forget what they keep: as before the first step.
  void forget_state() {
    if constexpr (keeps_state<bucket_transport>) {
      for (auto& it : lanes_) {
        if (!pooled_ && it.sent) it.open->wire.emplace(compressor_, form_of(it, elements(it)), world_);
      }
    }
  }
  /// Memory of a lane that serves others from now on.
  void give_back(lane const& it, std::unique_ptr<buffer> memory) { pool_.give(elements(it), std::move(memory)); }
  /// Makes the gradients of a lane's uses parts of `values`, or of nothing.
  void bind(lane const& it, view values) {
    if (uses_.empty()) return;
    for (int const use : it.uses) {
      auto const& entry = plan_.at(plan_.entry_of_use(use));
      uses_[static_cast<std::size_t>(use)]->gradient =
          values.empty() ? view{} : values.flat(entry.offset, entry.size()).reshaped(entry.info.extents);
    }
  }

  /// Bytes of gradients that are always here, and of what is borrowed: buffers, and what compressors hold.
  [[nodiscard]] std::int64_t kept_bytes() const {
    std::int64_t sum = 0;
    for (auto const& it : lanes_) {
      sum += static_cast<std::int64_t>(it.shard.view().bytes());
      if (!pooled_) sum += static_cast<std::int64_t>(it.open->values.view().bytes());
    }
    return sum;
  }
  [[nodiscard]] std::int64_t buffer_bytes() const noexcept {
    auto const unread = static_cast<std::int64_t>(unread_.view().bytes());
    return (pooled_ ? pool_.elements() * static_cast<std::int64_t>(sizeof(element)) : 0) + payload_bytes_ + unread;
  }

 private:
  // Memory of pooled lanes serves several buckets.
  [[nodiscard]] bucket_form form_of(lane const& it, std::int64_t elements) const {
    bucket_form form{elements, {}};
    if (pooled_) return form;
    for (int const e : plan_.buckets()[static_cast<std::size_t>(it.bucket)].entries)
      form.tensors.push_back({&plan_.at(e).info, plan_.at(e).offset});
    return form;
  }
  // Resident lanes of a tied tensor are added and then reduced; pooled ones are reduced by themselves and then added.
  void make(std::size_t l, int bucket, int ways) {
    auto& it = lanes_[l];
    auto const which = l - first_[static_cast<std::size_t>(bucket)];
    it.bucket = bucket;
    it.sent = pooled_ || which == 0;
    auto const counted = it.sent ? l : l - which;
    for (int const e : plan_.buckets()[static_cast<std::size_t>(bucket)].entries) {
      auto const use = plan_.at(e).uses[which];
      it.uses.push_back(use);
      auto const at = static_cast<std::size_t>(use);
      if (at >= lane_of_use_.size()) lane_of_use_.resize(at + 1);
      lane_of_use_[at] = counted;
    }
    it.reports = static_cast<int>(it.uses.size()) * (it.sent && !pooled_ ? ways : 1);
    if (!pooled_) open(it);
    if constexpr (sharded) {
      it.shard = trireme::tensor<element, space>(shape{plan_.slice_elements(bucket)});
      kernels::fill(it.shard.view(), 0.0);
    }
  }

  void bind_frozen() {
    std::int64_t longest = 0;
    for (auto const& entry : plan_.entries()) longest = entry.frozen ? std::max(longest, entry.size()) : longest;
    if (longest == 0 || uses_.empty()) return;
    unread_ = trireme::tensor<element, space>(shape{longest});
    clear_frozen();
    for (auto const& entry : plan_.entries()) {
      for (std::size_t u = 0; entry.frozen && u < entry.uses.size(); ++u) {
        uses_[static_cast<std::size_t>(entry.uses[u])]->gradient =
            unread_.view().flat(0, entry.size()).reshaped(entry.info.extents);
      }
    }
  }

  layout const& plan_;
  std::vector<parameter<Env>*> const& uses_;
  Comm& world_;
  Compressor compressor_;
  buffer_pool<buffer> pool_;
  bool pooled_;
  std::vector<lane> lanes_;
  std::vector<std::size_t> first_;  // by bucket
  std::vector<std::size_t> lane_of_use_;
  std::int64_t payload_bytes_ = 0;
  trireme::tensor<element, space> unread_;  // gradients of frozen parameters
};

}  // namespace trireme::parallel::detail
