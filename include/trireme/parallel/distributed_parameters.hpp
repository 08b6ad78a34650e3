#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/labels.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/broadcast.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/change_sums.hpp"
#include "trireme/parallel/detail/bucket_changes.hpp"
#include "trireme/parallel/detail/exchange_checks.hpp"
#include "trireme/parallel/detail/exchange_protocol.hpp"
#include "trireme/parallel/detail/moved_slices.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/learners.hpp"
#include "trireme/parallel/memory.hpp"
#include "trireme/parallel/partition.hpp"
#include "trireme/parallel/strategy_state.hpp"
#include "trireme/parallel/unit_walk.hpp"

namespace trireme {

/// The ranks along an axis that processes different samples and distributes some parameters.
template <class Comm>
struct distributed_axis {
  std::string_view kind;
  Comm* ranks;
};

/// The parameters of a model as a strategy distributes them over ranks, and the strategy's own state: what lasts from
/// step to step, except gradients. An exchange is one of these that takes steps.
///
/// @tparam Memory  whose memory they are in: parallel::own_memory or parallel::callers_memory.
template <class Env, class Comm, strategy Strategy, template <class, class, class> class Memory>
class distributed_parameters {
 public:
  using communicator = Comm;
  using space = typename Env::space;
  using param_element = typename Env::param;
  using gradient_element = typename Env::gradient;
  using master_element = typename Env::master;
  using kernels = ops::on<space>;
  using piece = parallel::bucket_plan::tensor_range;
  using placement = parallel::detail::placement_t<Strategy>;
  using memory_type = Memory<Env, Comm, placement>;
  using parameters_type = typename memory_type::parameters;
  using values_type = typename memory_type::values;
  using strategy_type = parallel::strategy_state_t<Strategy, Env, Comm>;
  using segment_type = parallel::owned_segment<Env>;
  using hooks = parallel::detail::strategy_calls<strategy_type>;
  using moved_type = std::conditional_t<takes_local_steps<Strategy>, parallel::detail::moved_slices<Env, Comm>,
                                        parallel::detail::nothing_moved<Env>>;

  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool shards_parameters = values_type::gathers;
  static constexpr bool keeps_master = values_type::keeps_master;
  /// Whether learners (a rank, or some together) take steps apart, so that values may differ between them.
  static constexpr bool replicas_differ = takes_local_steps<Strategy>;

  distributed_parameters(distributed_parameters const&) = delete;
  distributed_parameters& operator=(distributed_parameters const&) = delete;

  [[nodiscard]] parallel::bucket_plan const& plan() const noexcept { return bucket_plan_; }
  /// The elements that this rank updates, and those that it owns.
  [[nodiscard]] parallel::partition const& own() const noexcept { return own_; }
  /// The ranks that hold the same part of the model. Gradients are summed over them, unless each takes steps on its
  /// own.
  [[nodiscard]] Comm& world() const noexcept { return replicas_; }
  /// If ranks take steps apart, which learner this one is, or belongs to; else -1.
  [[nodiscard]] std::int64_t learner() const noexcept { return replicas_differ ? across_.rank() : -1; }
  /// How many there are; 1 if all ranks take each step together.
  [[nodiscard]] std::int64_t learners() const noexcept { return replicas_differ ? across_.size() : 1; }
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
  [[nodiscard]] int use_count() const noexcept { return parameters_.count(); }
  [[nodiscard]] int use_named(std::string_view name) const {
    for (int use = 0; use < use_count(); ++use) {
      if (bucket_plan_.at(bucket_plan_.entry_of_use(use)).info.name == name) return use;
    }
    throw config_error(text("trireme::exchange: there is no parameter \"", name, "\""));
  }
  /// Whether ready() is called in every micro-batch, not only in the last one.
  [[nodiscard]] bool reports_every_micro_batch() const noexcept { return in_units_; }
  /// The weight of one sample's loss in the loss that this rank differentiates.
  /// @param total  samples of the step, over all ranks.
  [[nodiscard]] double sample_weight(std::int64_t total) const noexcept {
    return share_factor_ / static_cast<double>(total);
  }
  /// The gradient of a tensor whose info has `tied` is also summed over `group`, after the sum over the exchange's own
  /// ranks: over the ranks of other stages that use it. The group must outlive the exchange, and all of its ranks must
  /// name the same tensors in the same order.
  void sum_also(std::string_view name, Comm& group) {
    for (auto const& entry : bucket_plan_.entries()) {
      if (entry.info.name == name && entry.info.tied) return also_.push_back({entry.bucket, &group});
    }
    throw config_error(text("trireme::exchange: there is no tied parameter \"", name, "\"; pass a tied one"));
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

  /// Collective. A step in which no rank has samples.
  /// @returns whether it counts, because ranks take steps alone in rounds: then the strategy has acted at its end.
  bool pass_step() {
    if constexpr (parallel::averages_alone<Strategy>) {
      protocol_.expect_between_steps("pass_step()");
      auto const now = labelled(comm::call_label::values);
      end_step();
    }
    return parallel::averages_alone<Strategy>;
  }

  // While a pass goes through units.

  /// Before a unit's values are read: returns when they are gathered. No effect below stage 3.
  void gather(int unit) {
    if constexpr (shards_parameters) protocol_.expect_published("gather()");
    auto const now = labelled();
    values_.gather(unit);
  }
  /// The unit is the next one: starts to gather its values.
  void prefetch(int unit) {
    auto const now = labelled();
    values_.prefetch(unit);
  }
  /// Its values are not read again before the next gather(): releases their memory.
  void release(int unit) { values_.release(unit); }
  /// Takes part in one forward pass of other ranks, for which this rank has no samples.
  void sit_out_forward() { sit_out_forward(false); }

  // Values, between steps.

  /// A tensor as this rank's layers see it; if parameters are sharded, empty unless its unit is gathered.
  [[nodiscard]] tensor_view<param_element, space> parameter_values(parallel::bucket_plan::entry const& entry) const {
    return values_.read(entry);
  }
  /// The master value of a piece, in whichever memory it is.
  [[nodiscard]] tensor_view<master_element, space> master_of(int bucket, piece const& of) const {
    return values_.master(bucket, of);
  }
  /// Fills every parameter with its initial values, a function of (seed, name, index): equal on every rank.
  void initialise(std::uint64_t seed) {
    for (auto const& entry : bucket_plan_.entries()) {
      trireme::tensor<master_element, space> whole(shape{entry.size()});
      for_each_run(entry.info, 0, entry.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        kernels::initialise(whole.view().flat(here, n), entry.info.start, seed, hash_name(entry.info.name), first);
      });
      values_.load(entry, whole.view());
    }
    written();
    auto const now = labelled();
    if constexpr (hooks::made.start) strategy_.start();
    follow_values();
  }
  /// Collective. Calls f("value/" + name, place, view) for all master values that this rank keeps, to be changed; then
  /// updates the values that layers read, and the strategy's values derived from them.
  template <class F>
  void change_values(F&& f) {
    visit_values(state_scope::kept, f);
    refresh_parameters();
    auto const now = labelled();
    follow_values();
  }
  /// Collective. Updates the values that layers read after a checkpoint has restored master values and all other state.
  void refresh_parameters() {
    std::vector<tensor_view<param_element, space>> outputs;
    own_.for_each_range_of(state_scope::kept, bucket_count(), [&](int b, piece const& range) {
      outputs.clear();
      values_.add_outputs(b, range, outputs);
      tensor_view<master_element const, space> const value = values_.master(b, range);
      for (auto const& output : outputs) kernels::copy(output, value);
    });
    auto const now = labelled();
    publish_values(bucket_count());
  }
  /// Collective. Throws config_error on every rank if one rank's parameters differ from rank 0's. (If parameters are
  /// sharded, no rank has a copy of another's, and nothing is compared.)
  void verify_replicas() {
    protocol_.expect_published("verify_replicas()");
    if constexpr (shards_parameters) return;
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(replicas_.size()));
    hashes[static_cast<std::size_t>(replicas_.rank())] = hash_of_parameters();
    auto const now = labelled(comm::call_label::values);
    replicas_.all_gather(tensor_view<std::uint64_t>(hashes));
    for (int rank = 1; rank < replicas_.size(); ++rank) {
      if (hashes[static_cast<std::size_t>(rank)] == hashes[0]) continue;
      throw config_error(text("trireme::exchange: the parameters of rank ", rank,
                              " differ from those of rank 0; start every rank ", parameters_type::equal_start));
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
    auto const now = labelled(comm::call_label::values);
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
      own_.for_each_range_of(state_scope::kept, bucket_count(), [&](int b, piece const& range) {
        add(bucket_plan_.at(range.entry), range.in_entry, values_.kept(b, range));
      });
      auto const now = labelled(comm::call_label::values);
      summed_.all_reduce(tensor_view<std::uint64_t>(&sum, shape{1}), reduction::sum{});
    } else {
      for (auto const& entry : bucket_plan_.entries()) add(entry, 0, values_.read(entry));
    }
    return sum;
  }

  // State: its owners, and the part of it that is kept; see contract/state.hpp.

  /// Calls f(name, place, view) for the master values that this rank keeps, or owns.
  template <class F>
  void visit_values(state_scope scope, F&& f) {
    auto const visit = [&](int b, piece const& of) {
      auto const& info = bucket_plan_.at(of.entry).info;
      f("value/" + info.name, state_location{info, of.in_entry, false, 0, learner()}, values_.master(b, of));
    };
    own_.for_each_range_of(scope, bucket_count(), visit);
  }
  /// The state between steps; see contract/state.hpp.
  template <class F>
  void visit_state(state_scope scope, F&& f) {
    visit_values(scope, f);
    if constexpr (hooks::made.state) strategy_.visit_state(scope, f);
    if (changes_ == nullptr) return;
    changes_->visit_state(scope, [&](std::string const& name, state_location const& at,
                                     tensor_view<gradient_element, space> values) { f(name, at, values); });
  }
  template <class F>
  void visit_numbers(F&& f) {
    if constexpr (hooks::made.numbers) strategy_.visit_numbers(f);
  }
  /// Resets the state of compressors to that before the first step.
  void forget_compression() {
    if (changes_ != nullptr) changes_->forget_state();
  }
  /// The memory allocated for this rank so far.
  [[nodiscard]] exchange_memory memory() const {
    exchange_memory sum;
    values_.count_bytes(sum);
    if (changes_ != nullptr) sum.buffers += changes_->bytes();
    sum.buffers += moved_.bytes();
    if constexpr (requires { strategy_.count(sum); }) strategy_.count(sum);
    return sum;
  }
  /// Continues from a checkpoint: sets the number of steps that are over, and of those with an update.
  void go_on(std::int64_t steps, std::int64_t updates) noexcept {
    steps_ = steps;
    updates_ = updates;
  }
  /// Errors   assertion_error (light) during a step.
  void expect_between_steps(std::string_view call) const { protocol_.expect_between_steps(call); }

 protected:
  template <class Compressor>
  distributed_parameters(typename memory_type::given all, Comm& replicas, Strategy const& strategy,
                         Compressor const& compressor, std::span<int const> unit_ends, Comm* voters,
                         std::span<distributed_axis<Comm> const> again, bucket_requirements requirements,
                         parallel::learner_ranks<Comm> const& learner)
      : replicas_(replicas),
        alone_(alone(replicas, learner)),
        summed_(learner.within != nullptr ? *learner.within
                : alone_ != nullptr       ? *alone_
                                          : replicas),
        across_(learner.across != nullptr ? *learner.across : replicas),
        everyone_(voters == nullptr ? replicas : *voters),
        replicas_owner_(comm::label_owner(replicas_, comm::call_label::owner_kind::exchange)),
        everyone_owner_(voters == nullptr || voters == &replicas
                            ? replicas_owner_
                            : comm::label_owner(everyone_, comm::call_label::owner_kind::exchange)),
        in_units_(parameters_type::in_units(strategy)),
        parameters_(std::move(all)),
        bucket_plan_(parallel::detail::agreed(
            {parameters_.infos(), parallel::detail::bucket_elements(strategy, sizeof(gradient_element)), summed_.size(),
             in_units_ ? unit_ends : std::span<int const>(),
             of_policies<Compressor>(strategy, requirements, summed_.size())},
            replicas_, everyone_.rank(), strategy, compressor)),
        own_(bucket_plan_, summed_.rank(), sharded),
        values_(own_, parameters_, summed_),
        protocol_(bucket_plan_, use_count(), published_, in_units_),
        owned_(list_owned()),
        moved_(bucket_plan_, summed_, !sharded),
        changes_(make_changes(compressor)),
        strategy_(parallel::detail::with_state(strategy), state_of_strategy()) {
    for (auto const& axis : again) {
      for (int b = 0; b < bucket_count(); ++b) {
        auto const& entries = bucket_plan_.buckets()[static_cast<std::size_t>(b)].entries;
        if (bucket_plan_.at(entries.front()).info.distributed != axis.kind) also_.push_back({b, axis.ranks});
      }
    }
  }
  ~distributed_parameters() = default;

  // Until the end of the scope, calls carry whose they are, so that ranks which use exchanges of one world in another
  // order get an error instead of sums of different gradients.
  struct labels_of_calls {
    comm::labelled replicas, everyone;
  };
  [[nodiscard]] labels_of_calls labelled(std::uint16_t part = comm::call_label::anything) const noexcept {
    return {comm::labelled(replicas_, {replicas_owner_, part}), comm::labelled(everyone_, {everyone_owner_, part})};
  }
  [[nodiscard]] int bucket_count() const noexcept { return static_cast<int>(bucket_plan_.buckets().size()); }
  [[nodiscard]] int trained_count() const noexcept { return bucket_plan_.trained_buckets(); }
  // The number of learners: the whole step is their mean.
  [[nodiscard]] double ranks_apart() const noexcept { return static_cast<double>(learners()); }
  // Collective if the strategy has begin(): tells it the samples of this rank's learner.
  void begin_with([[maybe_unused]] std::int64_t own, [[maybe_unused]] std::int64_t of_all) {
    if constexpr (parallel::averages_alone<Strategy> || hooks::made.begin) {
      if (replicas_differ && summed_.size() > 1)
        summed_.all_reduce(tensor_view<std::int64_t>(&own, shape{1}), reduction::sum{});
      if constexpr (parallel::averages_alone<Strategy>)
        share_factor_ = own > 0 ? static_cast<double>(of_all) / static_cast<double>(own) : 0;
      if constexpr (hooks::made.begin) strategy_.begin(own);
    }
  }
  // The ranks over which a bucket's gradient is summed.
  [[nodiscard]] std::int64_t summing_ranks(int bucket) const {
    std::int64_t ranks = summed_.size();
    for (auto const& [also, group] : also_)
      if (also == bucket) ranks *= group->size();
    return ranks;
  }
  // The only place that marks all values derived from parameters as out of date.
  void written() {
    version_ = parallel::detail::new_version();
    parameters_.follow();
  }
  void follow_values() {
    if constexpr (hooks::made.follow) strategy_.follow();
  }
  void publish_values(int buckets) {
    protocol_.publish();
    values_.publish(buckets);
    written();
  }
  void end_step() {
    ending_ = false;
    if constexpr (hooks::made.end) {
      if (strategy_.end(steps_)) {
        moved_.gather(trained_count(), values_);
        refresh_parameters();
      }
    }
    ++steps_;
  }
  [[nodiscard]] int unit_count() const noexcept { return static_cast<int>(bucket_plan_.units().size()); }
  void sit_out_forward(bool keep_last) {
    parallel::walk_forward(*this, 0, unit_count(), keep_last, [](int) {});
  }

  Comm& replicas_;
  std::unique_ptr<Comm> alone_;  // this rank, if it is a learner
  Comm& summed_;                 // gradients are summed over them: replicas, or those of this rank's learner
  Comm& across_;                 // which have the same place in other learners: replicas without learners
  Comm& everyone_;
  std::uint16_t replicas_owner_, everyone_owner_;  // whose calls of this exchange are, on each of the two
  bool in_units_;                                  // gradients have memory only while a unit uses them
  parameters_type parameters_;
  parallel::bucket_plan bucket_plan_;
  parallel::partition own_;
  values_type values_;
  parallel::detail::exchange_protocol protocol_;
  std::vector<std::pair<int, Comm*>> also_;  // buckets that are also summed over further ranks
  bool ending_ = false;                      // settled, and not over yet
  std::int64_t steps_ = 0;                   // steps that are over
  std::int64_t updates_ = 0;                 // updates of the values
  // What this rank's share of all samples is multiplied by: 1 if gradients are summed.
  double share_factor_ = ranks_apart();

 private:
  // What must follow an update before the next step begins.
  static constexpr auto published_ = sharded           ? parallel::detail::publishing::parts
                                     : hooks::made.end ? parallel::detail::publishing::ends
                                                       : parallel::detail::publishing::nothing;
  static_assert(sizeof(parallel::detail::check_strategy_hooks<strategy_type>) > 0);
  static_assert(sizeof(parallel::detail::check_strategy_instance<Strategy, Env, Comm>) > 0);

  static std::unique_ptr<Comm> alone([[maybe_unused]] Comm& replicas,
                                     [[maybe_unused]] parallel::learner_ranks<Comm> const& learner) {
    if constexpr (replicas_differ) {
      if (learner.within == nullptr) return std::unique_ptr<Comm>(new Comm(replicas.split(replicas.rank(), 0)));
    }
    return nullptr;
  }
  // Each rank of a learner moves its slice, whether or not it updates all of them.
  [[nodiscard]] parallel::owned_state<Env, Comm> state_of_strategy() {
    if constexpr (replicas_differ && !sharded) {
      if (summed_.size() > 1) {
        if constexpr (hooks::made.settle) {
          throw config_error(
              "trireme::exchange: this strategy writes gradients in settle(), where each rank of a learner must write "
              "all of them; use parallel::zero within a learner");
        }
        list_segments(moved_.own(), moved_.all(), nullptr);
        return {across_, moved_.own(), moved_.all(), changes_.get()};
      }
    }
    return {across_, own_, owned_, changes_.get()};
  }
  // If every rank updates everything, all tensors are whole on each, whatever the slices.
  template <class Compressor>
  static bucket_requirements of_policies([[maybe_unused]] Strategy const& strategy, bucket_requirements requirements,
                                         [[maybe_unused]] int ranks) {
    requirements.copies_apart = !lossless_identity<Compressor>;
    requirements.whole_tensors = requirements.whole_tensors && sharded;
    if constexpr (parallel::sends_changes<Strategy> && parallel::detail::takes_whole_tensors<Compressor, Env, Comm>)
      requirements.whole_tensors = requirements.whole_tensors || ranks > 1;  // changes are sent in slices
    if constexpr (requires { strategy.fragments; }) requirements.fragments = strategy.fragments;
    return requirements;
  }
  template <class Compressor>
  [[nodiscard]] std::unique_ptr<parallel::change_sums<Env>> make_changes([[maybe_unused]] Compressor const& how) {
    if constexpr (!parallel::sends_changes<Strategy>) {
      return nullptr;
    } else if constexpr (lossless_identity<Compressor>) {
      return std::make_unique<parallel::detail::plain_changes<Env, Comm>>(moved(), across_);
    } else {
      return std::make_unique<parallel::detail::coded_changes<Env, Comm, Compressor>>(moved(), across_, how);
    }
  }
  [[nodiscard]] parallel::partition const& moved() const noexcept {
    if constexpr (replicas_differ && !sharded) {
      if (summed_.size() > 1) return moved_.own();
    }
    return own_;
  }
  void list_segments(parallel::partition const& of, std::vector<segment_type>& all,
                     std::vector<tensor_view<param_element, space>>* outputs) {
    of.for_each_range_of(state_scope::kept, trained_count(), [&](int b, piece const& range) {
      auto& it = all.emplace_back();
      it.bucket = b;
      it.range = range;
      it.info = &bucket_plan_.at(range.entry).info;
      it.decays = it.info->decays;
      it.value = values_.master(b, range);
      if (outputs != nullptr) values_.add_outputs(b, range, *outputs);
    });
  }
  // All but the gradients stays where it is.
  [[nodiscard]] std::vector<segment_type> list_owned() {
    std::vector<segment_type> all;
    list_segments(own_, all, &outputs_);
    auto const each = all.empty() ? 0 : outputs_.size() / all.size();  // as many for every segment
    for (std::size_t i = 0; i < all.size(); ++i) all[i].outputs = std::span(outputs_).subspan(i * each, each);
    return all;
  }
  void broadcast_one(parallel::bucket_plan::entry const& entry, Comm& ranks, int root) {
    if constexpr (shards_parameters) return;
    auto const values = values_.read(entry);
    if constexpr (!keeps_master) {
      parallel::broadcast(ranks, values, root);
    } else if constexpr (!sharded) {
      auto const master = values_.master(entry.bucket, {0, entry.offset, 0, entry.size()});
      parallel::broadcast(ranks, master, root);
      kernels::copy(values, tensor_view<master_element const, space>(master));
    } else {  // the root does not have all masters: the others' are set from the values of its layers
      parallel::broadcast(ranks, values, root);
      trireme::tensor<master_element, space> whole(shape{entry.size()});
      kernels::copy(whole.view(), tensor_view<param_element const, space>(values));
      values_.load(entry, whole.view());
    }
  }

  std::uint64_t version_ = parallel::detail::new_version();  // of values
  std::vector<tensor_view<param_element, space>> outputs_;   // of the segments

 protected:
  std::vector<segment_type> owned_;
  [[no_unique_address]] moved_type moved_;               // what this rank moves of what its learner updates
  std::unique_ptr<parallel::change_sums<Env>> changes_;  // if the strategy sends changes of parameters
  [[no_unique_address]] strategy_type strategy_;         // last: constructed from the members above
};

}  // namespace trireme
