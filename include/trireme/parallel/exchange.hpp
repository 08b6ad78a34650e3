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
#include "trireme/parallel/detail/direct_sums.hpp"
#include "trireme/parallel/detail/exchange_checks.hpp"
#include "trireme/parallel/detail/exchange_protocol.hpp"
#include "trireme/parallel/detail/foreign_parameters.hpp"
#include "trireme/parallel/detail/gradient_store.hpp"
#include "trireme/parallel/detail/transport.hpp"
#include "trireme/parallel/detail/value_store.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/partition.hpp"
#include "trireme/parallel/strategy_state.hpp"
#include "trireme/parallel/vote.hpp"

namespace trireme {

/// The ranks along an axis that sees different samples and deals out some parameters.
template <class Comm>
struct dealing_axis {
  std::string_view kind;
  Comm* ranks;
};

/// What one rank brings to a step: basic_exchange::begin().
struct exchange_step {
  std::int64_t micro_batches = 1;          ///< logical ones of this rank
  std::span<std::int64_t const> places{};  ///< those of them that it runs, which have samples: ascending, from 0
  std::int64_t first = 0;                  ///< which of all ranks' logical micro-batches its first one is
  std::int64_t runs = 0;  ///< how many it runs where that is more: some for others, without samples of its own
  double scale = 1;       ///< the factor that the step's gradients carry (a loss scale)
  /// Which step of the run this is, for strategies with a period; -1: the one after the last one.
  std::int64_t number = -1;
  /// With parameters in the caller's memory: every use will be reported, and none comes by accumulate(). So nothing is
  /// made zero first, and what lies in gradient_memory() counts. On one rank nothing is copied either.
  bool all_reported = false;
};

/// For begin() of a loop of your own: gradients become the mean over ranks, however many samples each of them is of.
struct mean_over_ranks {};

/// Owns the memory of parameters and gradients, and makes the gradients of all ranks one.
///
/// A step:  begin(micro-batches); backward calls ready(use) as each gradient becomes final; finish();
///          for_each_segment(update); publish(). Where reports_every_micro_batch() every micro-batch reports its
///          gradients, else only the last one: gradients accumulate without an exchange before.
///          All that a strategy does in a step it does in these calls, whoever makes them: the exchange holds what the
///          strategy keeps (strategy_state.hpp), and counts the steps.
///          Where there are units, the engine also calls, for each: gather(first, last) before and release(first, last)
///          after its forward and its backward, prefetch() for the next one, and open(first, last) before its backward.
///          A rank without samples begins without places, and calls ready() for nothing. A step that is not finite is
///          over after finish(); one that is given up earlier (an exception) is over after abandon().
/// Shapes   buckets of about Strategy::bucket_bytes, filled in the order in which backward finishes; a tied tensor has
///          a bucket of its own, and each of its uses a gradient of its own, added in the order of the uses.
/// Ranks    collective: the same calls in the same order on every rank. Below stage 2 ready() may come at any time;
///          from there on, and with .reproducible, ready(), gather() and prefetch() too come in one order; ranks that
///          run fewer micro-batches than others take part in the rest in finish().
/// Numerics gradients are summed in rank order (with .reproducible in one tree over all micro-batches); the norm is
///          exact but for the rounding of blocks of 1024 squares of each tensor, so it does not depend on the number of
///          shards.
/// Threads  one owner; not copied, not moved.
/// Errors   comm_error from the communicator; config_error if the ranks' parameters, strategies or compressors are not
///          the same at the start; assertion_error (light) for a call that comes twice, too early, or without the one
///          before it.
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
  using hooks = parallel::detail::strategy_calls<strategy_type>;

  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool shards_parameters = Strategy::parameters == distribution::shard;
  static constexpr bool keeps_master = outputs::keeps_master;
  /// Whether ranks take steps alone, and so may have different values between steps.
  static constexpr bool replicas_differ = parallel::steps_alone<Strategy>;
  // A memory space of one's own need not be able to.
  static constexpr bool scales = requires(tensor_view<gradient_element, space> gradient) {
    kernels::scale(gradient, 1.0);
  };
  // Whether what lies in a bucket when a step begins may count. The padding has to be zero then: it is not where a
  // slice is unspecified after a step, or a compressor has coded it.
  static constexpr bool keeps_buckets = !sharded && lossless_identity<Compressor> && scales;
  /// Whether gradients of the caller may lie in their buckets: see gradient_memory().
  static constexpr bool has_gradient_memory = keeps_buckets && std::is_same_v<param_element, gradient_element>;
  /// Ranks of one address space sum gradients by reading each other's.
  static constexpr bool can_be_direct =
      outputs::can_write_peers && Strategy::gradients == distribution::replicate && lossless_identity<Compressor> &&
      std::is_same_v<gradient_element, typename Env::reduce> && has_peers<Comm, gradient_element, space>;

  /// Takes over the parameters of a model: gives them memory, and binds them to it.
  ///
  /// @param unit_ends  where each unit's uses end, ascending; asked for from stage 2 on and with .reproducible.
  /// @param replicas   the ranks that hold the same part of the model.
  /// @param voters     the ranks that vote, `replicas` among them; null: `replicas`.
  /// @param again      along these axes parameters are dealt out: gradients of those that are not are summed over these
  ///                   ranks too, after the sum over `replicas`.
  /// @param wishes     what the optimizer asks for: wishes_of(optimizer).
  basic_exchange(std::vector<parameter<Env>*> uses, Comm& replicas, Strategy const& strategy,
                 Compressor const& compressor, std::span<int const> unit_ends = {},
                 std::type_identity_t<Comm>* voters = nullptr,
                 std::span<dealing_axis<std::type_identity_t<Comm>> const> again = {}, layout_wishes const& wishes = {})
      : replicas_(replicas),
        summed_of_(replicas),
        summed_(summed_of_.ranks),
        everyone_(voters == nullptr ? replicas : *voters),
        layout_(parallel::detail::agreed(
            {infos(uses), parallel::detail::bucket_elements(strategy, sizeof(gradient_element)), summed_.size(),
             needs_units(strategy) ? unit_ends : no_units(), of_strategy(wishes)},
            replicas_, everyone_.rank(), strategy, compressor)),
        own_(layout_, summed_.rank(), sharded),
        uses_(std::move(uses)),
        values_(layout_, uses_, summed_, true),
        gradients_(layout_, uses_, summed_, compressor, sums_in_a_tree(strategy),
                   again.empty() && may_be_direct(strategy)),
        direct_(again.empty() && may_be_direct(strategy)),
        outputs_(layout_, values_, foreign_, summed_),
        masters_(made_masters()),
        protocol_(layout_, use_count(), published_, reports_every_micro_batch()),
        in_a_tree_(sums_in_a_tree(strategy)),
        owned_(list_owned()),
        strategy_(strategy, seen_state{replicas_, own_, owned_}) {
    parallel::detail::expect_exact_means(layout_, compressor);
    if (needs_units(strategy)) parallel::detail::expect_units(strategy, !unit_ends.empty());
    if (in_a_tree_) {
      parallel::detail::expect_tree(strategy, summed_.size(), parallel::detail::sums_in_tree<bucket_transport>,
                                    lossless_identity<Compressor>);
    }
    read_peers();
    for (auto const& axis : again) {
      for (int b = 0; b < bucket_count(); ++b) {
        auto const& entries = layout_.buckets()[static_cast<std::size_t>(b)].entries;
        if (layout_.at(entries.front()).info.dealt != axis.kind) also_.push_back({b, axis.ranks});
      }
    }
    follow_values();
  }

  /// Works for parameters that live in the caller's memory: gradients are copied into buckets when they are ready, the
  /// reduced ones are copied back by finish(). Refuses values that differ between the ranks of `replicas`.
  basic_exchange(std::vector<foreign_parameter<param_element, space>> parameters, Comm& replicas,
                 Strategy const& strategy, Compressor const& compressor, std::type_identity_t<Comm>* voters = nullptr,
                 layout_wishes const& wishes = {})
      : replicas_(replicas),
        summed_of_(replicas),
        summed_(summed_of_.ranks),
        everyone_(voters == nullptr ? replicas : *voters),
        foreign_(std::move(parameters)),
        layout_(parallel::detail::agreed(
            {foreign_.infos(), parallel::detail::bucket_elements(strategy, sizeof(gradient_element)), summed_.size(),
             no_units(), of_strategy(wishes)},
            replicas_, everyone_.rank(), strategy, compressor)),
        own_(layout_, summed_.rank(), sharded),
        values_(layout_, uses_, summed_, sharded),
        gradients_(layout_, uses_, summed_, compressor, sums_in_a_tree(strategy), false),
        outputs_(layout_, values_, foreign_, summed_),
        masters_(made_masters()),
        protocol_(layout_, use_count(), published_, false),
        owned_(list_owned()),
        strategy_(strategy, seen_state{replicas_, own_, owned_}) {
    static_assert(!keeps_master, "trireme::exchange: parameters in the caller's memory are their own master copy");
    static_assert(!shards_parameters,
                  "trireme::exchange: parameters in the caller's memory cannot be dropped between uses; use "
                  "parallel::zero<2>");
    if (sums_in_a_tree(strategy)) {
      throw config_error(
          text("trireme::exchange: ", describe(strategy),
               " needs to know the micro-batches, and a model with memory of its own does not tell them; "
               "leave .reproducible out, or describe the model in units"));
    }
    verify_replicas();
    follow_values();
  }
  basic_exchange(basic_exchange const&) = delete;
  basic_exchange& operator=(basic_exchange const&) = delete;

  [[nodiscard]] parallel::layout const& plan() const noexcept { return layout_; }
  /// The ranks that hold the same part of the model. Gradients are summed over them, unless each takes steps alone.
  [[nodiscard]] Comm& world() const noexcept { return replicas_; }
  /// The ranks that vote.
  [[nodiscard]] Comm& everyone() const noexcept { return everyone_; }
  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return uses_; }
  /// What the strategy keeps from step to step.
  [[nodiscard]] strategy_type& strategy() noexcept { return strategy_; }
  [[nodiscard]] strategy_type const& strategy() const noexcept { return strategy_; }
  /// Another number whenever values may have changed: who keeps something that was made of them compares it.
  [[nodiscard]] std::uint64_t version() const noexcept {
    return shards_parameters ? version_ | ops::passing_values : version_;
  }
  /// Steps that are over, those without an update included.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// Of them those with an update.
  [[nodiscard]] std::int64_t updates() const noexcept { return updates_; }
  [[nodiscard]] int use_count() const noexcept {
    return uses_.empty() ? foreign_.count() : static_cast<int>(uses_.size());
  }

  // Steps.

  /// The gradient of a tensor whose info says `tied` is summed over `group` too, after the sum over the exchange's own
  /// ranks: over the ranks of other stages that use it. The group must outlive the exchange, and all of its ranks name
  /// the same tensors in the same order.
  void sum_also(std::string_view name, Comm& group) {
    for (auto const& entry : layout_.entries()) {
      if (entry.info.name == name && entry.info.tied) return also_.push_back({entry.bucket, &group});
    }
    throw config_error(text("trireme::exchange: there is no tied parameter \"", name, "\""));
  }

  [[nodiscard]] exchange_times const& times() const noexcept { return gradients_.times(); }
  /// From now on every bucket's exchange is recorded in lane 1 of a timeline, which must outlive the exchange.
  void record(observe::timeline& timeline) { gradients_.record(timeline); }

  /// Whether ready() is called in every micro-batch, not only in the last one.
  [[nodiscard]] bool reports_every_micro_batch() const noexcept { return gradients_.pooled() && foreign_.empty(); }

  /// Starts a step: gradients are zero again. Collective where reports_every_micro_batch().
  /// @param micro_batches  of this rank, all of which it runs.
  void begin(std::int64_t micro_batches = 1) {
    places_.resize(static_cast<std::size_t>(micro_batches));
    for (std::int64_t m = 0; m < micro_batches; ++m) places_[static_cast<std::size_t>(m)] = m;
    begin({.micro_batches = micro_batches, .places = places_});
  }
  /// The same where some of this rank's logical micro-batches have no samples, or gradients carry a factor.
  void begin(exchange_step const& step) {
    auto const& [micro_batches, places, first, runs, scale, number, all_reported] = step;
    protocol_.may_begin();
    if (ending_) end_step();  // whoever had nothing to publish
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

  /// With parameters in the caller's memory: how much this rank's gradients weigh in the sum (default: 1 / ranks, the
  /// mean). A rank with n of N samples says n / N, also where ranks take steps alone. Until the next begin().
  void weight(double share) {
    protocol_.weight();
    weight_ = share * ranks_apart();
  }
  /// With parameters in the caller's memory: from now on the gradient of one use is read and written there, for who has
  /// gradients in other memory in each step. Before ready() of that use; the memory is the caller's until finish().
  void gradient_at(int use, tensor_view<param_element, space> gradient) { foreign_.gradient_at(use, gradient); }
  /// With parameters in the caller's memory: where the gradient of one use lies in its bucket. What backward writes
  /// there is not copied: say gradient_at(use, gradient_memory(use)), and begin() with .all_reported. It stays there as
  /// long as the exchange lives; from ready() to the end of finish() it is the exchange's. Empty where an exchange
  /// gives this rank less than the whole sum, compresses, or has other elements.
  [[nodiscard]] tensor_view<param_element, space> gradient_memory(int use) {
    if constexpr (has_gradient_memory) {
      shows_buckets_ = true;
      return gradients_.open_use(use);
    } else {
      return {};
    }
  }
  /// Gives up the step that has begun, on every rank: the next begin() forgets its gradients. Between steps nothing
  /// happens.
  void abandon() noexcept {
    protocol_.abandon();
    ending_ = false;
  }

  /// Uses [first, last) of one unit are about to be read: their values are there when this returns. Below stage 3
  /// nothing happens.
  void gather(int first, int last) {
    if (!shards_parameters || first == last) return;
    protocol_.expect_published("gather()");
    values_.gather(layout_.unit_with(first));
  }
  /// The same uses will be needed next: their values begin to travel.
  void prefetch(int first, int last) {
    if (shards_parameters && first < last) values_.prefetch(layout_.unit_with(first));
  }
  /// They are not read any more before the next gather(): their memory serves others.
  void release(int first, int last) {
    if (shards_parameters && first < last) values_.release(layout_.unit_with(first));
  }
  /// Backward of one unit is about to add to the gradients of its uses [first, last): they have memory, and are zero.
  /// Nothing happens where gradients have memory all the time.
  void open(int first, int last) {
    if (!reports_every_micro_batch() || first == last) return;
    int const unit = layout_.unit_with(first);
    protocol_.open(first, last);
    gradients_.open_unit(unit);
  }

  /// Says that the gradient of one use is final. The bucket's exchange starts as soon as all of its gradients are, and
  /// (below stage 2) the buckets before it have started.
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
      if (layout_.at(layout_.entry_of_use(use)).info.name == name) return ready(use);
    }
    throw config_error(text("trireme::exchange: there is no parameter \"", name, "\""));
  }
  /// Does for one micro-batch what ranks that have it do together: this one has none. Its gradients are zero.
  void sit_out() {
    protocol_.sit_out();
    pass_through(true);
    auto const& units = layout_.units();
    for (auto u = units.size(); u-- > 0;) {
      gather(units[u].first, units[u].last);
      if (in_a_tree_) {
        protocol_.open(units[u].first, units[u].last);  // a tree does without a term
      } else {
        open(units[u].first, units[u].last);
      }
      if (u > 0) prefetch(units[u - 1].first, units[u - 1].last);
      for (int use = units[u].first; use < units[u].last; ++use) ready(use);
      release(units[u].first, units[u].last);
    }
  }
  /// The same for a micro-batch that is only run forward.
  void sit_out_forward() { pass_through(false); }

  /// Adds the caller's gradients to the buckets without saying that they are final: one more micro-batch, before the
  /// first ready() of the step.
  void accumulate() requires(!keeps_master) {
    protocol_.accumulate();
    for (int use = 0; use < foreign_.count(); ++use) take_in(use);
  }

  /// Collective. Completes the exchange, takes the vote, and settles the step: afterwards the segments' gradients are
  /// the sums over all ranks.
  ///
  /// @param votes  a number of your own that is summed over the ranks (a wish to stop, say).
  /// @param want_norm  the norm costs nothing where gradients are reduced before the update anyway; without it, ranks
  ///                   that share memory fuse the reduction into the update.
  exchange_result finish(std::int64_t votes = 0, bool want_norm = true) {
    vote_.clear();
    vote_.wish(votes);
    finish(vote_, want_norm);
    auto const result = count(vote_);
    static_cast<void>(settle(result.finite, {result.norm, 1}));
    return result;
  }
  /// Collective. The first of the three: every gradient is on its way or has arrived, and this rank's share of what the
  /// ranks vote on is in `vote`.
  void finish(parallel::vote& vote, bool want_norm = true) {
    protocol_.may_finish();
    if (reports_every_micro_batch()) {
      while (rounds_left_ > 0) sit_out();
    }
    auto const start = gradients_.now();
    gradients_.finish(start);
    for (auto const& [bucket, group] : also_) {
      if (bucket >= trained_count()) continue;
      auto const [first, count] = owned_range(bucket);
      parallel::sum_of_all(*group, gradients_.reduced(bucket, first, count), reduction::sum{});
    }
    fused_ = direct_ && !want_norm && !hooks::made.settle;  // settle() reads sums
    if (fused_) vote.without_norm();
    if (direct_) {
      finish_direct(vote.squares());
    } else {
      add_squares(vote.squares());
    }
    if (gradients_.lost_finiteness()) vote.squares().add(std::numeric_limits<double>::infinity());
    gradients_.times().exposed += gradients_.now() - start;
  }
  /// Collective. The second: the one blocking exchange of a step.
  [[nodiscard]] exchange_result count(parallel::vote& vote) {
    auto const start = gradients_.now();
    auto result = vote.count(everyone());
    gradients_.times().exposed += gradients_.now() - start;
    // Of ranks that take steps alone: the root mean square.
    if constexpr (replicas_differ) result.norm /= std::sqrt(ranks_apart());
    return result;
  }
  /// Collective. The third: whether the step is taken, the same on every rank. Without an update the step is over.
  /// @param exchanged  of the gradients that finish() has made the sums of.
  /// @returns of those that an update is to read now; nothing if there is none: then nothing is published either.
  std::optional<gradient_numbers> settle(bool taken, gradient_numbers const& exchanged) {
    taken = taken && !samples_missing_;
    if (taken) gradients_.commit();
    if (!foreign_.empty()) give_back_gradients();
    std::optional<gradient_numbers> due;
    if (taken) due = exchanged;
    if constexpr (hooks::made.settle) {
      for (auto& each : owned_) each.sum = reduced(each.bucket, each.piece);
      due = strategy_.settle(taken, exchanged);
    }
    protocol_.finished(due.has_value());
    updates_due_ = due.has_value();
    ending_ = true;
    if (due) {
      ++updates_;
      written();  // values are about to be
    } else {
      end_step();
    }
    return due;
  }
  /// What is sent repeats after period() steps, once settles_after() steps have been taken.
  [[nodiscard]] std::int64_t period() const noexcept {
    if constexpr (requires { strategy_.period(); }) return strategy_.period();
    return 1;
  }
  [[nodiscard]] std::int64_t settles_after() const noexcept {
    if constexpr (requires { strategy_.settles_after(); }) return strategy_.settles_after();
    return 1;
  }
  /// What one sample's loss weighs in the loss that this rank differentiates.
  /// @param total  samples of the step, over all ranks.
  [[nodiscard]] double sample_weight(std::int64_t total) const noexcept {
    return ranks_apart() / static_cast<double>(total);
  }

  /// After finish(): whether there is an update in this step.
  [[nodiscard]] bool updates_due() const noexcept { return updates_due_; }
  /// Calls f(bucket, piece, update_segment) for every stretch of a parameter that this rank updates, if there is an
  /// update in this step. The segment's moments are for the caller to fill in, its scale to multiply.
  template <class F>
  void for_each_segment(F&& f) {
    protocol_.update();
    if (!updates_due_) return;
    for (int b = 0; b < trained_count(); ++b) {
      auto const [first, count] = owned_range(b);
      for (auto const piece : layout_.pieces(b, first, count)) {
        update_segment<Env> segment;
        segment.value = master_of(b, piece);
        segment.gradient = {gradient_terms_of(b, piece), 1.0};
        segment.outputs = outputs_.of(b, piece);
        segment.info = &layout_.at(piece.entry).info;
        segment.decays = segment.info->decays;
        f(b, piece, segment);
      }
    }
  }

  /// Collective. Makes the updated values the parameters of every rank (where parameters are sharded, each has its own
  /// already), and ends the step: what a strategy does once in a period is done now. Every finite step ends with it
  /// where the optimizer's state is sharded, or the strategy has a period.
  void publish() {
    publish_first(trained_count());
    if (ending_) end_step();
  }

  /// Collective. Calls f("value/" + name, place, view) for all master values that this rank keeps, to be changed; then
  /// what layers read follows them, and so does what a strategy derives of them.
  template <class F>
  void change_values(F&& f) {
    visit_values(state_scope::kept, f);
    refresh_parameters();
    follow_values();
  }
  /// Collective. Makes what layers read follow master values that came from a checkpoint, as all other state did.
  void refresh_parameters() {
    for (int b = 0; b < bucket_count(); ++b) {  // gradients may have no memory now
      auto const [first, count] = owned_range(b);
      for (auto const piece : layout_.pieces(b, first, count)) {
        for (auto const& output : outputs_.of(b, piece))
          kernels::copy(output, tensor_view<master_element const, space>(master_of(b, piece)));
      }
    }
    publish_first(bucket_count());
  }

  // Parameters, between steps.

  /// Fills every parameter with its start, a function of (seed, name, index): equal on every rank.
  void initialise(std::uint64_t seed) {
    for (auto const& entry : layout_.entries()) {
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

  /// Collective. Throws config_error on every rank if one rank's parameters differ from rank 0's. (No rank has a copy
  /// of another's where parameters are sharded.)
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

  /// Collective. Gives every rank the parameters of `root`, and other ranks of a replica that hold some of them, too,
  /// those of their first (nothing to do where each has its own slices).
  void broadcast(int root = 0) {
    broadcast(root, [](auto&&) {});
  }
  /// The same, and then that of tensors which ranks of other groups hold alike.
  /// @param others  (send): calls send(entry, ranks) for each of them, collective over `ranks`.
  template <class Others>
  void broadcast(int root, Others&& others) {
    protocol_.expect_published("broadcast()");
    for (auto const& entry : layout_.entries()) broadcast_one(entry, replicas_, root);
    for (auto const& [bucket, group] : also_) {
      for (int const e : layout_.buckets()[static_cast<std::size_t>(bucket)].entries)
        broadcast_one(layout_.at(e), *group, 0);
    }
    others([&](parallel::layout::entry const& entry, Comm& ranks) { broadcast_one(entry, ranks, 0); });
    written();
    follow_values();
  }
  /// The global hash of this rank's copy of all parameters. Collective where parameters are sharded: of all slices.
  [[nodiscard]] std::uint64_t hash_of_parameters() const {
    protocol_.expect_published("hash_of_parameters()");
    std::uint64_t sum = 0;
    auto const add = [&](parallel::layout::entry const& entry, std::int64_t from, auto values) {
      for_each_run(entry.info, from, values.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        sum += kernels::hash(tensor_view<param_element const, space>(values.flat(here - from, n)),
                             hash_name(entry.info.name), first);
      });
    };
    if constexpr (shards_parameters) {
      for (int b = 0; b < bucket_count(); ++b) {
        auto const [first, count] = accounted_range(b);
        for (auto const piece : layout_.pieces(b, first, count)) {
          add(layout_.at(piece.entry), piece.in_entry, values_.kept(b, piece));
        }
      }
      summed_.all_reduce(tensor_view<std::uint64_t>(&sum, shape{1}), reduction::sum{});
    } else {
      for (auto const& entry : layout_.entries()) add(entry, 0, parameter_values(entry));
    }
    return sum;
  }
  /// After finish(): whether this rank's gradient of a tensor is finite (of the part of it that it updates).
  [[nodiscard]] bool has_finite_gradient(parallel::layout::entry const& entry) const {
    if (entry.frozen) return true;
    auto const [first, count] = shards_gradients ? owned_range(entry.bucket) : interval{entry.offset, entry.size()};
    bool finite = true;
    for (auto const piece : layout_.pieces(entry.bucket, first, count)) {
      if (&layout_.at(piece.entry) != &entry) continue;
      finite = finite && kernels::finite(tensor_view<gradient_element const, space>(reduced(entry.bucket, piece)));
    }
    return finite;
  }
  /// What has been allocated for this rank so far.
  [[nodiscard]] exchange_memory memory() const {
    exchange_memory sum{.parameters = values_.kept_bytes(),
                        .gradients = gradients_.kept_bytes(),
                        .buffers = values_.buffer_bytes() + gradients_.buffer_bytes()};
    for (auto const& master : masters_) sum.masters += static_cast<std::int64_t>(master.view().bytes());
    if constexpr (requires { strategy_.count(sum); }) strategy_.count(sum);
    return sum;
  }
  /// A tensor as this rank's layers see it; empty where parameters are sharded, but while its unit holds them.
  [[nodiscard]] tensor_view<param_element, space> parameter_values(parallel::layout::entry const& entry) const {
    if (!foreign_.empty()) return foreign_.value(entry);
    auto const whole = values_.whole(entry.bucket);
    return whole.empty() ? whole : whole.flat(entry.offset, entry.size());
  }

  // State: who owns it, and what of it is kept.

  /// Which elements this rank updates, and answers for.
  [[nodiscard]] parallel::partition const& own() const noexcept { return own_; }
  /// The elements of a bucket that this rank updates.
  [[nodiscard]] interval owned_range(int bucket) const noexcept { return own_.owned(bucket); }
  /// The elements of a bucket that this rank answers for in hashes and checkpoints, unless another rank of its replica
  /// answers for the tensor (info.answers): each element is answered for once.
  [[nodiscard]] interval accounted_range(int bucket) const noexcept { return own_.answered(bucket); }

  /// The master value of a piece, wherever it lives.
  [[nodiscard]] tensor_view<master_element, space> master_of(int bucket, parallel::layout::piece const& piece) const {
    if constexpr (keeps_master) {
      auto const& master = masters_[static_cast<std::size_t>(bucket)];
      return master.view().flat(piece.in_bucket - owned_range(bucket).first, piece.count);
    } else {
      if (!foreign_.empty()) return foreign_.value(layout_.at(piece.entry)).flat(piece.in_entry, piece.count);
      return values_.kept(bucket, piece);
    }
  }
  /// Calls f(name, place, view) for the master values of what this rank updates; see contract/state.hpp.
  template <class F>
  void visit_values(state_scope scope, F&& f) {
    for (int bucket = 0; bucket < bucket_count(); ++bucket) {
      own_.for_each_piece(
          scope, bucket,
          [&](parallel::layout::piece const& piece) {
            auto const& info = layout_.at(piece.entry).info;
            f("value/" + info.name, state_place{info, piece.in_entry, replicas_differ}, master_of(bucket, piece));
          },
          replicas_differ);
    }
  }
  /// Compressors forget what they keep: as before the first step.
  void forget_compression() { gradients_.forget_state(); }
  /// Calls f(name, state_place, view) for what the compressor keeps for one bucket; see contract/state.hpp.
  template <class F>
  void visit_compression(int bucket, state_scope scope, F&& f) const {
    gradients_.visit_state(bucket, scope, f);
  }
  /// What the exchange keeps from step to step; see contract/state.hpp.
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
  /// Goes on from a checkpoint: so many steps are over, so many of them with an update.
  void go_on(std::int64_t steps, std::int64_t updates) noexcept {
    steps_ = steps;
    updates_ = updates;
  }
  /// Errors   assertion_error (light) in the middle of a step.
  void expect_between_steps(std::string_view call) const { protocol_.expect_between_steps(call); }

 protected:
  /// The step that has begun has no samples on any rank: it ends without an update.
  void without_update() noexcept { samples_missing_ = true; }

 private:
  using bucket_transport = parallel::detail::transport<Env, Comm, placement, Compressor>;
  using seen_state = parallel::owned_state<Env, Comm>;
  // What the next step may not begin without.
  static constexpr auto published_ = sharded           ? parallel::detail::publishing::parts
                                     : hooks::made.end ? parallel::detail::publishing::ends
                                                       : parallel::detail::publishing::nothing;
  static_assert(sizeof(parallel::detail::check_strategy_hooks<strategy_type>) > 0);
  static_assert(sizeof(parallel::detail::check_strategy_instance<Strategy, Env, Comm>) > 0);
  static constexpr bool shards_gradients = Strategy::gradients == distribution::shard;
  static_assert(
      !shards_gradients || !parallel::detail::is_given_once<Compressor, Env, Comm>,
      "trireme::exchange: this compressor is given each gradient once a step, but from stage 2 on parallel::zero "
      "sends every micro-batch; use parallel::zero<1>");

  static std::span<int const> no_units() { return {}; }
  // Where every rank updates everything, all tensors are whole there however slices cut them.
  static layout_wishes of_strategy(layout_wishes wishes) {
    wishes.whole_tensors = wishes.whole_tensors && sharded;
    return wishes;
  }
  // Whether gradients have memory only while they are used.
  static bool needs_units(Strategy const& strategy) { return shards_gradients || sums_in_a_tree(strategy); }
  static std::vector<parameter_info> infos(std::vector<parameter<Env>*> const& uses) {
    std::vector<parameter_info> all;
    for (auto const* use : uses) all.push_back(use->info);
    return all;
  }
  [[nodiscard]] int bucket_count() const noexcept { return static_cast<int>(layout_.buckets().size()); }
  [[nodiscard]] int trained_count() const noexcept { return layout_.trained_buckets(); }
  // Where the sum is all that is wanted, and no other rank adds to it later.
  [[nodiscard]] bool may_be_direct(Strategy const& strategy) const {
    auto const& all = layout_.entries();
    return can_be_direct && !sums_in_a_tree(strategy) &&
           std::none_of(all.begin(), all.end(), [](auto const& each) { return each.info.tied; });
  }
  [[nodiscard]] std::vector<trireme::tensor<master_element, space>> made_masters() const {
    std::vector<trireme::tensor<master_element, space>> masters;
    for (int b = 0; keeps_master && b < bucket_count(); ++b) {
      masters.emplace_back(shape{owned_range(b).count});
      kernels::fill(masters.back().view(), 0.0);
    }
    return masters;
  }
  void read_peers() {
    if constexpr (can_be_direct) {
      for (int b = 0; direct_ && b < trained_count(); ++b) direct_sums_.add_bucket(summed_, gradients_.resident(b));
    }
  }
  // For who has a strategy with something to do.
  [[nodiscard]] std::vector<parallel::owned_segment<Env>> list_owned() const {
    std::vector<parallel::owned_segment<Env>> all;
    if constexpr (!std::is_same_v<strategy_type, parallel::detail::no_strategy_state>) {
      for (int b = 0; b < trained_count(); ++b) {
        own_.for_each_piece(state_scope::kept, b, [&](parallel::layout::piece const& piece) {
          all.push_back({b, piece, &layout_.at(piece.entry).info, master_of(b, piece)});
        });
      }
    }
    return all;
  }
  // As many as replicas where each rank takes steps alone: their mean is the whole step's.
  [[nodiscard]] double ranks_apart() const noexcept { return replicas_differ ? replicas_.size() : 1; }
  // The one place that says so: whatever is made of values is stale.
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

  void broadcast_one(parallel::layout::entry const& entry, Comm& ranks, int root) {
    if constexpr (shards_parameters) return;
    auto const values = parameter_values(entry);
    if constexpr (!keeps_master) {
      parallel::broadcast(ranks, values, root);
    } else if constexpr (!sharded) {
      auto const master = masters_[static_cast<std::size_t>(entry.bucket)].view().flat(entry.offset, entry.size());
      parallel::broadcast(ranks, master, root);
      kernels::copy(values, tensor_view<master_element const, space>(master));
    } else {  // the root has not all masters: the others' become what its layers read
      parallel::broadcast(ranks, values, root);
      trireme::tensor<master_element, space> whole(shape{entry.size()});
      kernels::copy(whole.view(), tensor_view<param_element const, space>(values));
      load(entry, tensor_view<master_element const, space>(whole));
    }
  }

  // Gives a whole tensor of master values to this rank: its part of the masters, and what its layers read.
  void load(parallel::layout::entry const& entry, tensor_view<master_element const, space> whole) {
    if constexpr (!shards_parameters) kernels::copy(parameter_values(entry), whole);
    if constexpr (!keeps_master && !shards_parameters) return;
    auto const [first, count] = owned_range(entry.bucket);
    for (auto const piece : layout_.pieces(entry.bucket, first, count)) {
      if (&layout_.at(piece.entry) != &entry) continue;
      auto const part = whole.flat(piece.in_entry, piece.count);
      if constexpr (keeps_master) kernels::copy(master_of(entry.bucket, piece), part);
      if constexpr (shards_parameters) kernels::copy(values_.kept(entry.bucket, piece), part);
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

  // What an engine asks for in a forward pass; backward begins with the last unit.
  void pass_through(bool keep_last) {
    auto const& units = layout_.units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      bool const last = u + 1 == units.size();
      gather(units[u].first, units[u].last);
      if (!last) prefetch(units[u + 1].first, units[u + 1].last);
      if (!last || !keep_last) release(units[u].first, units[u].last);
    }
  }

  void take_in(int use) {
    if (!layout_.trains(use)) return;
    auto const theirs = foreign_.gradient(layout_.at(layout_.entry_of_use(use)));
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

  // What another rank of this replica answers for is in its norm, and what is measured is no gradient; but each number
  // has to be finite.
  void account(parallel::layout::piece const& piece, tensor_view<gradient_element const, space> gradient,
               exact_sum& squares) const {
    auto const& info = layout_.at(piece.entry).info;
    if (info.answers && exactly_equal(info.running, 0)) {
      kernels::sum_of_squares(gradient, squares);
    } else if (!kernels::finite(gradient)) {
      squares.add(std::numeric_limits<double>::infinity());
    }
  }
  // Of the reduced gradients that this rank answers for.
  void add_squares(exact_sum& squares) {
    for (int b = 0; b < trained_count(); ++b) {
      auto const [first, count] = accounted_range(b);
      for (auto const piece : layout_.pieces(b, first, count)) account(piece, reduced(b, piece), squares);
    }
  }
  // After finish(): the sum of the gradients of a piece.
  [[nodiscard]] tensor_view<gradient_element, space> reduced(int bucket, parallel::layout::piece const& piece) const {
    if constexpr (has_gradient_memory) {
      if (in_place_) return foreign_.gradient(layout_.at(piece.entry)).flat(piece.in_entry, piece.count);
    }
    return gradients_.reduced(bucket, piece.in_bucket, piece.count);
  }
  // Where ranks read each other's gradients. Without a norm no rank sees sums before the update: each checks all of its
  // own gradients, and the vote is the barrier.
  void finish_direct(exact_sum& squares) {
    if constexpr (can_be_direct) {
      if (!fused_) summed_.barrier();  // everybody's gradients are final
      for (int b = 0; b < trained_count(); ++b) {
        if (fused_) {
          bool const finite = kernels::finite(tensor_view<gradient_element const, space>(gradients_.resident(b)));
          if (!finite) squares.add(std::numeric_limits<double>::infinity());
          continue;
        }
        auto const [first, count] = accounted_range(b);
        for (auto const piece : layout_.pieces(b, first, count)) {
          auto const own = gradients_.reduced(b, piece.in_bucket, piece.count);
          direct_sums_.reduce(b, piece.in_bucket, own, [&](auto sums) { account(piece, sums, squares); });
        }
        gradients_.record_bucket(b);
      }
    }
  }

  void give_back_gradients() {
    if (in_place_) return;
    for (int b = 0; b < trained_count(); ++b) {
      auto const [first, count] = owned_range(b);
      for (auto const piece : layout_.pieces(b, first, count)) {
        auto const theirs = foreign_.gradient(layout_.at(piece.entry)).flat(piece.in_entry, piece.count);
        auto const sum = gradients_.reduced(b, piece.in_bucket, piece.count);
        if (!is_memory_of(theirs, sum)) kernels::copy(theirs, tensor_view<gradient_element const, space>(sum));
      }
    }
  }

  std::span<tensor_view<gradient_element const, space> const> gradient_terms_of(int bucket,
                                                                                parallel::layout::piece const& piece) {
    if constexpr (can_be_direct) {
      if (fused_) return direct_sums_.terms_of(bucket, piece.in_bucket, piece.count);
    }
    reduced_ = reduced(bucket, piece);
    return {&reduced_, 1};
  }

  Comm& replicas_;
  parallel::detail::summed_ranks<Comm, replicas_differ> summed_of_;
  Comm& summed_;
  Comm& everyone_;
  parallel::detail::foreign_parameters<param_element, space> foreign_;
  parallel::layout layout_;
  parallel::partition own_;
  std::vector<parameter<Env>*> uses_;
  parallel::detail::value_store<Env, Comm, placement> values_;
  parallel::detail::gradient_store<Env, Comm, placement, Compressor> gradients_;
  bool direct_ = false;  // sums are formed from all ranks' buckets, in their memory
  parallel::detail::direct_sums<gradient_element, space> direct_sums_;
  outputs outputs_;
  std::vector<trireme::tensor<master_element, space>> masters_;  // by bucket, where parameters are not masters
  tensor_view<gradient_element const, space> reduced_;           // of the segment at hand
  parallel::detail::exchange_protocol protocol_;
  parallel::vote vote_;  // of finish(votes)
  std::vector<std::pair<int, Comm*>> also_;
  bool in_a_tree_ = false;
  std::vector<std::int64_t> places_;
  std::int64_t rounds_left_ = 1;  // micro-batches of the rank that runs most
  int reports_left_ = 0;
  double weight_ = 1;
  bool all_reported_ = false;
  bool shows_buckets_ = false;  // the caller has asked for gradient_memory()
  bool in_place_ = false;       // one rank, whose gradients are the sums where they lie: none is copied
  bool fused_ = false;
  std::uint64_t version_ = parallel::detail::new_version();  // of values
  std::int64_t steps_ = 0;                                   // that are over
  std::int64_t updates_ = 0;                                 // that values have had
  bool updates_due_ = true;                                  // for_each_segment() shows something
  bool ending_ = false;                                      // settled, and not over yet
  bool samples_missing_ = false;                             // on all ranks: there will be no update
  std::vector<parallel::owned_segment<Env>> owned_;
  [[no_unique_address]] strategy_type strategy_;  // last, of all that it sees
};

}  // namespace trireme
