#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
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
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/broadcast.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/detail/direct_sums.hpp"
#include "trireme/parallel/detail/exchange_checks.hpp"
#include "trireme/parallel/detail/exchange_protocol.hpp"
#include "trireme/parallel/detail/foreign_parameters.hpp"
#include "trireme/parallel/detail/gradient_store.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/detail/value_store.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/partition.hpp"
#include "trireme/parallel/strategy_state.hpp"
#include "trireme/parallel/vote.hpp"

namespace trireme {

/// The ranks along an axis that processes different samples and distributes some parameters.
template <class Comm>
struct distributed_axis {
  std::string_view kind;
  Comm* ranks;
};

/// One rank's part of a step: basic_exchange::begin().
struct exchange_step {
  std::int64_t micro_batches = 1;          ///< logical micro-batches of this rank
  std::span<std::int64_t const> places{};  ///< those of them that have samples, which it runs: ascending, from 0
  std::int64_t first = 0;                  ///< number of its first one among all ranks' logical micro-batches
  std::int64_t runs = 0;  ///< number that it runs, if larger: the rest only takes part in those of other ranks
  double scale = 1;       ///< the factor that the step's gradients carry (a loss scale)
  /// The number of the step in the run, for strategies with a period; -1: the one after the last one.
  std::int64_t number = -1;
  /// With parameters in the caller's memory: every use will be reported, and none by accumulate(). Then nothing is
  /// cleared first, and gradients already in gradient_memory() count. On one rank nothing is copied either.
  bool all_reported = false;
};

/// For begin() in your own loop: gradients become the mean over ranks, whatever their numbers of samples.
struct mean_over_ranks {};

/// Owns the memory of parameters and gradients, and sums the gradients of all ranks.
///
/// A step:  begin(micro-batches); backward calls ready(use) as each gradient becomes final; finish();
///          an update of all segments(); publish(). If reports_every_micro_batch(), every micro-batch reports its
///          gradients, else only the last one: until then gradients accumulate without an exchange.
///          A strategy acts only within these calls, in any training loop: the exchange holds the strategy's state
///          (strategy_state.hpp), and counts the steps.
///          With units, the engine also calls, for each: gather(first, last) before and release(first, last)
///          after its forward and its backward, prefetch() for the next one, and open(first, last) before its backward.
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
template <class Env, class Comm, strategy Strategy, class Compressor>
class basic_exchange {
 public:
  using communicator = Comm;
  using space = typename Env::space;
  using param_element = typename Env::param;
  using gradient_element = typename Env::gradient;
  using master_element = typename Env::master;
  using kernels = ops::on<space>;
  using placement = parallel::detail::placement_t<Strategy>;
  using outputs = parallel::detail::value_outputs<Env, Comm, placement>;
  using strategy_type = parallel::strategy_state_t<Strategy, Env, Comm>;
  using segment_type = parallel::owned_segment<Env>;
  using hooks = parallel::detail::strategy_calls<strategy_type>;

  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool shards_parameters = Strategy::parameters == distribution::shard;
  static constexpr bool keeps_master = outputs::keeps_master;
  /// Whether each rank takes steps on its own, so that values may differ between ranks between steps.
  static constexpr bool replicas_differ = parallel::steps_alone<Strategy>;
  // A user's memory space may have no scaling.
  static constexpr bool scales = requires(tensor_view<gradient_element, space> gradient) {
    kernels::scale(gradient, 1.0);
  };
  // Whether the contents of a bucket at the beginning of a step may count. Its padding must be zero then, which fails
  // if a slice is unspecified after a step, or a compressor has encoded it.
  static constexpr bool keeps_buckets = !sharded && lossless_identity<Compressor> && scales;
  /// Whether the caller's gradients may be in their buckets: see gradient_memory().
  static constexpr bool has_gradient_memory = keeps_buckets && std::is_same_v<param_element, gradient_element>;
  /// Ranks in one address space sum gradients by reading each other's.
  static constexpr bool can_be_direct =
      outputs::can_write_peers && Strategy::gradients == distribution::replicate && lossless_identity<Compressor> &&
      std::is_same_v<gradient_element, typename Env::reduce> && has_peers<Comm, gradient_element, space>;

  /// Takes over the parameters of a model: gives them memory, and binds them to it.
  ///
  /// @param unit_ends  end of each unit's uses, ascending; required from stage 2 on and with .reproducible.
  /// @param replicas   the ranks that hold the same part of the model.
  /// @param voters     the ranks that vote, including `replicas`; null: `replicas`.
  /// @param again      axes along which parameters are distributed: gradients of the others are summed over these ranks
  ///                   too, after the sum over `replicas`.
  /// @param wishes     the optimizer's requirements: bucket_requirements_of(optimizer).
  basic_exchange(std::vector<parameter<Env>*> uses, Comm& replicas, Strategy const& strategy,
                 Compressor const& compressor, std::span<int const> unit_ends = {},
                 std::type_identity_t<Comm>* voters = nullptr,
                 std::span<distributed_axis<std::type_identity_t<Comm>> const> again = {},
                 bucket_requirements const& requirements = {})
      : replicas_(replicas),
        summed_of_(replicas),
        summed_(summed_of_.ranks),
        everyone_(voters == nullptr ? replicas : *voters),
        bucket_plan_(parallel::detail::agreed(
            {infos(uses), parallel::detail::bucket_elements(strategy, sizeof(gradient_element)), summed_.size(),
             needs_units(strategy) ? unit_ends : no_units(), of_strategy(requirements)},
            replicas_, everyone_.rank(), strategy, compressor)),
        own_(bucket_plan_, summed_.rank(), sharded),
        uses_(std::move(uses)),
        values_(bucket_plan_, uses_, summed_, true),
        gradients_(bucket_plan_, uses_, summed_, compressor, sums_in_a_tree(strategy),
                   again.empty() && may_be_direct(strategy)),
        direct_(again.empty() && may_be_direct(strategy)),
        outputs_(bucket_plan_, values_, foreign_, summed_),
        masters_(made_masters()),
        protocol_(bucket_plan_, use_count(), published_, reports_every_micro_batch()),
        in_a_tree_(sums_in_a_tree(strategy)),
        owned_(list_owned()),
        strategy_(strategy, seen_state{replicas_, own_, owned_}) {
    parallel::detail::expect_exact_means(bucket_plan_, compressor);
    if (needs_units(strategy)) parallel::detail::expect_units(strategy, !unit_ends.empty());
    if (in_a_tree_) {
      parallel::detail::expect_tree(strategy, summed_.size(), parallel::detail::sums_in_tree<bucket_transport>,
                                    lossless_identity<Compressor>);
    }
    read_peers();
    for (auto const& axis : again) {
      for (int b = 0; b < bucket_count(); ++b) {
        auto const& entries = bucket_plan_.buckets()[static_cast<std::size_t>(b)].entries;
        if (bucket_plan_.at(entries.front()).info.distributed != axis.kind) also_.push_back({b, axis.ranks});
      }
    }
    follow_values();
  }

  /// For parameters in the caller's memory: gradients are copied into buckets when they are ready, and the reduced ones
  /// are copied back by finish(). Throws if values differ between the ranks of `replicas`.
  basic_exchange(std::vector<foreign_parameter<param_element, space>> parameters, Comm& replicas,
                 Strategy const& strategy, Compressor const& compressor, std::type_identity_t<Comm>* voters = nullptr,
                 bucket_requirements const& requirements = {})
      : replicas_(replicas),
        summed_of_(replicas),
        summed_(summed_of_.ranks),
        everyone_(voters == nullptr ? replicas : *voters),
        foreign_(std::move(parameters)),
        bucket_plan_(parallel::detail::agreed(
            {foreign_.infos(), parallel::detail::bucket_elements(strategy, sizeof(gradient_element)), summed_.size(),
             no_units(), of_strategy(requirements)},
            replicas_, everyone_.rank(), strategy, compressor)),
        own_(bucket_plan_, summed_.rank(), sharded),
        values_(bucket_plan_, uses_, summed_, sharded),
        gradients_(bucket_plan_, uses_, summed_, compressor, sums_in_a_tree(strategy), false),
        outputs_(bucket_plan_, values_, foreign_, summed_),
        masters_(made_masters()),
        protocol_(bucket_plan_, use_count(), published_, false),
        owned_(list_owned()),
        strategy_(strategy, seen_state{replicas_, own_, owned_}) {
    static_assert(!keeps_master, "trireme::exchange: parameters in the caller's memory are their own master copy");
    static_assert(!shards_parameters,
                  "trireme::exchange: parameters in the caller's memory cannot be dropped between uses; "
                  "use parallel::zero<2>");
    if (sums_in_a_tree(strategy)) {
      throw config_error(text("trireme::exchange: ", describe(strategy),
                              " needs to know the micro-batches, which a model with its own memory does not provide; "
                              "leave .reproducible out, or describe the model in units"));
    }
    verify_replicas();
    follow_values();
  }
  basic_exchange(basic_exchange const&) = delete;
  basic_exchange& operator=(basic_exchange const&) = delete;

  [[nodiscard]] parallel::bucket_plan const& plan() const noexcept { return bucket_plan_; }
  /// The ranks that hold the same part of the model. Gradients are summed over them, unless each takes steps on its
  /// own.
  [[nodiscard]] Comm& world() const noexcept { return replicas_; }
  /// The ranks that vote.
  [[nodiscard]] Comm& everyone() const noexcept { return everyone_; }
  /// The state of the strategy between steps.
  [[nodiscard]] strategy_type& strategy() noexcept { return strategy_; }
  [[nodiscard]] strategy_type const& strategy() const noexcept { return strategy_; }
  /// Changes whenever values may have changed, to detect that copies derived from them are out of date.
  [[nodiscard]] std::uint64_t version() const noexcept {
    return shards_parameters ? version_ | ops::passing_values : version_;
  }
  /// Steps that are over, including those without an update.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// The steps with an update.
  [[nodiscard]] std::int64_t updates() const noexcept { return updates_; }
  [[nodiscard]] int use_count() const noexcept {
    return uses_.empty() ? foreign_.count() : static_cast<int>(uses_.size());
  }

  // Steps.

  /// The gradient of a tensor whose info has `tied` is also summed over `group`, after the sum over the exchange's own
  /// ranks: over the ranks of other stages that use it. The group must outlive the exchange, and all of its ranks must
  /// name the same tensors in the same order.
  void sum_also(std::string_view name, Comm& group) {
    for (auto const& entry : bucket_plan_.entries()) {
      if (entry.info.name == name && entry.info.tied) return also_.push_back({entry.bucket, &group});
    }
    throw config_error(text("trireme::exchange: there is no tied parameter \"", name, "\"; pass a tied one"));
  }

  [[nodiscard]] exchange_times const& times() const noexcept { return gradients_.times(); }
  /// From now on every bucket's exchange is recorded in lane 1 of a timeline, which must outlive the exchange.
  void record(observe::timeline& timeline) { gradients_.record(timeline); }

  /// Whether ready() is called in every micro-batch, not only in the last one.
  [[nodiscard]] bool reports_every_micro_batch() const noexcept { return gradients_.pooled() && foreign_.empty(); }

  /// Starts a step: gradients are zero again. Collective if reports_every_micro_batch().
  /// @param micro_batches  the number that this rank runs.
  void begin(std::int64_t micro_batches = 1) {
    places_.resize(static_cast<std::size_t>(micro_batches));
    for (std::int64_t m = 0; m < micro_batches; ++m) places_[static_cast<std::size_t>(m)] = m;
    begin({.micro_batches = micro_batches, .places = places_});
  }
  /// The same if some of this rank's logical micro-batches have no samples, or gradients carry a factor.
  void begin(exchange_step const& step) {
    auto const& [micro_batches, places, first, runs, scale, number, all_reported] = step;
    protocol_.may_begin();
    if (ending_) end_step();  // there was nothing to publish
    if (number >= 0) steps_ = number;
    all_reported_ = all_reported;
    in_place_ = has_gradient_memory && all_reported && summed_.size() == 1 && !foreign_.empty() && !shows_buckets_;
    if constexpr (shards_parameters) values_.release_all();
    auto const own = std::max(static_cast<std::int64_t>(places.size()), runs);
    rounds_left_ = own;
    if (reports_every_micro_batch())
      rounds_left_ = parallel::detail::agreed_rounds(summed_, micro_batches, own, in_a_tree_);
    gradients_.begin(micro_batches, places, first, rounds_left_, scale, all_reported && keeps_buckets);
    reports_left_ = use_count();
    if (reports_every_micro_batch()) {
      protocol_.begin(own, rounds_left_);
    } else {
      protocol_.begin(std::min<std::int64_t>(own, 1), 1);
    }
    weight_ = 1.0 / summed_.size();
    samples_missing_ = false;
  }

  /// With parameters in the caller's memory: the weight of this rank's gradients in the sum (default: 1 / ranks, the
  /// mean). A rank with n of N samples passes n / N, also if each rank takes steps on its own. Valid until the next
  /// begin().
  void weight(double share) {
    protocol_.weight();
    weight_ = share * ranks_apart();
  }
  /// With parameters in the caller's memory: from now on the gradient of one use is read and written here, for callers
  /// whose gradients are in other memory in each step. Call it before ready() of that use; the memory must stay valid
  /// until finish() has written the sums there.
  void gradient_at(int use, tensor_view<param_element, space> gradient) { foreign_.gradient_at(use, gradient); }
  /// With parameters in the caller's memory: the gradient of one use in its bucket, so that backward can write there
  /// without a copy: call gradient_at(use, gradient_memory(use)), and begin() with .all_reported. The address stays
  /// valid as long as the exchange; from ready() to the end of finish() only the exchange may access it. Empty if this
  /// rank does not get the whole sum, or the exchange compresses, or has another element type.
  [[nodiscard]] tensor_view<param_element, space> gradient_memory(int use) {
    if constexpr (has_gradient_memory) {
      shows_buckets_ = true;
      return gradients_.open_use(use);
    } else {
      return {};
    }
  }
  /// Gives up the step that has begun, on every rank: the next begin() clears its gradients. No effect between steps.
  void abandon() noexcept {
    protocol_.abandon();
    ending_ = false;
  }

  /// Before uses [first, last) of one unit are read: returns when their values are gathered. No effect below stage 3.
  void gather(int first, int last) {
    if (!shards_parameters || first == last) return;
    protocol_.expect_published("gather()");
    values_.gather(bucket_plan_.unit_with(first));
  }
  /// The same uses will be needed next: starts to gather their values.
  void prefetch(int first, int last) {
    if (shards_parameters && first < last) values_.prefetch(bucket_plan_.unit_with(first));
  }
  /// They are not read again before the next gather(): releases their memory.
  void release(int first, int last) {
    if (shards_parameters && first < last) values_.release(bucket_plan_.unit_with(first));
  }
  /// Before backward of one unit adds to the gradients of its uses [first, last): gives them zeroed memory. No effect
  /// if gradients always have memory.
  void open(int first, int last) {
    if (!reports_every_micro_batch() || first == last) return;
    int const unit = bucket_plan_.unit_with(first);
    protocol_.open(first, last);
    gradients_.open_unit(unit);
  }

  /// Reports that the gradient of one use is final. The exchange of a bucket starts when all of its gradients are
  /// final, and (below stage 2) the buckets before it have started.
  void ready(int use) {
    protocol_.ready(use);
    if (!foreign_.empty()) take_in(use);
    gradients_.ready(use);
    if (--reports_left_ > 0) return;
    reports_left_ = use_count();
    --rounds_left_;
  }
  void ready(std::string_view name) {
    for (int use = 0; use < use_count(); ++use) {
      if (bucket_plan_.at(bucket_plan_.entry_of_use(use)).info.name == name) return ready(use);
    }
    throw config_error(text("trireme::exchange: there is no parameter \"", name, "\""));
  }
  /// Takes part in one micro-batch of other ranks, for which this rank has no samples. Its gradients are zero.
  void sit_out() {
    protocol_.sit_out();
    pass_through(true);
    auto const& units = bucket_plan_.units();
    for (auto u = units.size(); u-- > 0;) {
      gather(units[u].first, units[u].last);
      if (in_a_tree_) {
        protocol_.open(units[u].first, units[u].last);  // a tree needs no term
      } else {
        open(units[u].first, units[u].last);
      }
      if (u > 0) prefetch(units[u - 1].first, units[u - 1].last);
      for (int use = units[u].first; use < units[u].last; ++use) ready(use);
      release(units[u].first, units[u].last);
    }
  }
  /// The same for a micro-batch with a forward pass only.
  void sit_out_forward() { pass_through(false); }

  /// Adds the caller's gradients to the buckets without reporting them as final: for a further micro-batch, before the
  /// first ready() of the step.
  void accumulate() requires(!keeps_master) {
    protocol_.accumulate();
    for (int use = 0; use < foreign_.count(); ++use) take_in(use);
  }

  /// Collective. Completes the exchange, takes the vote, and settles the step: afterwards the segments' gradients are
  /// the sums over all ranks.
  ///
  /// @param votes  a number of the caller's that is summed over the ranks (a request to stop, say).
  /// @param want_norm  the norm costs nothing if gradients are reduced before the update anyway; without it, ranks that
  ///                   share memory fuse the reduction into the update.
  exchange_result finish(std::int64_t votes = 0, bool want_norm = true) {
    vote_.clear();
    vote_.wish(votes);
    finish(vote_, want_norm);
    auto const result = count(vote_);
    static_cast<void>(settle(result.finite, {result.norm, 1}));
    return result;
  }
  /// Collective. The first of the three: waits for the exchange of every gradient that must be reduced now, and adds
  /// this rank's share of the vote to `vote`.
  void finish(parallel::vote& vote, bool want_norm = true) {
    protocol_.may_finish();
    if (reports_every_micro_batch()) {
      while (rounds_left_ > 0) sit_out();
    }
    auto const start = gradients_.now();
    gradients_.finish(start);
    for (auto const& [bucket, group] : also_) {
      if (bucket >= trained_count()) continue;
      auto const [first, count] = own_.owned(bucket);
      parallel::sum_of_all(*group, gradients_.reduced(bucket, first, count), reduction::sum{});
    }
    fused_ = direct_ && !want_norm && !hooks::made.settle;  // settle() reads sums
    if (fused_) vote.without_norm();
    if (direct_) {
      finish_direct(vote.squares());
    } else {
      add_squares(vote.squares());
    }
    if (gradients_.found_nonfinite()) vote.squares().add(std::numeric_limits<double>::infinity());
    gradients_.times().exposed += gradients_.now() - start;
  }
  /// Collective. The second: the single blocking exchange of a step.
  [[nodiscard]] exchange_result count(parallel::vote& vote) {
    auto const start = gradients_.now();
    auto result = vote.count(everyone());
    gradients_.times().exposed += gradients_.now() - start;
    // Ranks that take steps on their own: the root mean square.
    if constexpr (replicas_differ) result.norm /= std::sqrt(ranks_apart());
    return result;
  }
  /// Collective. The third: whether the step is taken, the same on every rank. Without an update the step is over.
  /// @param exchanged  the numbers of the gradients that finish() has summed.
  /// @returns the numbers of the gradients that an update must read now; nothing if there is no update: then nothing is
  ///         published either.
  std::optional<gradient_numbers> settle(bool taken, gradient_numbers const& exchanged) {
    taken = taken && !samples_missing_;
    if (taken) gradients_.commit();
    if (!foreign_.empty()) give_back_gradients();
    show_gradients();
    std::optional<gradient_numbers> due;
    if (taken) due = exchanged;
    if constexpr (hooks::made.settle) due = strategy_.settle(taken, exchanged);
    protocol_.finished(due.has_value());
    updates_due_ = due.has_value();
    ending_ = true;
    if (due) {
      ++updates_;
      written();  // values are about to change
    } else {
      end_step();
    }
    return due;
  }
  /// The traffic repeats after period() steps, once settles_after() steps have been taken.
  [[nodiscard]] std::int64_t period() const noexcept {
    if constexpr (requires { strategy_.period(); }) return strategy_.period();
    return 1;
  }
  [[nodiscard]] std::int64_t settles_after() const noexcept {
    if constexpr (requires { strategy_.settles_after(); }) return strategy_.settles_after();
    return 1;
  }
  /// The weight of one sample's loss in the loss that this rank differentiates.
  /// @param total  samples of the step, over all ranks.
  [[nodiscard]] double sample_weight(std::int64_t total) const noexcept {
    return ranks_apart() / static_cast<double>(total);
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
    publish_first(trained_count());
    if (ending_) end_step();
  }

  /// Collective. Calls f("value/" + name, place, view) for all master values that this rank keeps, to be changed; then
  /// updates the values that layers read, and the strategy's values derived from them.
  template <class F>
  void change_values(F&& f) {
    visit_values(state_scope::kept, f);
    refresh_parameters();
    follow_values();
  }
  /// Collective. Updates the values that layers read after a checkpoint has restored master values and all other state.
  void refresh_parameters() {
    std::vector<tensor_view<param_element, space>> outputs;
    for (int b = 0; b < bucket_count(); ++b) {  // gradients may have no memory at this point
      own_.for_each_range(state_scope::kept, b, [&](parallel::bucket_plan::tensor_range const& range) {
        outputs.clear();
        outputs_.add(b, range, outputs);
        for (auto const& output : outputs)
          kernels::copy(output, tensor_view<master_element const, space>(master_of(b, range)));
      });
    }
    publish_first(bucket_count());
  }

  // Parameters, between steps.

  /// Fills every parameter with its initial values, a function of (seed, name, index): equal on every rank.
  void initialise(std::uint64_t seed) {
    for (auto const& entry : bucket_plan_.entries()) {
      trireme::tensor<master_element, space> whole(shape{entry.size()});
      for_each_run(entry.info, 0, entry.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        kernels::initialise(whole.view().flat(here, n), entry.info.start, seed, hash_name(entry.info.name), first);
      });
      load(entry, tensor_view<master_element const, space>(whole));
    }
    written();
    if constexpr (hooks::made.start) strategy_.start();
    follow_values();
  }

  /// Collective. Throws config_error on every rank if one rank's parameters differ from rank 0's. (If parameters are
  /// sharded, no rank has a copy of another's, and nothing is compared.)
  void verify_replicas() {
    protocol_.expect_published("verify_replicas()");
    if constexpr (shards_parameters) return;
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(replicas_.size()));
    hashes[static_cast<std::size_t>(replicas_.rank())] = hash_of_parameters();
    replicas_.all_gather(tensor_view<std::uint64_t>(hashes));
    for (int rank = 1; rank < replicas_.size(); ++rank) {
      if (hashes[static_cast<std::size_t>(rank)] == hashes[0]) continue;
      throw config_error(
          text("trireme::exchange: the parameters of rank ", rank, " differ from those of rank 0; start every rank ",
               foreign_.empty() ? "from the same seed, or call broadcast()"
                                : "from the same values: world.broadcast(values, 0) gives it those of rank 0"));
    }
  }

  /// Collective. Gives every rank the parameters of `root`; other ranks of a replica that also hold some of them get
  /// those of the first (no effect if each rank has its own slices).
  void broadcast(int root = 0) {
    broadcast(root, [](auto&&) {});
  }
  /// The same, then for tensors that ranks of other groups also hold.
  /// @param others  (send): calls send(entry, ranks) for each of them, collective over `ranks`.
  template <class Others>
  void broadcast(int root, Others&& others) {
    protocol_.expect_published("broadcast()");
    for (auto const& entry : bucket_plan_.entries()) broadcast_one(entry, replicas_, root);
    for (auto const& [bucket, group] : also_) {
      for (int const e : bucket_plan_.buckets()[static_cast<std::size_t>(bucket)].entries)
        broadcast_one(bucket_plan_.at(e), *group, 0);
    }
    others([&](parallel::bucket_plan::entry const& entry, Comm& ranks) { broadcast_one(entry, ranks, 0); });
    written();
    follow_values();
  }
  /// The global hash of this rank's copy of all parameters. Collective where parameters are sharded: of all slices.
  [[nodiscard]] std::uint64_t hash_of_parameters() const {
    protocol_.expect_published("hash_of_parameters()");
    std::uint64_t sum = 0;
    auto const add = [&](parallel::bucket_plan::entry const& entry, std::int64_t from, auto values) {
      for_each_run(entry.info, from, values.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        sum += kernels::hash(tensor_view<param_element const, space>(values.flat(here - from, n)),
                             hash_name(entry.info.name), first);
      });
    };
    if constexpr (shards_parameters) {
      for (int b = 0; b < bucket_count(); ++b) {
        auto const [first, count] = own_.accounted(b);
        for (auto const range : bucket_plan_.tensor_ranges(b, first, count)) {
          add(bucket_plan_.at(range.entry), range.in_entry, values_.kept(b, range));
        }
      }
      summed_.all_reduce(tensor_view<std::uint64_t>(&sum, shape{1}), reduction::sum{});
    } else {
      for (auto const& entry : bucket_plan_.entries()) add(entry, 0, parameter_values(entry));
    }
    return sum;
  }
  /// After finish(): whether this rank's gradient of a tensor is finite (the part of it that it updates).
  [[nodiscard]] bool has_finite_gradient(parallel::bucket_plan::entry const& entry) const {
    if (entry.frozen) return true;
    auto const [first, count] = shards_gradients ? own_.owned(entry.bucket) : interval{entry.offset, entry.size()};
    bool finite = true;
    for (auto const range : bucket_plan_.tensor_ranges(entry.bucket, first, count)) {
      if (&bucket_plan_.at(range.entry) != &entry) continue;
      finite = finite && kernels::finite(tensor_view<gradient_element const, space>(reduced(entry.bucket, range)));
    }
    return finite;
  }
  /// The memory allocated for this rank so far.
  [[nodiscard]] exchange_memory memory() const {
    exchange_memory sum{.parameters = values_.kept_bytes(),
                        .gradients = gradients_.kept_bytes(),
                        .buffers = values_.buffer_bytes() + gradients_.buffer_bytes()};
    for (auto const& master : masters_) sum.masters += static_cast<std::int64_t>(master.view().bytes());
    if constexpr (requires { strategy_.count(sum); }) strategy_.count(sum);
    return sum;
  }
  /// A tensor as this rank's layers see it; if parameters are sharded, empty unless its unit is gathered.
  [[nodiscard]] tensor_view<param_element, space> parameter_values(parallel::bucket_plan::entry const& entry) const {
    if (!foreign_.empty()) return foreign_.value(entry);
    auto const whole = values_.whole(entry.bucket);
    return whole.empty() ? whole : whole.flat(entry.offset, entry.size());
  }

  // State: its owners, and the part of it that is kept.

  /// The elements that this rank updates, and those that it owns.
  [[nodiscard]] parallel::partition const& own() const noexcept { return own_; }
  /// The master value of a piece, in whichever memory it is.
  [[nodiscard]] tensor_view<master_element, space> master_of(int bucket,
                                                             parallel::bucket_plan::tensor_range const& range) const {
    if constexpr (keeps_master) {
      auto const& master = masters_[static_cast<std::size_t>(bucket)];
      return master.view().flat(range.in_bucket - own_.owned(bucket).first, range.count);
    } else {
      if (!foreign_.empty()) return foreign_.value(bucket_plan_.at(range.entry)).flat(range.in_entry, range.count);
      return values_.kept(bucket, range);
    }
  }
  /// Calls f(name, place, view) for the master values that this rank updates; see contract/state.hpp.
  template <class F>
  void visit_values(state_scope scope, F&& f) {
    for (int bucket = 0; bucket < bucket_count(); ++bucket) {
      own_.for_each_range(
          scope, bucket,
          [&](parallel::bucket_plan::tensor_range const& range) {
            auto const& info = bucket_plan_.at(range.entry).info;
            f("value/" + info.name, state_location{info, range.in_entry, replicas_differ}, master_of(bucket, range));
          },
          replicas_differ);
    }
  }
  /// Resets the state of compressors to that before the first step.
  void forget_compression() { gradients_.forget_state(); }
  /// Calls f(name, state_location, view) for the compressor's state of one bucket; see contract/state.hpp.
  template <class F>
  void visit_compression(int bucket, state_scope scope, F&& f) const {
    gradients_.visit_state(bucket, scope, f);
  }
  /// The state of the exchange between steps; see contract/state.hpp.
  template <class F>
  void visit_state(state_scope scope, F&& f) {
    visit_values(scope, f);
    for (int b = 0; b < trained_count(); ++b) visit_compression(b, scope, f);
    if constexpr (hooks::made.state) strategy_.visit_state(scope, f);
  }
  template <class F>
  void visit_numbers(F&& f) {
    if constexpr (hooks::made.numbers) strategy_.visit_numbers(f);
  }
  /// Continues from a checkpoint: sets the number of steps that are over, and of those with an update.
  void go_on(std::int64_t steps, std::int64_t updates) noexcept {
    steps_ = steps;
    updates_ = updates;
  }
  /// Errors   assertion_error (light) during a step.
  void expect_between_steps(std::string_view call) const { protocol_.expect_between_steps(call); }

 protected:
  /// The step that has begun has no samples on any rank: it ends without an update.
  void without_update() noexcept { samples_missing_ = true; }

 private:
  using bucket_transport = parallel::detail::transport<Env, Comm, placement, Compressor>;
  using seen_state = parallel::owned_state<Env, Comm>;
  // What must follow an update before the next step begins.
  static constexpr auto published_ = sharded           ? parallel::detail::publishing::parts
                                     : hooks::made.end ? parallel::detail::publishing::ends
                                                       : parallel::detail::publishing::nothing;
  static_assert(sizeof(parallel::detail::check_strategy_hooks<strategy_type>) > 0);
  static_assert(sizeof(parallel::detail::check_strategy_instance<Strategy, Env, Comm>) > 0);
  static constexpr bool shards_gradients = Strategy::gradients == distribution::shard;
  static_assert(!shards_gradients || !parallel::detail::is_given_once<Compressor, Env, Comm>,
                "trireme::exchange: this compressor needs each gradient once a step, "
                "but from stage 2 on parallel::zero sends every micro-batch; use parallel::zero<1>");

  static std::span<int const> no_units() { return {}; }
  // If every rank updates everything, all tensors are whole on each, whatever the slices.
  static bucket_requirements of_strategy(bucket_requirements requirements) {
    requirements.whole_tensors = requirements.whole_tensors && sharded;
    return requirements;
  }
  // Whether gradients have memory only while they are used.
  static bool needs_units(Strategy const& strategy) { return shards_gradients || sums_in_a_tree(strategy); }
  static std::vector<parameter_info> infos(std::vector<parameter<Env>*> const& uses) {
    std::vector<parameter_info> all;
    for (auto const* use : uses) all.push_back(use->info);
    return all;
  }
  [[nodiscard]] int bucket_count() const noexcept { return static_cast<int>(bucket_plan_.buckets().size()); }
  [[nodiscard]] int trained_count() const noexcept { return bucket_plan_.trained_buckets(); }
  // If only the sum is needed, and no other rank adds to it later.
  [[nodiscard]] bool may_be_direct(Strategy const& strategy) const {
    auto const& all = bucket_plan_.entries();
    return can_be_direct && !sums_in_a_tree(strategy) &&
           std::none_of(all.begin(), all.end(), [](auto const& each) { return each.info.tied; });
  }
  [[nodiscard]] std::vector<trireme::tensor<master_element, space>> made_masters() const {
    std::vector<trireme::tensor<master_element, space>> masters;
    for (int b = 0; keeps_master && b < bucket_count(); ++b) {
      masters.emplace_back(shape{own_.owned(b).count});
      kernels::fill(masters.back().view(), 0.0);
    }
    return masters;
  }
  void read_peers() {
    if constexpr (can_be_direct) {
      for (int b = 0; direct_ && b < trained_count(); ++b) direct_sums_.add_bucket(summed_, gradients_.resident(b));
    }
  }
  // All but the gradients stays where it is.
  [[nodiscard]] std::vector<segment_type> list_owned() {
    std::vector<segment_type> all;
    for (int b = 0; b < trained_count(); ++b) {
      own_.for_each_range(state_scope::kept, b, [&](parallel::bucket_plan::tensor_range const& range) {
        auto& it = all.emplace_back();
        it.bucket = b;
        it.range = range;
        it.info = &bucket_plan_.at(range.entry).info;
        it.decays = it.info->decays;
        it.value = master_of(b, range);
        outputs_.add(b, range, written_);
      });
    }
    auto const each = all.empty() ? 0 : written_.size() / all.size();  // as many for every segment
    for (std::size_t i = 0; i < all.size(); ++i) all[i].outputs = std::span(written_).subspan(i * each, each);
    return all;
  }
  // Each segment gets its gradient: the sum, or the terms that the update adds itself.
  void show_gradients() {
    auto const ways = fused_ ? static_cast<std::size_t>(summed_.size()) : 1;
    terms_.resize(owned_.size() * ways);
    auto to = terms_.begin();
    for (auto& each : owned_) {
      each.gradient = {{to, ways}, 1.0};
      each.sum = reduced(each.bucket, each.range);
      if constexpr (can_be_direct) {
        if (fused_) {
          auto const terms = direct_sums_.terms_of(each.bucket, each.range.in_bucket, each.range.count);
          to = std::copy(terms.begin(), terms.end(), to);
          continue;
        }
      }
      *to++ = each.sum;
    }
  }
  // The number of replicas if each rank takes steps on its own: the whole step is their mean.
  [[nodiscard]] double ranks_apart() const noexcept { return replicas_differ ? replicas_.size() : 1; }
  // The only place that marks all values derived from parameters as out of date.
  void written() {
    version_ = parallel::detail::new_version();
    foreign_.follow();
  }
  void follow_values() {
    if constexpr (hooks::made.follow) strategy_.follow();
  }
  void end_step() {
    ending_ = false;
    if constexpr (hooks::made.end) {
      if (strategy_.end(steps_)) refresh_parameters();
    }
    ++steps_;
  }

  void broadcast_one(parallel::bucket_plan::entry const& entry, Comm& ranks, int root) {
    if constexpr (shards_parameters) return;
    auto const values = parameter_values(entry);
    if constexpr (!keeps_master) {
      parallel::broadcast(ranks, values, root);
    } else if constexpr (!sharded) {
      auto const master = masters_[static_cast<std::size_t>(entry.bucket)].view().flat(entry.offset, entry.size());
      parallel::broadcast(ranks, master, root);
      kernels::copy(values, tensor_view<master_element const, space>(master));
    } else {  // the root does not have all masters: the others' are set from the values of its layers
      parallel::broadcast(ranks, values, root);
      trireme::tensor<master_element, space> whole(shape{entry.size()});
      kernels::copy(whole.view(), tensor_view<param_element const, space>(values));
      load(entry, tensor_view<master_element const, space>(whole));
    }
  }

  // Loads a whole tensor of master values: this rank's part of the masters, and the values of its layers.
  void load(parallel::bucket_plan::entry const& entry, tensor_view<master_element const, space> whole) {
    if constexpr (!shards_parameters) kernels::copy(parameter_values(entry), whole);
    if constexpr (!keeps_master && !shards_parameters) return;
    auto const [first, count] = own_.owned(entry.bucket);
    for (auto const range : bucket_plan_.tensor_ranges(entry.bucket, first, count)) {
      if (&bucket_plan_.at(range.entry) != &entry) continue;
      auto const part = whole.flat(range.in_entry, range.count);
      if constexpr (keeps_master) kernels::copy(master_of(entry.bucket, range), part);
      if constexpr (shards_parameters) kernels::copy(values_.kept(entry.bucket, range), part);
    }
  }

  void publish_first(int buckets) {
    protocol_.publish();
    auto const start = gradients_.now();
    if constexpr (shards_parameters) values_.release_all();
    outputs_.publish(buckets);
    written();
    gradients_.times().exposed += gradients_.now() - start;
  }

  // The engine's calls in a forward pass; backward begins with the last unit.
  void pass_through(bool keep_last) {
    auto const& units = bucket_plan_.units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      bool const last = u + 1 == units.size();
      gather(units[u].first, units[u].last);
      if (!last) prefetch(units[u + 1].first, units[u + 1].last);
      if (!last || !keep_last) release(units[u].first, units[u].last);
    }
  }

  void take_in(int use) {
    if (!bucket_plan_.trains(use)) return;
    auto const theirs = foreign_.gradient(bucket_plan_.at(bucket_plan_.entry_of_use(use)));
    auto const ours = gradients_.open_use(use);
    auto const read = tensor_view<param_element const, space>(theirs);
    if constexpr (has_gradient_memory) {
      if (in_place_) {
        if (!exactly_equal(weight_, 1)) kernels::scale(theirs, weight_);
        return;
      }
    }
    if constexpr (keeps_buckets) {
      if (all_reported_) {
        if (!is_memory_of(theirs, ours)) kernels::copy(ours, read);
        if (!exactly_equal(weight_, 1)) kernels::scale(ours, weight_);
        return;
      }
    }
    kernels::accumulate(ours, read, weight_);
  }
  static bool is_memory_of(tensor_view<param_element, space> a, tensor_view<gradient_element, space> b) noexcept {
    return static_cast<void const*>(a.address()) == static_cast<void const*>(b.address());
  }

  // Parameters that another rank of this replica owns are in that rank's norm, and moving averages have no gradient;
  // but all numbers must be finite.
  void account(parallel::bucket_plan::tensor_range const& range, tensor_view<gradient_element const, space> gradient,
               exact_sum& squares) const {
    auto const& info = bucket_plan_.at(range.entry).info;
    if (info.is_owner && exactly_equal(info.running, 0)) {
      kernels::sum_of_squares(gradient, squares);
    } else if (!kernels::finite(gradient)) {
      squares.add(std::numeric_limits<double>::infinity());
    }
  }
  // Of the reduced gradients that this rank owns.
  void add_squares(exact_sum& squares) {
    for (int b = 0; b < trained_count(); ++b) {
      auto const [first, count] = own_.accounted(b);
      for (auto const range : bucket_plan_.tensor_ranges(b, first, count)) account(range, reduced(b, range), squares);
    }
  }
  // After finish(): the sum of the gradients of a piece.
  [[nodiscard]] tensor_view<gradient_element, space> reduced(int bucket,
                                                             parallel::bucket_plan::tensor_range const& range) const {
    if constexpr (has_gradient_memory) {
      if (in_place_) return foreign_.gradient(bucket_plan_.at(range.entry)).flat(range.in_entry, range.count);
    }
    return gradients_.reduced(bucket, range.in_bucket, range.count);
  }
  // If ranks read each other's gradients. Without a norm no rank computes sums before the update: each checks all of
  // its own gradients, and the vote is the barrier.
  void finish_direct(exact_sum& squares) {
    if constexpr (can_be_direct) {
      if (!fused_) summed_.barrier();  // the gradients of all ranks are final
      for (int b = 0; b < trained_count(); ++b) {
        if (fused_) {
          bool const finite = kernels::finite(tensor_view<gradient_element const, space>(gradients_.resident(b)));
          if (!finite) squares.add(std::numeric_limits<double>::infinity());
          continue;
        }
        auto const [first, count] = own_.accounted(b);
        for (auto const range : bucket_plan_.tensor_ranges(b, first, count)) {
          auto const own = gradients_.reduced(b, range.in_bucket, range.count);
          direct_sums_.reduce(b, range.in_bucket, own, [&](auto sums) { account(range, sums, squares); });
        }
        gradients_.record_bucket(b);
      }
    }
  }

  void give_back_gradients() {
    if (in_place_) return;
    for (int b = 0; b < trained_count(); ++b) {
      auto const [first, count] = own_.owned(b);
      for (auto const range : bucket_plan_.tensor_ranges(b, first, count)) {
        auto const theirs = foreign_.gradient(bucket_plan_.at(range.entry)).flat(range.in_entry, range.count);
        auto const sum = gradients_.reduced(b, range.in_bucket, range.count);
        if (!is_memory_of(theirs, sum)) kernels::copy(theirs, tensor_view<gradient_element const, space>(sum));
      }
    }
  }

  Comm& replicas_;
  parallel::detail::summed_ranks<Comm, replicas_differ> summed_of_;
  Comm& summed_;
  Comm& everyone_;
  parallel::detail::foreign_parameters<param_element, space> foreign_;
  parallel::bucket_plan bucket_plan_;
  parallel::partition own_;
  std::vector<parameter<Env>*> uses_;
  parallel::detail::value_store<Env, Comm, placement> values_;
  parallel::detail::gradient_store<Env, Comm, placement, Compressor> gradients_;
  bool direct_ = false;  // sums are computed from all ranks' buckets, in their memory
  parallel::detail::direct_sums<gradient_element, space> direct_sums_;
  outputs outputs_;
  std::vector<trireme::tensor<master_element, space>> masters_;    // by bucket, if parameters are not their own masters
  std::vector<tensor_view<gradient_element const, space>> terms_;  // of the segments' gradients
  std::vector<tensor_view<param_element, space>> written_;         // the segments' outputs
  parallel::detail::exchange_protocol protocol_;
  parallel::vote vote_;  // of finish(votes)
  std::vector<std::pair<int, Comm*>> also_;
  bool in_a_tree_ = false;
  std::vector<std::int64_t> places_;
  std::int64_t rounds_left_ = 1;  // micro-batches of the rank that runs the most
  int reports_left_ = 0;
  double weight_ = 1;
  bool all_reported_ = false;
  bool shows_buckets_ = false;  // the caller has called gradient_memory()
  bool in_place_ = false;       // one rank, whose gradients are already the sums: no copies
  bool fused_ = false;
  std::uint64_t version_ = parallel::detail::new_version();  // of values
  std::int64_t steps_ = 0;                                   // steps that are over
  std::int64_t updates_ = 0;                                 // updates of the values
  bool updates_due_ = true;                                  // segments() has some
  bool ending_ = false;                                      // settled, and not over yet
  bool samples_missing_ = false;                             // on all ranks: no update in this step
  std::vector<segment_type> owned_;
  [[no_unique_address]] strategy_type strategy_;  // last: constructed from the members above
};

}  // namespace trireme
