#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/labels.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/space.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/buffer_pool.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/partition.hpp"

namespace trireme::parallel::detail {

/// The parameter values that layers read, and the master values that this rank updates.
///
/// Values are in buckets, or in the caller's memory. If parameters are sharded, a rank keeps its slices, from which a
/// unit's buckets are gathered while it runs. If only the optimizer's state is sharded, an update writes its values
/// directly into all ranks' buckets where ranks share an address space, and they are gathered afterwards otherwise.
///
/// @tparam Parameters  model_parameters, or foreign_parameters of the caller.
template <class Env, class Comm, strategy Strategy, class Parameters>
class value_store {
 public:
  using space = typename Env::space;
  using element = typename Env::param;
  using master_element = typename Env::master;
  using view = tensor_view<element, space>;
  using master_view = tensor_view<master_element, space>;
  using kernels = ops::on<space>;
  using piece = bucket_plan::tensor_range;
  static constexpr bool gathers = Strategy::parameters == distribution::shard;
  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard && !gathers;
  static constexpr bool keeps_master = !std::is_same_v<element, master_element>;
  static constexpr bool can_write_peers = !Parameters::lent && sharded && has_peers<Comm, element, space>;
  static_assert(!Parameters::lent || !keeps_master,
                "trireme::exchange: parameters in the caller's memory are their own master copy");
  static_assert(!Parameters::lent || !gathers,
                "trireme::exchange: parameters in the caller's memory cannot be dropped between uses; "
                "use parallel::zero<2>");

  value_store(partition const& own, Parameters const& parameters, Comm& world)
      : own_(own), parameters_(parameters), world_(world), pool_(own.plan()), buckets_(own.plan().buckets().size()) {
    if constexpr (gathers) held_.assign(own.plan().units().size(), 0);
    for (auto const& entry : own.plan().entries()) read_.push_back(parameters.value(entry));
    for (int b = 0; b < count(); ++b) {
      auto& it = at(b);
      if constexpr (keeps_master) kernels::fill(make(it.master, own.owned(b).count), 0.0);
      if constexpr (gathers) {
        kernels::fill(make(it.kept, own.plan().slice_elements(b)), 0.0);
      } else if constexpr (sharded || !Parameters::lent) {
        it.kept = message_tensor<element, space>(world, shape{elements(b)});
        kernels::fill(it.kept.view(), 0.0);
        if constexpr (!Parameters::lent) bind(b, it.kept.view());
        if constexpr (can_write_peers) peers_.push_back(world.peers(it.kept.view()));
      }
    }
  }
  value_store(value_store const&) = delete;
  value_store& operator=(value_store const&) = delete;

  /// A tensor as this rank's layers see it; empty while its unit is not gathered.
  [[nodiscard]] view read(bucket_plan::entry const& entry) const { return read_[index(entry)]; }
  /// The values that this rank keeps of a piece; if parameters are sharded, the piece must be in this rank's slice.
  [[nodiscard]] view kept(int bucket, piece const& of) const {
    if constexpr (gathers) return at(bucket).kept.view().flat(of.in_bucket - own_.accounted(bucket).first, of.count);
    return read_[static_cast<std::size_t>(of.entry)].flat(of.in_entry, of.count);
  }
  /// The master values of a piece that this rank updates.
  [[nodiscard]] master_view master(int bucket, piece const& of) const {
    if constexpr (keeps_master) {
      return own_.in_slice(at(bucket).master.view(), bucket, of);
    } else {
      return kept(bucket, of);
    }
  }
  /// Adds the outputs of an update of a piece besides its master value: as many for every piece.
  void add_outputs(int bucket, piece const& of, std::vector<view>& to) const {
    if constexpr (can_write_peers) {
      for (int rank = 0; rank < world_.size(); ++rank) {
        if (!keeps_master && rank == world_.rank()) continue;  // the value itself
        auto const& theirs = peers_[static_cast<std::size_t>(bucket)][static_cast<std::size_t>(rank)];
        to.push_back(theirs.flat(of.in_bucket, of.count));
      }
    } else if constexpr (keeps_master) {
      to.push_back(kept(bucket, of));
    }
  }
  /// Sets a tensor from all of its master values: this rank's part of the masters, and the values of its layers.
  void load(bucket_plan::entry const& entry, tensor_view<master_element const, space> whole) {
    if constexpr (!gathers) kernels::copy(read(entry), whole);
    if constexpr (keeps_master || gathers) {
      own_.for_each_range(state_scope::kept, entry.bucket, [&](piece const& of) {
        if (&own_.plan().at(of.entry) != &entry) return;
        auto const part = whole.flat(of.in_entry, of.count);
        if constexpr (keeps_master) kernels::copy(master(entry.bucket, of), part);
        if constexpr (gathers) kernels::copy(kept(entry.bucket, of), part);
      });
    }
  }
  /// Collective. After an update of the first `buckets` buckets: gives all ranks all values that their layers read
  /// between units.
  void publish(int buckets) {
    release_all();
    if constexpr (can_write_peers) {
      finish_queued_work<space>();  // this rank's writes to the others
      world_.barrier();
    } else if constexpr (sharded) {
      pending_.clear();
      for (int b = 0; b < buckets; ++b) {
        copy_lent(b, true);
        auto const now = labelled(b);
        pending_.push_back(world_.all_gather_async(at(b).kept.view()));
      }
      for (int b = 0; b < buckets; ++b) {
        trireme::order(pending_[static_cast<std::size_t>(b)]);
        copy_lent(b, false);
      }
    }
  }

  /// Starts to gather the values of a unit. Collective, like release: in one order on all ranks.
  void prefetch(int unit) {
    if constexpr (gathers) {
      auto const& buckets = own_.plan().unit_at(unit).buckets;
      if (std::exchange(held(unit), 1) != 0) return;
      for (int const b : buckets) {
        if (at(b).users++ == 0) start_gather(b);
      }
    }
  }
  /// Kernels that are queued afterwards read the gathered values of a unit.
  void gather(int unit) {
    prefetch(unit);
    if constexpr (gathers) {
      for (int const b : own_.plan().unit_at(unit).buckets) finish(b);
    }
  }
  void release(int unit) {
    if constexpr (gathers) {
      auto const& buckets = own_.plan().unit_at(unit).buckets;
      if (std::exchange(held(unit), 0) == 0) return;
      for (int const b : buckets) {
        if (--at(b).users == 0) drop(b);
      }
    }
  }
  void release_all() {
    for (int unit = 0; unit < static_cast<int>(held_.size()); ++unit) release(unit);
  }

  /// Adds the bytes of permanent values, of masters, and of buffers for gathered values.
  void count_bytes(exchange_memory& sum) const {
    for (auto const& each : buckets_) {
      sum.parameters += static_cast<std::int64_t>(each.kept.view().bytes());
      sum.masters += static_cast<std::int64_t>(each.master.view().bytes());
    }
    sum.buffers += pool_.elements() * static_cast<std::int64_t>(sizeof(element));
  }

 private:
  using buffer = trireme::tensor<element, space>;
  struct bucket_values {
    trireme::tensor<element, space> kept;           // all values, or this rank's slice; none if they are only lent
    trireme::tensor<master_element, space> master;  // if parameters are not their own masters
    std::unique_ptr<buffer> gathered;
    std::optional<gather_request_t<Comm, element, space, gathers>> pending;
    int users = 0;  // units that hold it
  };

  template <class T>
  static tensor_view<T, space> make(trireme::tensor<T, space>& it, std::int64_t elements) {
    it = trireme::tensor<T, space>(shape{elements});
    return it.view();
  }
  // Until the end of the scope, calls are for the values of this bucket.
  [[nodiscard]] comm::labelled labelled(int bucket) {
    return comm::labelled::as_part(world_, comm::call_label::bucket(bucket, true));
  }
  [[nodiscard]] int count() const noexcept { return static_cast<int>(buckets_.size()); }
  [[nodiscard]] bucket_values& at(int bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] bucket_values const& at(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] char& held(int unit) { return held_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] std::int64_t elements(int bucket) const {
    return own_.plan().buckets()[static_cast<std::size_t>(bucket)].elements;
  }
  [[nodiscard]] std::size_t index(bucket_plan::entry const& entry) const noexcept {
    return static_cast<std::size_t>(&entry - own_.plan().entries().data());
  }

  // Layers read the values of a bucket there from now on, or nowhere.
  void bind(int bucket, view values) {
    for (int const e : own_.plan().buckets()[static_cast<std::size_t>(bucket)].entries) {
      auto const& entry = own_.plan().at(e);
      auto& here = read_[static_cast<std::size_t>(e)];
      here = values.empty() ? view{} : values.flat(entry.offset, entry.size());
      parameters_.bind(entry, here);
    }
  }
  void start_gather(int b) {
    auto& it = at(b);
    it.gathered = pool_.take(elements(b), [&](std::int64_t n) {
      return std::make_unique<buffer>(message_tensor<element, space>(world_, shape{n}));
    });
    auto const all = it.gathered->view().flat(0, elements(b));
    auto const [first, n] = own_.accounted(b);
    kernels::copy(all.flat(first, n), tensor_view<element const, space>(it.kept.view()));
    auto const now = labelled(b);
    it.pending.emplace(world_.all_gather_async(all));
    bind(b, all);
  }
  void finish(int b) {
    if (!at(b).pending) return;
    trireme::order(*at(b).pending);
    at(b).pending.reset();
  }
  void drop(int b) {
    finish(b);
    bind(b, {});
    pool_.give(elements(b), std::move(at(b).gathered));
  }
  // Copies between the caller's values and the bucket in which they are gathered: own pieces in, all pieces out.
  void copy_lent(int bucket, bool in) {
    if constexpr (Parameters::lent) {
      auto const [first, count] = in ? own_.owned(bucket) : interval{0, elements(bucket)};
      for (auto const of : own_.plan().tensor_ranges(bucket, first, count)) {
        auto const theirs = kept(bucket, of), ours = at(bucket).kept.view().flat(of.in_bucket, of.count);
        kernels::copy(in ? ours : theirs, tensor_view<element const, space>(in ? theirs : ours));
      }
    }
  }

  partition const& own_;
  Parameters const& parameters_;
  Comm& world_;
  buffer_pool<buffer> pool_;
  std::vector<bucket_values> buckets_;
  std::vector<view> read_;                                                // by entry
  std::vector<std::vector<view>> peers_;                                  // by bucket
  std::vector<char> held_;                                                // by unit: whether its values are gathered
  std::vector<gather_request_t<Comm, element, space, sharded>> pending_;  // kept to avoid allocation
};

}  // namespace trireme::parallel::detail
