#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/labels.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/change_sums.hpp"
#include "trireme/parallel/detail/chosen_transport.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/partition.hpp"
#include "trireme/parallel/strategies.hpp"

namespace trireme::parallel::detail {

/// Until the end of the scope, calls on `ranks` are for this bucket.
template <class Comm>
[[nodiscard]] comm::labelled labelled_bucket(Comm& ranks, int bucket) {
  return comm::labelled::as_part(ranks, comm::call_label::bucket(bucket));
}

/// Whether the elements of a bucket that a rank moves are between its tensors, or behind them.
[[nodiscard]] inline bool holds_nothing(partition const& moved, int bucket) {
  auto const [first, count] = moved.owned(bucket);
  auto const pieces = moved.plan().tensor_ranges(bucket, first, count);
  return !(pieces.begin() != pieces.end());
}

/// Changes as they are: sums of master values.
template <class Env, class Comm>
class plain_changes final : public change_sums<Env> {
  using typename change_sums<Env>::space, typename change_sums<Env>::view, typename change_sums<Env>::visitor;
  using request = decltype(std::declval<Comm&>().all_reduce_async(std::declval<view>(), reduction::sum{}));

 public:
  /// @param moved  the elements of each bucket that this rank sends.
  plain_changes(partition const& moved, Comm& ranks) : ranks_(ranks) {
    for (int b = 0; b < moved.plan().trained_buckets(); ++b) {
      changes_.push_back(message_tensor<typename Env::master, space>(ranks, shape{moved.owned(b).count}));
      ops::on<space>::fill(of(b), 0.0);
      empty_.push_back(holds_nothing(moved, b));
    }
    pending_.resize(changes_.size());
  }

  [[nodiscard]] view open(int bucket) override { return of(bucket); }  // what nobody writes remains zero
  [[nodiscard]] view of(int bucket) const override { return changes_[static_cast<std::size_t>(bucket)].view(); }
  void sum(std::span<int const> buckets, std::int64_t) override {
    for (int const b : buckets) {
      if (empty(b)) continue;
      auto const now = labelled_bucket(ranks_, b);
      ranks_.all_reduce(of(b), reduction::sum{});
    }
  }
  void begin(std::span<int const> buckets, std::int64_t) override {
    for (int const b : buckets) {
      if (empty(b)) continue;
      auto const now = labelled_bucket(ranks_, b);
      at(b).emplace(ranks_.all_reduce_async(of(b), reduction::sum{}));
    }
  }
  void progress(std::span<int const> buckets) override {
    for (int const b : buckets) {
      if (at(b)) static_cast<void>(at(b)->test());
    }
  }
  void finish(std::span<int const> buckets) override {
    for (int const b : buckets) {
      if (!at(b)) continue;
      trireme::order(*at(b));
      at(b).reset();
    }
  }
  void visit_state(state_scope, visitor const&) override {}
  void forget_state() override {}
  [[nodiscard]] std::int64_t bytes() const override {
    std::int64_t sum = 0;
    for (auto const& each : changes_) sum += static_cast<std::int64_t>(each.view().bytes());
    return sum;
  }

 private:
  std::optional<request>& at(int bucket) { return pending_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] bool empty(int bucket) const { return empty_[static_cast<std::size_t>(bucket)]; }

  Comm& ranks_;
  std::vector<bool> empty_;  // by bucket: the slice is between tensors
  std::vector<trireme::tensor<typename Env::master, space>> changes_;
  std::vector<std::optional<request>> pending_;
};

/// Changes that a compressor encodes, as it encodes gradients under parallel::data.
template <class Env, class Comm, class Compressor>
class coded_changes final : public change_sums<Env> {
  using typename change_sums<Env>::space, typename change_sums<Env>::view, typename change_sums<Env>::visitor;
  using gradient = typename Env::gradient;
  using wire = transport<Env, Comm, data, Compressor>;
  using kernels = ops::on<space>;
  static constexpr bool one_type = std::is_same_v<gradient, typename Env::master>;

 public:
  /// @param moved  the elements of each bucket that this rank sends. Its plan must outlive this: compressors keep its
  ///               infos.
  coded_changes(partition const& moved, Comm& ranks, Compressor const& compressor)
      : ranks_(ranks), compressor_(compressor) {
    auto const& plan = moved.plan();
    for (int b = 0; b < plan.trained_buckets(); ++b) {
      auto& it = changes_.emplace_back();
      auto const slice = moved.owned(b);
      // The plan is that of a learner; a compressor's slices are whole blocks, as they are in parallel::data.
      auto const unit = ranks.size() * block_elements;
      it.elements = slice.count;
      if (holds_nothing(moved, b)) continue;
      it.form.elements = (slice.count + unit - 1) / unit * unit;
      for (auto const range : plan.tensor_ranges(b, slice.first, slice.count)) {
        // Copies on several ranks of a learner may be in different buckets, but must draw the same random numbers.
        if (it.form.tensors.empty()) {
          it.number = static_cast<std::int64_t>(
              (hash_name(plan.at(range.entry).info.name) + static_cast<std::uint64_t>(range.in_entry)) >> 1U);
        }
        it.form.tensors.push_back({info_of(plan, range), range.in_bucket - slice.first});
      }
      it.sent = message_tensor<gradient, space>(ranks, shape{it.form.elements});
      kernels::fill(it.sent.view(), 0.0);
      if constexpr (!one_type) it.master = trireme::tensor<typename Env::master, space>(shape{it.elements});
      it.way.emplace(compressor, it.form, ranks);
    }
  }

  [[nodiscard]] view open(int bucket) override {
    auto& it = at(bucket);
    if (!it.way) return {};
    if constexpr (one_type) kernels::fill(it.sent.view(), 0.0);
    if constexpr (!one_type) kernels::fill(it.master.view(), 0.0);
    return of(bucket);
  }
  [[nodiscard]] view of(int bucket) const override {
    auto const& it = changes_[static_cast<std::size_t>(bucket)];
    if (!it.way) return {};
    if constexpr (one_type) return it.sent.view().flat(0, it.elements);
    if constexpr (!one_type) return it.master.view();
  }
  void sum(std::span<int const> buckets, std::int64_t step) override {
    begin(buckets, step);
    finish(buckets);
  }
  void begin(std::span<int const> buckets, std::int64_t step) override {
    for (int const b : buckets) {
      auto& it = at(b);
      if (!it.way) continue;
      if constexpr (!one_type) {
        kernels::fill(it.sent.view(), 0.0);
        kernels::copy(it.sent.view().flat(0, it.elements), constant(it.master.view()));
      }
      if constexpr (has_at_gradient<wire>)
        it.way->at_gradient(
            {.step = step, .bucket = it.number, .micro_batch = 0, .rank = ranks_.rank(), .ranks = ranks_.size()});
      auto const now = labelled_bucket(ranks_, b);
      it.way->begin(it.sent.view(), 1.0);
      it.pending = true;
    }
  }
  void progress(std::span<int const> buckets) override {
    for (int const b : buckets) {
      if (at(b).pending) static_cast<void>(at(b).way->test());
    }
  }
  void finish(std::span<int const> buckets) override {
    for (bool more = true; more;) {  // a round of every bucket
      more = false;
      for (int const b : buckets) {
        auto& it = at(b);
        if (!it.pending) continue;
        auto const now = labelled_bucket(ranks_, b);
        if (!it.way->turn()) {
          more = true;
          continue;
        }
        it.pending = false;
        it.way->commit();
        if constexpr (!one_type) kernels::copy(it.master.view(), constant(it.sent.view().flat(0, it.elements)));
      }
    }
  }
  void visit_state(state_scope scope, visitor const& f) override {
    if constexpr (keeps_state<wire>) {
      visitor const shown = [&](std::string const& name, state_location const& at, auto const& values) {
        auto const* piece = piece_of(at.info);
        auto const& whole = piece == nullptr ? at.info : *piece->of;
        if (scope == state_scope::owned && !whole.is_owner) return;
        // What is summed are changes, whose mean is taken: a residual is not a summand.
        state_location const place{whole, at.first + (piece == nullptr ? 0 : piece->first), false, 0,
                                   at.of_rank ? ranks_.rank() : -1};
        f(name, place, values);
      };
      for (auto& it : changes_) {
        if (it.way) it.way->visit_state(scope, shown);
      }
    }
  }
  void forget_state() override {
    if constexpr (keeps_state<wire>) {
      for (auto& it : changes_) {
        if (!it.way) continue;
        while (it.pending) it.pending = !it.way->turn();
        it.way.emplace(compressor_, it.form, ranks_);
      }
    }
  }
  [[nodiscard]] std::int64_t bytes() const override {
    std::int64_t sum = 0;
    for (auto const& it : changes_)
      sum +=
          static_cast<std::int64_t>(it.sent.view().bytes() + it.master.view().bytes()) + (it.way ? it.way->bytes() : 0);
    return sum;
  }

 private:
  struct bucket_change {
    std::int64_t elements = 0;  // of the bucket
    std::int64_t number = 0;    // of its first tensor, for random numbers
    bucket_form form;           // padded
    trireme::tensor<gradient, space> sent;
    trireme::tensor<typename Env::master, space> master;  // if the types differ
    std::optional<wire> way;                              // none if there is nothing to send
    bool pending = false;
  };
  /// A part of a tensor, which compressors see as a vector.
  struct tensor_piece {
    parameter_info seen;
    parameter_info const* of;
    std::int64_t first;  // its first element, counted in the tensor
  };
  bucket_change& at(int bucket) { return changes_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] parameter_info const* info_of(bucket_plan const& plan, bucket_plan::tensor_range const& range) {
    auto const& info = plan.at(range.entry).info;
    if (range.count == info.extents.size()) return &info;
    auto& piece = pieces_.emplace_back(tensor_piece{info, &info, range.in_entry});
    piece.seen.extents = shape{range.count};
    piece.seen.first = piece.seen.whole = shape{};
    return &piece.seen;
  }
  [[nodiscard]] tensor_piece const* piece_of(parameter_info const& seen) const {
    for (auto const& each : pieces_)
      if (&each.seen == &seen) return &each;
    return nullptr;
  }
  template <class T>
  static tensor_view<T const, space> constant(tensor_view<T, space> all) {
    return all;
  }

  Comm& ranks_;
  Compressor compressor_;
  std::deque<tensor_piece> pieces_;
  std::vector<bucket_change> changes_;
};

}  // namespace trireme::parallel::detail
