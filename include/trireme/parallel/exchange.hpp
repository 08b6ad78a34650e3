#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/detail/parameter_store.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme {

/// What is known once all gradients are exchanged; equal on every rank.
struct exchange_result {
  double norm = 0;         ///< global norm of the reduced gradient (NaN if it was not asked for)
  bool finite = true;      ///< whether every gradient of every rank is finite
  std::int64_t votes = 0;  ///< sum of what the ranks passed to finish()
};

/// How much of the exchange happened while backward was still running, in seconds since the exchange was made.
struct exchange_times {
  double covered = 0;
  double exposed = 0;
  [[nodiscard]] double hidden() const noexcept { return covered + exposed > 0 ? covered / (covered + exposed) : 0; }
};

/// Owns the memory of parameters and gradients, and makes the gradients of all ranks one.
///
/// A step:  begin(); backward calls ready(use) as each gradient becomes final; finish(); for_each_segment(update);
///          publish(). Only the last micro-batch of a step calls ready: gradients accumulate without an exchange
///          before.
/// Shapes   buckets of about Strategy::bucket_bytes, filled in the order in which backward finishes; a tied tensor has
///          a bucket of its own, and each of its uses a gradient of its own, added in the order of the uses.
/// Ranks    collective: the same calls in the same order on every rank, but ready() may come at any time.
/// Numerics gradients are summed in rank order; the norm is exact but for the rounding of blocks of 1024 squares, so it
///          does not depend on the number of shards.
/// Threads  one owner; not copied, not moved.
/// Errors   comm_error from the communicator; config_error if the ranks' parameters differ at the start.
template <class Env, class Comm, strategy Strategy, class Compressor>
class basic_exchange : public parallel::detail::parameter_store<Env, Comm, Strategy, Compressor> {
  using store = parallel::detail::parameter_store<Env, Comm, Strategy, Compressor>;

 public:
  using store::accounted_range;
  using store::keeps_master;
  using store::master_of;
  using store::owned_range;
  using store::sharded;
  using typename store::gradient_element;
  using typename store::kernels;
  using typename store::master_element;
  using typename store::param_element;
  using typename store::space;

  /// Takes over the parameters of a model: gives them memory, and binds them to it.
  basic_exchange(std::vector<parameter<Env>*> uses, Comm& world, Strategy const& strategy, Compressor const& compressor)
      : store(std::move(uses), world, strategy, compressor) {}

  /// Works for parameters that live in the caller's memory: gradients are copied into buckets when they are ready, the
  /// reduced ones are copied back by finish().
  basic_exchange(std::vector<foreign_parameter<param_element, space>> parameters, Comm& world, Strategy const& strategy,
                 Compressor const& compressor)
      : store(std::move(parameters), world, strategy, compressor) {}

  [[nodiscard]] exchange_times const& times() const noexcept { return times_; }
  /// From now on every bucket's exchange is recorded in lane 1 of a timeline, which must outlive the exchange.
  void record(observe::timeline& timeline) {
    timeline_ = &timeline;
    for (std::size_t b = 0; b < buckets_.size(); ++b) buckets_[b]->label = timeline.intern(text("bucket ", b));
  }
  /// Starts a step: gradients are zero again.
  void begin() {
    for (auto& each : buckets_) {
      kernels::fill(each->gradient.view(), 0.0);
      each->missing = each->uses;
    }
    for (auto& each : second_uses_) kernels::fill(each.gradient.view(), 0.0);
    next_ = 0;
    lost_finiteness_ = false;
    weight_ = 1.0 / world_.size();
  }

  /// With parameters in the caller's memory: how much this rank's gradients weigh in the sum (default: 1 / ranks, the
  /// mean). A rank with n of N samples says n / N.
  void weight(double share) noexcept { weight_ = share; }

  /// Says that the gradient of one use is final. The bucket's exchange starts as soon as all of its gradients are, and
  /// the buckets before it have started.
  void ready(int use) {
    auto const start = now();
    if (!foreign_.empty()) take_in(use);
    --buckets_[static_cast<std::size_t>(layout_.at(layout_.entry_of_use(use)).bucket)]->missing;
    start_complete_buckets();
    progress();
    if constexpr (!progresses_alone<Comm>) times_.covered += now() - start;
  }
  void ready(std::string_view name) {
    for (int use = 0; use < this->use_count(); ++use) {
      if (layout_.at(layout_.entry_of_use(use)).info.name == name) return ready(use);
    }
    throw config_error(text("trireme::exchange: there is no parameter \"", name, "\""));
  }

  /// Adds the caller's gradients to the buckets without saying that they are final: one more micro-batch.
  void accumulate() requires(!keeps_master) {
    for (int use = 0; use < static_cast<int>(foreign_.size()); ++use) take_in(use);
  }

  /// Collective. Completes the exchange: afterwards the segments' gradients are the sums over all ranks.
  ///
  /// @param votes  a number of one's own that is summed over the ranks (a wish to stop, say).
  /// @param want_norm  the norm costs nothing where gradients are reduced before the update anyway; without it, ranks
  ///                   that share memory fuse the reduction into the update.
  exchange_result finish(std::int64_t votes = 0, bool want_norm = true) {
    auto const start = now();
    for (auto& each : buckets_) each->missing = 0;  // a rank without samples has reported nothing
    start_complete_buckets();
    if constexpr (progresses_alone<Comm>) {
      for (auto const& each : buckets_)
        times_.covered += std::max(0.0, std::min(start, each->done_time) - each->start_time);
    }
    exact_sum squares;
    if (direct()) {
      finish_direct(squares, want_norm);
    } else {
      for (std::size_t b = 0; b < buckets_.size(); ++b) {
        buckets_[b]->transport->wait();
        record_bucket(*buckets_[b]);
        kernels::sum_of_squares(slice(b, buckets_[b]->gradient.view()), squares);
      }
    }
    if (lost_finiteness_) squares.add(std::numeric_limits<double>::infinity());
    auto const result = vote(squares, votes, want_norm || !direct());
    if (result.finite) commit_residuals();
    if (!foreign_.empty()) give_back_gradients();
    times_.exposed += now() - start;
    return result;
  }

  /// Calls f(bucket, first, update_segment) for every stretch of a parameter that this rank updates; `first` counts
  /// elements in the bucket. The segment's moments are for the caller to fill in, its scale to multiply.
  template <class F>
  void for_each_segment(F&& f) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto const [first, count] = owned_range(static_cast<int>(b));
      layout_.for_each_piece(static_cast<int>(b), first, count, [&](parallel::layout::piece const& piece) {
        update_segment<Env> segment;
        segment.value = master_of(static_cast<int>(b), piece);
        segment.gradient = {gradient_terms_of(static_cast<int>(b), piece), 1.0};
        segment.outputs = outputs_of(static_cast<int>(b), piece);
        segment.decays = layout_.at(piece.entry).info.decays;
        f(static_cast<int>(b), piece, segment);
      });
    }
  }

  /// Collective. Makes the updated values the parameters of every rank.
  void publish() {
    auto const start = now();
    if constexpr (sharded) {
      if (direct()) {
        world_.barrier();
      } else {
        gather_values();
      }
    }
    times_.exposed += now() - start;
  }

  /// Makes the parameters that layers read follow master values that were written from outside (a checkpoint).
  /// Collective.
  void refresh_parameters() {
    for_each_segment([](int, parallel::layout::piece const&, update_segment<Env> const& segment) {
      for (auto const& output : segment.outputs)
        kernels::copy(output, tensor_view<master_element const, space>(segment.value));
    });
    publish();
  }

 private:
  using store::buckets_;
  using store::direct;
  using store::foreign_;
  using store::foreign_of;
  using store::gather_values;
  using store::layout_;
  using store::outputs_of;
  using store::second_uses_;
  using store::slice;
  using store::uses_;
  using store::world_;
  using typename store::bucket_state;

  static constexpr double not_done = std::numeric_limits<double>::infinity();
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void take_in(int use) {
    auto const& entry = layout_.at(layout_.entry_of_use(use));
    auto& state = *buckets_[static_cast<std::size_t>(entry.bucket)];
    kernels::accumulate(
        state.gradient.view().flat(entry.offset, entry.size()),
        tensor_view<param_element const, space>(foreign_[static_cast<std::size_t>(use)].gradient.flat()), weight_);
  }

  // In order, so that every rank starts the same collectives in the same order.
  void start_complete_buckets() {
    for (; next_ < buckets_.size() && buckets_[next_]->missing == 0; ++next_) {
      auto& state = *buckets_[next_];
      add_uses(static_cast<int>(next_));
      state.start_time = now();
      state.done_time = not_done;
      if (timeline_ != nullptr) state.start_ns = observe::timeline::now();
      check_before_coding(state);
      if (!direct()) state.transport->begin(world_);
    }
  }
  // A lossy payload may leave out the very number that is not finite: look before it is coded.
  void check_before_coding(bucket_state const& state) {
    if constexpr (!lossless_identity<Compressor>) {
      if (!kernels::finite(tensor_view<gradient_element const, space>(state.gradient.view()))) lost_finiteness_ = true;
    }
  }
  void commit_residuals() {
    if constexpr (has_residual<compressor_state<Compressor, Env>>) {
      for (auto& each : buckets_) each->transport->compressor().commit();
    }
  }
  void add_uses(int bucket) {
    for (int const e : layout_.buckets()[static_cast<std::size_t>(bucket)].entries) {
      auto const& entry = layout_.at(e);
      for (std::size_t k = 1; k < entry.uses.size(); ++k) {
        auto const& first = *uses_[static_cast<std::size_t>(entry.uses[0])];
        auto const& other = *uses_[static_cast<std::size_t>(entry.uses[k])];
        kernels::add(first.gradient.flat(), tensor_view<gradient_element const, space>(other.gradient.flat()));
      }
    }
  }
  void progress() {
    if (direct()) return;
    for (std::size_t b = 0; b < next_; ++b) {
      auto& state = *buckets_[b];
      if (state.transport->test() && state.done_time == not_done) state.done_time = now();
    }
  }

  void record_bucket(bucket_state const& state) {
    if (timeline_ == nullptr) return;
    timeline_->record({state.label, "exchange", state.start_ns, observe::timeline::now(), 1});
  }

  // Fused, no rank sees the sum before the update: each checks all of its own gradients, and the vote is the barrier.
  void finish_direct(exact_sum& squares, bool want_norm) {
    fused_ = !want_norm;
    if (fused_) {
      for (auto const& state : buckets_) {
        if (kernels::finite(tensor_view<gradient_element const, space>(state->gradient.view()))) continue;
        squares.add(std::numeric_limits<double>::infinity());
      }
      return;
    }
    world_.barrier();                                              // everybody's gradients are final
    constexpr std::int64_t chunk = 32 * parallel::block_elements;  // stays in the second-level cache
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto const& state = *buckets_[b];
      auto const [first, count] = accounted_range(static_cast<int>(b));
      for (std::int64_t at = first; at < first + count; at += chunk) {
        auto const n = std::min(chunk, first + count - at);
        auto const own = state.gradient.view().flat(at, n);
        terms_.clear();
        for (auto const& peer : state.peer_gradients) terms_.push_back(peer.flat(at, n));
        kernels::reduce(std::span<tensor_view<gradient_element, space> const>(&own, 1),
                        std::span<tensor_view<gradient_element const, space> const>(terms_), reduction::sum{});
        kernels::sum_of_squares(tensor_view<gradient_element const, space>(own), squares);
      }
      record_bucket(state);
    }
  }

  // One collective for everything that must be decided together before any state changes.
  exchange_result vote(exact_sum& squares, std::int64_t votes, bool norm_known) {
    auto const limbs = squares.state();
    ballot_.assign(limbs.begin(), limbs.end());
    ballot_.push_back(votes);
    world_.all_reduce(tensor_view<std::int64_t>(ballot_), reduction::sum{});
    std::copy(ballot_.begin(), ballot_.end() - 1, limbs.begin());
    bool const finite = squares.non_finite() == 0;
    double const norm = norm_known ? std::sqrt(squares.value()) : std::numeric_limits<double>::quiet_NaN();
    return {norm, finite, ballot_.back()};
  }

  void give_back_gradients() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto const [first, count] = owned_range(static_cast<int>(b));
      layout_.for_each_piece(static_cast<int>(b), first, count, [&](parallel::layout::piece const& piece) {
        kernels::copy(foreign_of(piece.entry).gradient.flat(piece.in_entry, piece.count),
                      tensor_view<gradient_element const, space>(
                          buckets_[b]->gradient.view().flat(piece.in_bucket, piece.count)));
      });
    }
  }

  std::span<tensor_view<gradient_element const, space> const> gradient_terms_of(int bucket,
                                                                                parallel::layout::piece const& piece) {
    auto const& state = *buckets_[static_cast<std::size_t>(bucket)];
    terms_.clear();
    if (direct() && fused_) {
      for (auto const& peer : state.peer_gradients) terms_.push_back(peer.flat(piece.in_bucket, piece.count));
    } else {
      terms_.push_back(state.gradient.view().flat(piece.in_bucket, piece.count));
    }
    return terms_;
  }
  std::vector<tensor_view<gradient_element const, space>> terms_;
  std::vector<std::int64_t> ballot_;
  std::size_t next_ = 0;
  double weight_ = 1;
  bool fused_ = false;
  bool lost_finiteness_ = false;
  exchange_times times_;
  observe::timeline* timeline_ = nullptr;
};

}  // namespace trireme
