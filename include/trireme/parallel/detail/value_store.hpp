#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/detail/buffer_pool.hpp"
#include "trireme/parallel/detail/foreign_parameters.hpp"
#include "trireme/parallel/detail/transport.hpp"

namespace trireme::parallel::detail {

/// The parameter values that layers read, in buckets: all of them, or (if parameters are sharded) this rank's slices,
/// from which a unit's buckets are gathered while it runs.
template <class Env, class Comm, strategy Strategy>
class value_store {
 public:
  using space = typename Env::space;
  using element = typename Env::param;
  using view = tensor_view<element, space>;
  using kernels = ops::on<space>;
  static constexpr bool sharded = Strategy::parameters == distribution::shard;

  /// @param wanted  false: the values are in the caller's memory, and no rank needs a copy.
  value_store(bucket_plan const& plan, std::vector<parameter<Env>*> const& uses, Comm& world, bool wanted)
      : plan_(plan), uses_(uses), world_(world), pool_(plan), buckets_(plan.buckets().size()) {
    if constexpr (sharded) held_.assign(plan.units().size(), 0);
    for (int b = 0; wanted && b < static_cast<int>(buckets_.size()); ++b) {
      auto const n = sharded ? plan.slice_elements(b) : elements(b);
      if constexpr (sharded) {
        at(b).kept = trireme::tensor<element, space>(shape{n});
      } else {
        at(b).kept = message_tensor<element, space>(world, shape{n});
      }
      kernels::fill(at(b).kept.view(), 0.0);
      if (!sharded && !uses.empty()) bind(b, at(b).kept.view());
    }
  }
  value_store(value_store const&) = delete;
  value_store& operator=(value_store const&) = delete;

  /// A bucket's values that this rank keeps: all, or its slice.
  [[nodiscard]] view kept(int bucket) const { return at(bucket).kept.view(); }
  /// The kept values of a piece; if values are sharded, the piece must be in this rank's slice.
  [[nodiscard]] view kept(int bucket, bucket_plan::tensor_range const& range) const {
    auto const first = sharded ? world_.rank() * plan_.slice_elements(bucket) : 0;
    return kept(bucket).flat(range.in_bucket - first, range.count);
  }
  /// All values of a bucket; empty while they are not gathered.
  [[nodiscard]] view whole(int bucket) const {
    if constexpr (sharded) {
      auto const& gathered = at(bucket).gathered;
      return gathered == nullptr ? view{} : gathered->view().flat(0, elements(bucket));
    } else {
      return kept(bucket);
    }
  }

  /// Starts to gather the values of a unit. Collective, like release: in one order on all ranks.
  void prefetch(int unit) {
    if constexpr (sharded) {
      if (held(unit) != 0) return;
      held(unit) = 1;
      for (int const b : buckets_of(unit)) {
        if (at(b).users++ == 0) start_gather(b);
      }
    }
  }
  /// Returns when the values of a unit have been gathered.
  void gather(int unit) {
    if constexpr (sharded) {
      prefetch(unit);
      for (int const b : buckets_of(unit)) wait(b);
    }
  }
  void release(int unit) {
    if constexpr (sharded) {
      if (held(unit) == 0) return;
      held(unit) = 0;
      for (int const b : buckets_of(unit)) {
        if (--at(b).users == 0) drop(b);
      }
    }
  }
  void release_all() {
    for (int unit = 0; unit < static_cast<int>(held_.size()); ++unit) release(unit);
  }

  /// Bytes of permanent values, and of buffers for gathered ones.
  [[nodiscard]] std::int64_t kept_bytes() const {
    std::int64_t sum = 0;
    for (auto const& each : buckets_) sum += static_cast<std::int64_t>(each.kept.view().bytes());
    return sum;
  }
  [[nodiscard]] std::int64_t buffer_bytes() const noexcept {
    return pool_.elements() * static_cast<std::int64_t>(sizeof(element));
  }

 private:
  using buffer = trireme::tensor<element, space>;
  struct bucket_values {
    trireme::tensor<element, space> kept;
    std::unique_ptr<buffer> gathered;
    std::optional<gather_request_t<Comm, element, space, sharded>> pending;
    int users = 0;  // units that hold it
  };

  [[nodiscard]] bucket_values& at(int bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] bucket_values const& at(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] char& held(int unit) { return held_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] std::vector<int> const& buckets_of(int unit) const {
    return plan_.units()[static_cast<std::size_t>(unit)].buckets;
  }
  [[nodiscard]] std::int64_t elements(int bucket) const {
    return plan_.buckets()[static_cast<std::size_t>(bucket)].elements;
  }

  void bind(int bucket, view values) {
    for (int const e : plan_.buckets()[static_cast<std::size_t>(bucket)].entries) {
      auto const& entry = plan_.at(e);
      for (int const use : entry.uses) {
        uses_[static_cast<std::size_t>(use)]->value =
            values.empty() ? view{} : values.flat(entry.offset, entry.size()).reshaped(entry.info.extents);
      }
    }
  }
  void start_gather(int b) {
    auto& it = at(b);
    it.gathered = pool_.take(elements(b), [&](std::int64_t n) {
      return std::make_unique<buffer>(message_tensor<element, space>(world_, shape{n}));
    });
    auto const all = whole(b);
    auto const n = plan_.slice_elements(b);
    kernels::copy(all.flat(world_.rank() * n, n), tensor_view<element const, space>(it.kept.view()));
    it.pending.emplace(world_.all_gather_async(all));
    bind(b, all);
  }
  void wait(int b) {
    if (!at(b).pending) return;
    at(b).pending->wait();
    at(b).pending.reset();
  }
  void drop(int b) {
    wait(b);
    bind(b, {});
    pool_.give(elements(b), std::move(at(b).gathered));
  }

  bucket_plan const& plan_;
  std::vector<parameter<Env>*> const& uses_;
  Comm& world_;
  buffer_pool<buffer> pool_;
  std::vector<bucket_values> buckets_;
  std::vector<char> held_;  // by unit: whether its values are gathered
};

/// How updated values reach the layers of every rank: written directly into all ranks' buckets if they share an address
/// space, gathered afterwards otherwise; not at all if every rank updates everything, or keeps slices only.
template <class Env, class Comm, strategy Strategy>
class value_outputs {
 public:
  using space = typename Env::space;
  using element = typename Env::param;
  using view = tensor_view<element, space>;
  using kernels = ops::on<space>;
  static constexpr bool sharded =
      Strategy::optimizer_state == distribution::shard && Strategy::parameters == distribution::replicate;
  static constexpr bool keeps_master = !std::is_same_v<element, typename Env::master>;
  static constexpr bool can_write_peers = sharded && has_peers<Comm, element, space>;

  value_outputs(bucket_plan const& plan, value_store<Env, Comm, Strategy> const& values,
                foreign_parameters<element, space> const& foreign, Comm& world)
      : plan_(plan), values_(values), foreign_(foreign), world_(world) {
    if constexpr (can_write_peers) {
      for (int b = 0; foreign.empty() && b < buckets(); ++b) peers_.push_back(world.peers(values.kept(b)));
    }
  }
  value_outputs(value_outputs const&) = delete;
  value_outputs& operator=(value_outputs const&) = delete;

  /// Adds the outputs of an update of a piece besides its master value: as many for every piece.
  void add(int bucket, bucket_plan::tensor_range const& range, std::vector<view>& to) const {
    if constexpr (can_write_peers) {
      for (int rank = 0; foreign_.empty() && rank < world_.size(); ++rank) {
        if (!keeps_master && rank == world_.rank()) continue;  // the value itself
        auto const& theirs = peers_[static_cast<std::size_t>(bucket)][static_cast<std::size_t>(rank)];
        to.push_back(theirs.flat(range.in_bucket, range.count));
      }
    } else if constexpr (keeps_master) {
      to.push_back(values_.kept(bucket, range));
    }
  }
  /// Collective. After an update of the first `buckets` buckets: gives all ranks all values that their layers read
  /// between units.
  void publish(int buckets) {
    if constexpr (can_write_peers) {
      if (foreign_.empty()) return world_.barrier();
    }
    if constexpr (sharded) gather(buckets);
  }

 private:
  [[nodiscard]] int buckets() const noexcept { return static_cast<int>(plan_.buckets().size()); }

  void gather(int buckets) {
    pending_.clear();
    for (int b = 0; b < buckets; ++b) {
      if (!foreign_.empty()) copy_foreign(b, true);
      pending_.push_back(world_.all_gather_async(values_.kept(b)));
    }
    for (int b = 0; b < buckets; ++b) {
      pending_[static_cast<std::size_t>(b)].wait();
      if (!foreign_.empty()) copy_foreign(b, false);
    }
  }
  // Copies between the caller's values and the bucket in which they are gathered: own pieces in, all pieces out.
  void copy_foreign(int bucket, bool in) {
    auto const whole = values_.kept(bucket);
    auto const n = plan_.slice_elements(bucket);
    auto const [first, count] = in ? std::pair{world_.rank() * n, n} : std::pair{std::int64_t{0}, whole.size()};
    for (auto const range : plan_.tensor_ranges(bucket, first, count)) {
      auto const theirs = foreign_.value(plan_.at(range.entry)).flat(range.in_entry, range.count);
      auto const ours = whole.flat(range.in_bucket, range.count);
      kernels::copy(in ? ours : theirs, tensor_view<element const, space>(in ? theirs : ours));
    }
  }

  bucket_plan const& plan_;
  value_store<Env, Comm, Strategy> const& values_;
  foreign_parameters<element, space> const& foreign_;
  Comm& world_;
  std::vector<std::vector<view>> peers_;                                  // by bucket
  std::vector<gather_request_t<Comm, element, space, sharded>> pending_;  // kept to avoid allocation
};

}  // namespace trireme::parallel::detail
