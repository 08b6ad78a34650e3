#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/compressor.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/parallel/detail/bucket_sums.hpp"
#include "trireme/parallel/detail/exchange_checks.hpp"
#include "trireme/parallel/distributed_parameters.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/learners.hpp"
#include "trireme/parallel/vote.hpp"

namespace trireme {

/// Owns the memory of parameters and gradients, or works in the caller's, and sums the gradients of all ranks.
///
/// A step:  begin(micro-batches); backward calls ready(use) as each gradient becomes final; finish();
///          an update of all segments(); publish(). If reports_every_micro_batch(), every micro-batch reports its
///          gradients, else only the last one: until then gradients accumulate without an exchange.
///          A strategy acts only within these calls, in any training loop. With units, the engine also calls, for each:
///          gather(unit) before and release(unit) after its forward and its backward, prefetch() for the next one
///          (unit_walk.hpp), and open(unit) before its backward.
///          A rank without samples begins without places, and does not call ready(). A step that is not finite is
///          over after finish(); one that is given up earlier (an exception) is over after abandon().
/// Shapes   buckets of about Strategy::bucket_bytes, filled in the order in which backward finishes; a tied tensor has
///          a bucket of its own, and each of its uses a gradient of its own, added in the order of the uses.
/// Ranks    collective: the same calls in the same order on every rank. Below stage 2 ready() may be called at any
///          time; from stage 2 on, and with .reproducible, ready(), gather() and prefetch() also have one order on all
///          ranks; ranks with fewer micro-batches than others take part in the rest in finish().
/// Numerics gradients are summed in rank order (with .reproducible in one tree over all micro-batches); the norm is
///          exact except for the rounding of blocks of 1024 squares of each tensor, so it does not depend on the number
///          of shards.
/// Threads  one owner; cannot be copied or moved.
/// Errors   comm_error from the communicator; config_error if the ranks' parameters, strategies or compressors differ
///          at the start; assertion_error (light) for a call that is repeated, too early, or without the required
///          previous call.
template <class Env, class Comm, strategy Strategy, class Compressor,
          template <class, class, class> class Memory = parallel::own_memory>
class basic_exchange : public distributed_parameters<Env, Comm, Strategy, Memory> {
  using base = distributed_parameters<Env, Comm, Strategy, Memory>;

 public:
  using typename base::hooks, typename base::memory_type, typename base::param_element, typename base::parameters_type,
      typename base::placement, typename base::segment_type, typename base::space;
  using sums_type =
      parallel::detail::bucket_sums<Env, Comm, placement, parallel::gradient_compressor_t<Strategy, Compressor>,
                                    base::values_type::can_write_peers>;
  using gradients_type = typename memory_type::template gradients<sums_type::keeps_buckets>;
  /// Whether the caller's gradients may be in their buckets: see gradient_memory().
  static constexpr bool has_gradient_memory = gradients_type::keeps_buckets;

  /// Takes over the parameters of a model: gives them memory, and binds them to it. Parameters in the caller's memory
  /// stay there: gradients are copied into buckets when they are ready, and the reduced ones are copied back by
  /// finish(); throws if values differ between the ranks of `replicas`.
  ///
  /// @param unit_ends  end of each unit's uses, ascending; required from stage 2 on and with .reproducible.
  /// @param replicas   the ranks that hold the same part of the model.
  /// @param voters     the ranks that vote, including `replicas`; null: `replicas`.
  /// @param again      axes along which parameters are distributed: gradients of the others are summed over these ranks
  ///                   too, after the sum over `replicas`.
  /// @param requirements  of the optimizer: bucket_requirements_of(optimizer).
  /// @param learner    where ranks take steps apart and a learner has several of `replicas`: its groups.
  basic_exchange(typename memory_type::given parameters, Comm& replicas, Strategy const& strategy,
                 Compressor const& compressor, std::span<int const> unit_ends = {},
                 std::type_identity_t<Comm>* voters = nullptr,
                 std::span<distributed_axis<std::type_identity_t<Comm>> const> again = {},
                 bucket_requirements const& requirements = {},
                 parallel::learner_ranks<std::type_identity_t<Comm>> const& learner = {})
      : base(std::move(parameters), replicas, strategy, compressor, unit_ends, voters, again, requirements, learner),
        brought_(bucket_plan_, parameters_, summed_.size() == 1),
        sums_(own_, parameters_.layers(), summed_, parallel::gradient_compressor<Strategy>(compressor),
              in_units_ && sums_in_a_tree(strategy), again.empty()) {
    parallel::detail::expect_exact_means(bucket_plan_, compressor);
    parameters_type::expect_possible(strategy, !unit_ends.empty());
    if (sums_.in_a_tree())
      parallel::detail::expect_tree(strategy, summed_.size(), sums_type::has_tree, lossless_identity<Compressor>);
    if constexpr (parameters_type::lent) this->verify_replicas();
    this->follow_values();
  }

  [[nodiscard]] exchange_times const& times() const noexcept { return sums_.times(); }
  /// From now on every bucket's exchange is recorded in lane 1 of a timeline, which must outlive the exchange.
  void record(observe::timeline& timeline) { sums_.record(timeline); }

  /// Starts a step: gradients are zero again. Collective if reports_every_micro_batch().
  /// @param micro_batches  the number that this rank runs.
  void begin(std::int64_t micro_batches = 1) {
    places_.resize(static_cast<std::size_t>(micro_batches));
    std::iota(places_.begin(), places_.end(), 0);
    begin({.micro_batches = micro_batches, .places = places_});
  }
  /// The same if some of this rank's logical micro-batches have no samples, or gradients carry a factor.
  void begin(exchange_step const& step) {
    protocol_.may_begin();
    auto const now = this->labelled();
    if (ending_) this->end_step();  // there was nothing to publish
    if (step.number >= 0) steps_ = step.number;
    if (step.samples_of_all > 0) this->begin_with(step.samples, step.samples_of_all);
    values_.release_all();
    auto const own = std::max(static_cast<std::int64_t>(step.places.size()), step.runs);
    auto const rounds =
        in_units_ ? parallel::detail::agreed_rounds(summed_, step.micro_batches, own, sums_.in_a_tree()) : 1;
    sums_.begin(step, rounds, steps_, gradients_type::keeps_buckets);
    brought_.begin(1.0 / summed_.size());
    reports_left_ = rounds * this->use_count();
    protocol_.begin(in_units_ ? own : std::min<std::int64_t>(own, 1), rounds);
    samples_missing_ = false;
  }
  /// With parameters in the caller's memory: the weight of this rank's gradients in the sum (default: 1 / ranks, the
  /// mean). A rank with n of N samples passes n / N, also if each rank takes steps on its own. Valid until the next
  /// begin().
  void weight(double share) {
    protocol_.weight();
    brought_.weigh(share * share_factor_);
  }
  /// With parameters in the caller's memory: from now on the gradient of one use is read and written here, for callers
  /// whose gradients are in other memory in each step. Call it before ready() of that use; the memory must stay valid
  /// until finish() has written the sums there.
  void gradient_at(int use, tensor_view<param_element, space> gradient) requires(parameters_type::lent) {
    // (the constraint once more: clang 14 and 15 instantiate for the library also what does not meet it)
    if constexpr (parameters_type::lent) parameters_.gradient_at(use, gradient);
  }
  /// With parameters in the caller's memory: the gradient of one use in its bucket, so that backward can write there
  /// without a copy: call gradient_at(use, gradient_memory(use)). What is there at ready() counts. The address stays
  /// valid as long as the exchange; from ready() to the end of finish() only the exchange may access it. Empty if this
  /// rank does not get the whole sum, or the exchange compresses, or has another element type.
  [[nodiscard]] tensor_view<param_element, space> gradient_memory(int use) {
    if constexpr (has_gradient_memory) return sums_.open_use(use);
    return {};
  }
  /// Gives up the step that has begun, on every rank: the next begin() clears its gradients. No effect between steps.
  void abandon() noexcept {
    protocol_.abandon();
    ending_ = false;
  }
  /// Before backward of one unit adds to its gradients: gives them zeroed memory. No effect if gradients always have
  /// memory.
  void open(int unit, bool with_memory = true) {
    if (!in_units_) return;
    auto const& [first, last, buckets] = bucket_plan_.unit_at(unit);
    protocol_.open(first, last);
    auto const now = this->labelled();
    if (with_memory && first < last) sums_.open_unit(unit);
  }
  /// Reports that the gradient of one use is final. The exchange of a bucket starts when all of its gradients are
  /// final, and (below stage 2) the buckets before it have started.
  void ready(int use) {
    protocol_.ready(use);
    auto const now = this->labelled();
    take(use, true);
    sums_.ready(use);
    --reports_left_;
  }
  void ready(std::string_view name) { ready(this->use_named(name)); }
  /// Adds the caller's gradients to the buckets without reporting them as final: for a further micro-batch, before the
  /// first ready() of the step.
  void accumulate() requires(!base::keeps_master) {
    protocol_.accumulate();
    for (int use = 0; use < this->use_count(); ++use) take(use, false);
  }
  /// Takes part in one micro-batch of other ranks, for which this rank has no samples. Its gradients are zero.
  void sit_out() {
    protocol_.sit_out();
    this->sit_out_forward(true);
    auto const opens = [this](int unit) { open(unit, !sums_.in_a_tree()); };  // a tree needs no term
    parallel::walk_backward(*this, 0, this->unit_count(), opens, [this](int unit) {
      for (int use = bucket_plan_.unit_at(unit).first; use < bucket_plan_.unit_at(unit).last; ++use) ready(use);
    });
  }

  /// Collective. Completes the exchange, takes the vote, and settles the step: afterwards the segments' gradients are
  /// the sums over all ranks.
  ///
  /// @param votes  a number of the caller's that is summed over the ranks (a request to stop, say).
  /// @param want_norm  the norm costs nothing if gradients are reduced before the update anyway; without it, ranks that
  ///                   share memory fuse the reduction into the update.
  exchange_result finish(std::int64_t votes = 0, bool want_norm = true) {
    auto& vote = new_vote(votes);
    finish(vote, want_norm);
    auto const result = count(vote);
    static_cast<void>(settle(result.finite, {result.norm, 1}));
    return result;
  }
  /// Collective. The first of the three: waits for the exchange of every gradient that must be reduced now, and adds
  /// this rank's share of the vote to `vote`.
  void finish(parallel::vote& vote, bool want_norm = true) {
    protocol_.may_finish();
    while (in_units_ && reports_left_ > 0) sit_out();
    auto const now = this->labelled();
    sums_.exposed([&](double start) {
      brought_.complete([this](int use) { return sums_.open_use(use); });
      bool const may_fuse = !want_norm && !hooks::made.settle;  // settle() reads sums
      if (sums_.finish(start, also_, brought_, may_fuse, vote.squares())) vote.without_norm();
    });
  }
  /// Collective. The second: the single blocking exchange of a step.
  [[nodiscard]] exchange_result count(parallel::vote& vote) {
    exchange_result result;
    auto const now = this->labelled(comm::call_label::vote);
    sums_.exposed([&](double) { result = vote.count(everyone_); });
    result.norm /= std::sqrt(this->ranks_apart());  // of learners that take steps apart: the root mean square
    return result;
  }
  /// Collective. The third: whether the step is taken, the same on every rank. Without an update the step is over.
  /// @param exchanged  the numbers of the gradients that finish() has summed.
  /// @returns the numbers of the gradients that an update must read now; nothing if there is no update: then nothing is
  ///         published either.
  std::optional<gradient_numbers> settle(bool taken, gradient_numbers const& exchanged) {
    taken = taken && !samples_missing_;
    auto const now = this->labelled();
    if (taken) sums_.commit();
    sums_.show(owned_, brought_);
    std::optional<gradient_numbers> due;
    if (taken) due = exchanged;
    if constexpr (hooks::made.settle) due = strategy_.settle(taken, exchanged);
    protocol_.finished(due.has_value());
    updates_due_ = due.has_value();
    ending_ = true;
    if (due) {
      ++updates_;
      this->written();  // values are about to change
    } else {
      this->end_step();
    }
    return due;
  }
  /// After finish(): whether there is an update in this step.
  [[nodiscard]] bool updates_due() const noexcept { return updates_due_; }
  /// After finish(): every slice of a parameter that this rank updates, with its gradient; none if there is no update
  /// in this step. Valid until the next begin(). An update writes `value` and `outputs`.
  [[nodiscard]] std::span<segment_type const> segments() const {
    protocol_.update();
    return updates_due_ ? std::span<segment_type const>(owned_) : std::span<segment_type const>();
  }
  /// Collective. Sends the updated values to every rank (if parameters are sharded, each has its own already), and ends
  /// the step: a strategy's periodic action happens here. If the optimizer's state is sharded, or the strategy has a
  /// period, every finite step must end with it.
  void publish() {
    auto const now = this->labelled(comm::call_label::values);
    sums_.exposed([&](double) { this->publish_values(this->trained_count()); });
    if (ending_) this->end_step();
  }
  /// After finish(): whether this rank's gradient of a tensor is finite (the part of it that it updates).
  [[nodiscard]] bool has_finite_gradient(parallel::bucket_plan::entry const& entry) const {
    return sums_.is_finite(entry, brought_);
  }

  [[nodiscard]] exchange_memory memory() const {
    auto sum = base::memory();
    sum.gradients += sums_.kept_bytes();
    sum.buffers += sums_.buffer_bytes();
    return sum;
  }
  void forget_compression() {
    base::forget_compression();
    sums_.forget_state();
  }
  template <class F>
  void visit_state(state_scope scope, F&& f) {
    base::visit_state(scope, f);
    for (int b = 0; b < this->trained_count(); ++b) {
      sums_.visit_state(b, scope, [&](std::string const& name, state_location const& at, auto const& values) {
        f(name, state_location{at.info, at.first, at.of_rank, at.summands * this->summing_ranks(b)}, values);
      });
    }
  }

 protected:
  /// The step that has begun has no samples on any rank: it ends without an update.
  void without_update() noexcept { samples_missing_ = true; }
  parallel::vote& new_vote(std::int64_t wish) {
    vote_.clear(wish);
    return vote_;
  }

 private:
  using base::also_, base::bucket_plan_, base::ending_, base::everyone_, base::in_units_, base::own_, base::owned_,
      base::parameters_, base::protocol_, base::share_factor_, base::steps_, base::strategy_, base::summed_,
      base::updates_, base::values_;

  void take(int use, bool last) {
    brought_.take(use, last, [this](int each) { return sums_.open_use(each); });
  }

  gradients_type brought_;  // this rank's gradients
  sums_type sums_;
  parallel::vote vote_;  // of finish(votes)
  std::vector<std::int64_t> places_;
  std::int64_t reports_left_ = 0;  // in all micro-batches of the rank that runs the most
  bool updates_due_ = true;        // segments() has some
  bool samples_missing_ = false;   // on all ranks: no update in this step
};

}  // namespace trireme
