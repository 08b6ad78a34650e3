#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/space.hpp"
#include "trireme/ops/squares.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/broadcast.hpp"
#include "trireme/parallel/detail/gradient_store.hpp"
#include "trireme/parallel/strategy_state.hpp"

namespace trireme::parallel::detail {

/// The sums of all ranks' gradients: reduced by messages while backward runs, or, where ranks share an address space
/// and nobody adds to the sums later, computed from the buckets of all ranks when they are needed.
///
/// @tparam WritesPeers  whether ranks write values into each other's buckets.
template <class Env, class Comm, strategy Placement, class Compressor, bool WritesPeers>
class bucket_sums : public gradient_store<Env, Comm, Placement, Compressor> {
  using base = gradient_store<Env, Comm, Placement, Compressor>;
  using kernels = ops::on<typename Env::space>;
  using piece = bucket_plan::tensor_range;

 public:
  using typename base::element, typename base::space, typename base::view;
  using term = tensor_view<element const, space>;
  // Whether the contents of a bucket at the beginning of a step may count. Its padding must be zero then, which fails
  // if a slice is unspecified after a step, or a compressor has encoded it. A user's memory space may have no scaling.
  static constexpr bool keeps_buckets = Placement::optimizer_state == distribution::replicate &&
                                        lossless_identity<Compressor> && std::is_same_v<element, typename Env::param> &&
                                        requires(view gradient) {
    kernels::scale(gradient, 1.0);
  };
  /// Whether ranks may read each other's buckets.
  static constexpr bool reads_peers = WritesPeers && Placement::gradients == distribution::replicate &&
                                      lossless_identity<Compressor> && std::is_same_v<element, typename Env::reduce> &&
                                      has_peers<Comm, element, space>;

  /// Collective if ranks may read each other's buckets.
  /// @param last  nobody adds to the sums after these ranks.
  bucket_sums(partition const& own, std::vector<parameter<Env>*> const& layers, Comm& world,
              Compressor const& compressor, bool in_a_tree, bool last)
      : base(own.plan(), layers, world, compressor, in_a_tree, reads_peers && last && !in_a_tree && !has_tied(own)),
        own_(own),
        world_(world) {
    if constexpr (reads_peers) {
      for (int b = 0; this->direct() && b < count(); ++b) peers_.push_back(world.peers(this->resident(b)));
    }
  }

  /// Collective. Completes the sums, and adds the squares of those that this rank accounts for; infinity if a number is
  /// not finite.
  /// @param also     buckets whose sums are also summed over further ranks.
  /// @param brought  this rank's gradients: where a sum is that is not in its bucket.
  /// @param fuse     no norm is needed: if ranks read each other's buckets, the update may compute the sums.
  /// @returns whether it does. Then the vote is the barrier after which all gradients are final.
  bool finish(double start, std::span<std::pair<int, Comm*> const> also, auto const& brought, bool fuse,
              exact_sum& squares) {
    base::finish(start);
    for (auto const& [bucket, group] : also) {
      if (bucket >= count()) continue;
      auto const [first, elements] = own_.owned(bucket);
      sum_of_all(*group, this->reduced(bucket, first, elements), reduction::sum{});
    }
    fused_ = this->direct() && fuse;
    ops::squares_total<space> total(squares);
    if (fused_) {
      for (int b = 0; b < count(); ++b) total.expect_finite(term(this->resident(b)));
    } else if (this->direct()) {
      if constexpr (reads_peers) reduce_peers(total);
    } else {
      for_each_accounted([&](int b, auto const& of) { account(of, term(sum(brought, b, of)), total); });
    }
    this->nonfinite().fetch();
    total.finish();
    if (this->nonfinite().found()) squares.add(std::numeric_limits<double>::infinity());
    return fused_;
  }
  /// After finish(): shows each segment its gradient: the sum, or the terms that the update adds itself. Gives the
  /// caller of the exchange the sums.
  void show(std::vector<owned_segment<Env>>& all, auto const& brought) {
    auto const ways = fused_ ? static_cast<std::size_t>(world_.size()) : 1;
    terms_.clear();
    terms_.reserve(all.size() * ways);
    for (auto& each : all) {
      if (fused_) {
        each.sum = {};
        add_terms(each.bucket, each.range.in_bucket, each.range.count);
      } else {
        terms_.push_back(each.sum = sum(brought, each.bucket, each.range));
        brought.give_back(each.range, each.sum);
      }
      each.gradient = {std::span<term const>(terms_).last(ways), 1.0};
    }
  }
  /// After finish(): whether this rank's gradient of a tensor is finite (the part of it that it updates).
  [[nodiscard]] bool is_finite(bucket_plan::entry const& entry, auto const& brought) const {
    if (entry.frozen) return true;
    auto const [first, elements] = base::sharded ? own_.owned(entry.bucket) : interval{entry.offset, entry.size()};
    bool finite = true;
    for (auto const of : own_.plan().tensor_ranges(entry.bucket, first, elements)) {
      if (&own_.plan().at(of.entry) == &entry) finite = finite && kernels::finite(term(sum(brought, entry.bucket, of)));
    }
    return finite;
  }

 private:
  static bool has_tied(partition const& own) {
    auto const& all = own.plan().entries();
    return std::any_of(all.begin(), all.end(), [](auto const& each) { return each.info.tied; });
  }
  [[nodiscard]] int count() const noexcept { return own_.plan().trained_buckets(); }
  [[nodiscard]] view sum(auto const& brought, int bucket, piece const& of) const {
    return brought.sum(of, this->reduced(bucket, of.in_bucket, of.count));
  }
  void for_each_accounted(auto&& f) const { own_.for_each_range_of(state_scope::owned, count(), f, true); }
  // Parameters that another rank of this replica owns are in that rank's norm, and moving averages have no gradient;
  // but all numbers must be finite.
  void account(piece const& of, term gradient, ops::squares_total<space>& total) const {
    auto const& info = own_.plan().at(of.entry).info;
    if (info.is_owner && exactly_equal(info.running, 0)) {
      total.add(gradient);
    } else {
      total.expect_finite(gradient);
    }
  }
  void add_terms(int bucket, std::int64_t first, std::int64_t elements) {
    for (auto const& peer : peers_[static_cast<std::size_t>(bucket)]) terms_.push_back(peer.flat(first, elements));
  }
  // Replaces this rank's slices by the sums over all ranks, and accounts for each stretch while it is in the
  // second-level cache.
  void reduce_peers(ops::squares_total<space>& total) {
    finish_queued_work<space>();
    auto const now = comm::labelled::as_part(world_, comm::call_label::gradients);
    world_.barrier();  // the gradients of all ranks are final
    constexpr std::int64_t stretch = 32 * block_elements;
    for_each_accounted([&](int b, piece const& of) {
      auto const own = this->reduced(b, of.in_bucket, of.count);
      for (std::int64_t at = 0; at < own.size(); at += stretch) {
        auto const sums = own.flat(at, std::min(stretch, own.size() - at));
        terms_.clear();
        add_terms(b, of.in_bucket + at, sums.size());
        kernels::reduce(std::span<view const>(&sums, 1), std::span<term const>(terms_), reduction::sum{});
        account(of, sums, total);
      }
    });
    for (int b = 0; b < count(); ++b) this->record_bucket(b);
  }

  partition const& own_;
  Comm& world_;
  std::vector<std::vector<view>> peers_;  // by bucket
  std::vector<term> terms_;               // of the segments
  bool fused_ = false;                    // in this step the update computes the sums
};

}  // namespace trireme::parallel::detail
