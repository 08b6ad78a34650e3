#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/patterns.hpp"
#include "trireme/parallel/vote.hpp"
#include "trireme/train/checkpoint.hpp"
#include "trireme/train/detail/copies.hpp"
#include "trireme/train/detail/run_directory.hpp"
#include "trireme/train/detail/together.hpp"
#include "trireme/train/kept_checkpoints.hpp"
#include "trireme/train/optimizer_state.hpp"
#include "trireme/train/patience.hpp"
#include "trireme/train/state_shard.hpp"
#include "trireme/train/step.hpp"

namespace trireme {

/// The exchange for a training loop of your own, returned by make_exchange.
///
/// A step of the loop: begin(samples); ready(name) for each gradient; step(optimizer), or step(update) with an update
/// of your own. To do something in between, call the parts of step(): finish(); an update of all segments(); publish().
/// All of them work under every strategy. checkpoint::save(exchange, directory) and checkpoint::load store and restore
/// the whole state.
template <class Exchange, class Env>
class own_exchange : public Exchange {
 public:
  /// As basic_exchange, on the caller's memory.
  template <class Parameters, class Comm, class Strategy, class Compressor>
  own_exchange(Parameters&& parameters, Comm& world, Strategy const& strategy, Compressor const& compressor,
               Comm* everyone, bucket_requirements const& requirements)
      : Exchange(std::forward<Parameters>(parameters), world, strategy, compressor, {}, everyone, {}, requirements),
        compression_(describe(compressor)),
        strategy_name_(Exchange::hooks::made.state ? Strategy::name : std::string_view()) {}

  using Exchange::begin;
  /// Collective. Starts a step in which this rank's gradients are those of the mean loss over `own` samples; with 0 the
  /// rank has no gradients and does not call ready(). Gradients become the mean over the samples of all ranks.
  ///
  /// Bytes    an all_reduce of one number, for which ranks wait. If the number of samples on all ranks is known, call
  ///          begin(mean_over_ranks{}) and weight(own / all) instead.
  /// @returns the samples on all ranks. If there are none, the step ends without an update.
  std::int64_t begin(std::int64_t own = 1) {
    if (own < 0) {
      throw config_error(
          text("trireme::exchange: begin() with ", own,
               " samples; give the number that this rank's gradients are the mean of, or 0 if it has none"));
    }
    Exchange::begin({.micro_batches = 1, .places = std::span(only_place).first(own > 0 ? 1 : 0)});
    auto all = own;
    this->world().all_reduce(tensor_view<std::int64_t>(&all, shape{1}), reduction::sum{});
    if (all > 0) {
      this->begin_with(own, all);
      this->weight(static_cast<double>(own) / static_cast<double>(all));
    } else {
      this->without_update();
    }
    return all;
  }
  /// Starts a step whose gradients become the mean over ranks, each of which must have some; not collective. A
  /// following weight() gives this rank another share.
  void begin(mean_over_ranks) {
    Exchange::begin({.micro_batches = 1, .places = only_place, .samples = 1, .samples_of_all = this->world().size()});
  }

  /// Collective. Ends a step: completes the exchange, takes the vote, clips, updates and publishes, as a trainer does.
  /// Afterwards all parameters that the caller reads have their new values; if a gradient was not finite on some rank,
  /// nothing has changed.
  ///
  /// @param optimizer  its numbers (a rate, say) may change from call to call; its type may not, since the exchange
  ///                   keeps its moments.
  /// @param votes      a number of your own that is summed over the ranks (a request to stop, say).
  /// Errors   config_error for an optimizer of another type than in the first call, and for one that needs whole
  ///          tensors or freezes some unless make_exchange was given it too; others as finish().
  template <class Optimizer>
  requires trireme::optimizer<Optimizer, Env> exchange_result step(Optimizer const& optimizer, std::int64_t votes = 0) {
    expect_valid(optimizer);
    auto& moments = moments_of(optimizer);
    auto& vote = this->new_vote(votes);
    auto const takes = [](exchange_result const& step, std::exception_ptr const&) {
      return step.finite && step.finite_loss;
    };
    return end_step(*this, moments, optimizer, vote, loss_sum{}, 1, takes, {this->steps(), this->updates()}).counted;
  }
  /// Collective. The same with an update of your own: update(segments), called once, gets everything that this rank
  /// updates (a std::span of parallel::owned_segment), and computes each segment's value from the sum of its gradients.
  /// It is not called in a step without an update.
  /// @example exchange.step([](auto segments) {
  ///            for (auto const& each : segments)
  ///              for (std::int64_t i = 0; i < each.value.size(); ++i) each.value[i] -= 0.1F * each.sum[i];
  ///          });
  template <std::invocable<std::span<parallel::owned_segment<Env> const>> Update>
  exchange_result step(Update&& update, std::int64_t votes = 0) {
    auto const counted = this->finish(votes);
    if (this->updates_due()) {
      update(this->segments());
      this->publish();
    }
    return counted;
  }

  /// Whether step(optimizer) has been called, or moments were loaded.
  [[nodiscard]] bool keeps_moments() const noexcept { return moments_ != nullptr; }

  /// Collective. Compares the copies that several ranks keep, as a trainer does every .check_every steps: parameters,
  /// and the moments of step(optimizer). Call it between steps.
  ///
  /// Bytes    one all_reduce of two numbers; more in the first call and after the set of kept tensors has changed.
  /// Errors   numeric_error on every rank if copies differ; the sentence names the tensor and the ranks.
  /// @param values  where the parameters are now, if not where the exchange was given them.
  void expect_equal_copies(detail::copies_words const& words = {"trireme::exchange",
                                                                "give all ranks the same values, or load a checkpoint"},
                           std::span<state_shard const> values = {}) {
    this->expect_between_steps("expect_equal_copies()");
    auto const now = this->labelled();
    detail::kept_copies copies;
    copies.add(values);
    if constexpr (!Exchange::replicas_differ) {
      for (auto const& entry : this->plan().entries()) {
        if (values.empty()) copies.add(state_shard(entry.info.name, entry.info, 0, this->parameter_values(entry)));
      }
    }
    for (auto const& each : shards(state_scope::kept)) {
      if (!each.of_rank && !each.name.starts_with("value/")) copies.add(each);
    }
    copies.expect_equal(this->everyone(), holders_, words);
  }

  /// Collective. Publishes a checkpoint in `directory`: values, moments, the state of compressor and strategy, and the
  /// number of steps. Call it between steps. Other state of the run is the caller's to save.
  ///
  /// @see     basic_trainer::save
  /// Errors   as there; config_error or numeric_error if copies of the same tensor differ between ranks.
  void save(std::string const& directory, checkpoint::patience const& patience = {},
            checkpoint::keeping const& keep = {}, formats::file_system& files = formats::real_files()) {
    expect_valid(patience);
    this->expect_between_steps("checkpoint::save()");
    auto const now = this->labelled();
    auto& everyone = this->everyone();
    if constexpr (!Exchange::replicas_differ) this->verify_replicas();  // spoiled copies are not saved
    detail::kept_copies copies;
    copies.add(shards(state_scope::kept));
    copies.expect_equal(everyone, holders_);
    auto const owned = shards(state_scope::owned);
    files_.save(everyone, directory, description(owned), progress_of_loop(), owned, patience, keep, files);
  }
  /// Collective. As basic_trainer::prepare_saves.
  void prepare_saves(std::string const& directory, checkpoint::patience const& patience = {},
                     formats::file_system& files = formats::real_files()) {
    auto const now = this->labelled();
    files_.prepare(this->everyone(), directory, progress_of_loop(), patience, files);
  }
  /// Collective. Restores that state from the newest whole checkpoint in `directory`, and continues its run. Any number
  /// of ranks may have written it, except where ranks take steps apart (parallel::diloco): then it must be the same
  /// number.
  ///
  /// Errors   as basic_trainer::load; config_error with both descriptions for other parameters, or another compressor
  ///          or optimizer.
  /// @returns the checkpoint that was loaded; `.at.step` is the number of steps.
  checkpoint::loaded load(std::string const& directory, checkpoint::patience const& patience = {},
                          formats::file_system& files = formats::real_files()) {
    expect_valid(patience);
    this->expect_between_steps("checkpoint::load()");
    auto const now = this->labelled();
    auto const owned = shards(state_scope::owned);
    auto found =
        files_.load(this->everyone(), directory, description(owned), shards(state_scope::kept), owned, patience, files);
    this->visit_numbers([&](std::string_view name, auto& number) { found.at.read(found.path, name, number); });
    this->go_on(found.at.step, found.at.updates);
    this->refresh_parameters();
    return found;
  }
  /// The same before the first step(optimizer), for whose moments it makes memory first.
  template <class Optimizer>
  requires trireme::optimizer<Optimizer, Env> checkpoint::loaded load(
      std::string const& directory, Optimizer const& optimizer, checkpoint::patience const& patience = {},
      formats::file_system& files = formats::real_files()) {
    static_cast<void>(moments_of(optimizer));
    return load(directory, patience, files);
  }

 private:
  static constexpr std::int64_t only_place[] = {0};
  static constexpr std::string_view no_moments = "an update of its own";

  struct held_moments {
    held_moments() = default;
    held_moments(held_moments const&) = delete;
    held_moments& operator=(held_moments const&) = delete;
    virtual ~held_moments() = default;
    virtual void add_pieces(state_scope scope, shard_collector const& to) const = 0;
  };
  template <class Optimizer>
  struct moments_for final : held_moments {
    moments_for(own_exchange const& exchange, Optimizer const& optimizer) : state(exchange, optimizer) {}
    void add_pieces(state_scope scope, shard_collector const& to) const override { state.visit_state(scope, to); }
    optimizer_state<Env, Optimizer> state;
  };
  template <class Optimizer>
  [[nodiscard]] optimizer_state<Env, Optimizer>& moments_of(Optimizer const& optimizer) {
    if (moments_ == nullptr) {
      std::vector<std::string> names;
      for (auto const& entry : this->plan().entries()) names.push_back(entry.info.name);
      parallel::expect_patterns(this->everyone(), optimizer, names);
      moments_ = std::make_unique<moments_for<Optimizer>>(*this, optimizer);
      optimizer_ = type_name<Optimizer>();
    }
#if defined(__cpp_rtti)
    auto* const own = dynamic_cast<moments_for<Optimizer>*>(moments_.get());
#else  // with -fno-rtti the name decides
    auto* const own =
        optimizer_ == type_name<Optimizer>() ? static_cast<moments_for<Optimizer>*>(moments_.get()) : nullptr;
#endif
    if (own != nullptr) return own->state;
    throw config_error(text("trireme::exchange: step() with ", type_name<Optimizer>(), " after step() with ",
                            optimizer_, ", whose moments it keeps; use the same optimizer, or make another exchange"));
  }

  [[nodiscard]] std::vector<state_shard> shards(state_scope scope) {
    std::vector<state_shard> all;
    shard_collector const collect{this->everyone().rank(), all};
    this->visit_state(scope, collect);
    if (moments_ != nullptr) moments_->add_pieces(scope, collect);
    return all;
  }
  [[nodiscard]] checkpoint::progress progress_of_loop() {
    checkpoint::progress now{.step = this->steps(), .updates = this->updates()};
    this->visit_numbers([&](std::string_view name, auto& number) { now.write(name, number); });
    return now;
  }
  // Collective.
  [[nodiscard]] checkpoint::run_description description(std::span<state_shard const> owned) {
    return {
        .model = text("a loop of its own over ", parameters_of_everyone(), strategy_name_.empty() ? "" : ", under ",
                      strategy_name_),
        .optimizer = moments_ == nullptr ? std::string(no_moments) : optimizer_,
        .precision = describe(typename Env::precision{}),
        .compression = compression_,
        .of_ranks = checkpoint::detail::numbers_of_ranks(this->everyone(), owned),
        .learners = this->learners(),
        .remedy =
            moments_ == nullptr
                ? "give checkpoint::load() the same optimizer and parameters as when it was made, or start another run"
                : checkpoint::run_description{}.remedy};
  }
  // Collective. Some names, and a digest of all names and extents.
  [[nodiscard]] std::string parameters_of_everyone() {
    constexpr std::size_t shown = 8;
    auto const& entries = this->plan().entries();
    std::string names, all;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      auto const each = text('"', entries[i].info.name, "\" ", to_string(entries[i].info.extents));
      if (i < shown) names += text(i == 0 ? "" : ", ", each);
      all += each + '\n';
    }
    auto& everyone = this->everyone();
    if (everyone.size() == this->world().size()) {
      return entries.size() <= shown ? names : text(names, " and ", entries.size() - shown, " more, ", hash_name(all));
    }
    std::uint64_t parts[2] = {entries.size(), hash_name(all)};  // of models that are distributed over ranks
    if (this->world().rank() != 0) parts[0] = parts[1] = 0;
    everyone.all_reduce(tensor_view<std::uint64_t>(parts, shape{2}), reduction::sum{});
    return text(parts[0], " parameters in parts, ", parts[1]);
  }

  std::string compression_;
  std::string_view strategy_name_;  // if it keeps state
  std::unique_ptr<held_moments> moments_;
  std::string optimizer_;
  detail::copy_holders holders_;
  checkpoint::detail::run_directory<typename Exchange::communicator> files_;
};

namespace checkpoint {

namespace detail {

template <class Run>
[[nodiscard]] auto& everyone_of(Run& run) {
  if constexpr (requires { run.everyone(); })
    return run.everyone();
  else
    return run.world();
}

}  // namespace detail

/// Collective. Publishes a checkpoint of a loop of your own; see own_exchange::save.
/// @example checkpoint::save(exchange, "run");
template <class Exchange, class Env>
void save(own_exchange<Exchange, Env>& exchange, std::string const& directory, patience const& patience = {},
          keeping const& keep = {}, formats::file_system& files = formats::real_files()) {
  exchange.save(directory, patience, keep, files);
}
/// Collective. Continues the newest one; see own_exchange::load.
/// @param more  the optimizer of step(), unless step() has been called before; then as for own_exchange::load.
/// @example checkpoint::load(exchange, "run", optim::adamw{});
template <class Exchange, class Env, class... More>
loaded load(own_exchange<Exchange, Env>& exchange, std::string const& directory, More&&... more) {
  return exchange.load(directory, std::forward<More>(more)...);
}

/// Collective. Continues the run in a directory, or starts one there: loads the newest checkpoint if there is one, and
/// checks that this run may save there.
///
/// @param run   a trainer, or the exchange of a loop of your own.
/// @param more  further arguments of its load(): the optimizer of a loop of your own, if it has one.
/// @returns the checkpoint that was loaded; empty if the run starts.
/// Errors   as load() and prepare_saves(): a damaged directory, or another run's, is an error and never starts a new
///          run.
/// @example checkpoint::resume_or_start(trainer, "run");
template <class Run, class... More>
std::optional<loaded> resume_or_start(Run& run, std::string const& directory, More&&... more) {
  auto& world = detail::everyone_of(run);
  std::int64_t there = 0;
  trireme::detail::together(world, [&] { there = exists(directory) ? 1 : 0; });
  world.all_reduce(tensor_view<std::int64_t>(&there, shape{1}),
                   reduction::max{});  // load() reports a rank without the checkpoint
  std::optional<loaded> found;
  if (there != 0) found = run.load(directory, std::forward<More>(more)...);
  run.prepare_saves(directory);
  return found;
}

}  // namespace checkpoint

}  // namespace trireme
