#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/strategy_state.hpp"

namespace trireme::parallel {

/// Local steps with an outer optimizer: each rank trains on its own samples without exchanging gradients; after every
/// `period` steps the ranks average their changes of the parameters, which are the gradient of an outer step.
///
/// Method   [Douillard et al., "DiLoCo", 2023]: inner AdamW, outer Nesterov. With an outer rate of 1 and no outer
///          momentum it is local SGD [Stich, 2019], whose parameters are averaged.
///          Changes take the run's compressor. Error feedback in place of outer momentum (.outer_learning_rate = 1,
///          .outer_momentum = 0) with top_k is SparseLoCo [2025]; optim::muon as the inner optimizer is MuLoCo [2025].
///          With .fragments and .delay, parts of the model are sent after different steps of a period, each while the
///          next .delay steps are taken (Streaming DiLoCo [Douillard et al., 2025]); what a rank changes meanwhile
///          remains with it and is part of what it sends next.
/// Shapes   fragments are stretches of whole tensors of about equal size, the last ones first; fragment f of F is sent
///          after the steps whose number, from 1, is f * period / F modulo the period.
/// Bytes    2 n (p-1)/p elements of the master type, n parameters, p learners, once in `period` steps; a compressor's
///          payloads are those that it has in parallel::data. Memory: two more tensors of the size of the masters, one
///          as a buffer, and the compressor's; a delay needs one more. If a learner has several ranks that hold the
///          same part of the model, each sends and keeps its slice of all that.
/// Ranks    a learner is a rank, or all ranks along the other axes of a mesh: `mesh{diloco{.ways = 2}, zero<2>{},
///          tensor{.ways = 2}}`, outermost first, so that a learner's ranks are neighbours. Parameters and moments
///          differ between learners; only parameters are equal after an outer step: save a model after a multiple of
///          `period` steps (with fragments or a delay, they are never all equal). evaluate() is the mean over learners,
///          each with its own parameters. A checkpoint may be taken at any step, and continues with the same number of
///          learners, of any number of ranks each.
/// Numerics the norm used for clipping is the root mean square of the learners' norms. With a period of 1, inner SGD
///          without momentum, outer rate 1 and no outer momentum, a step equals that of parallel::data within rounding;
///          with AdamW it does not, because the mean of AdamW steps is not the AdamW step of the mean gradient.
/// Needs    has_all_reduce of the master type; has_all_gather for compressors whose payloads cannot be summed.
struct diloco {
  using policy_category = slot::parallel;
  std::int64_t period = 100;                           ///< steps from one outer step to the next
  double outer_learning_rate = 0.7;                    ///< learning rate of the outer steps
  double outer_momentum = 0.9;                         ///< Nesterov's
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< parameters averaged together, in bytes of gradients
  int fragments = 1;       ///< parts of the model, each sent after another step of the period
  std::int64_t delay = 0;  ///< steps that a rank takes while what it has sent travels
  int ways = 0;            ///< learners; 0: the ranks that other axes leave
  friend bool operator==(diloco const&, diloco const&) = default;

  void validate() const {
    if (period < 1) {
      throw config_error(text("trireme::parallel::diloco: .period = ", period,
                              "; set the number of steps between outer steps, at least 1"));
    }
    if (fragments < 1 || fragments > period) {
      throw config_error(text("trireme::parallel::diloco: .fragments = ", fragments, " with .period = ", period,
                              "; set the number of parts from 1 to the period, since each has a step of its own"));
    }
    if (delay < 0 || delay >= period) {
      throw config_error(text("trireme::parallel::diloco: .delay = ", delay, " with .period = ", period,
                              "; set a number of steps from 0, less than the period: a fragment arrives before it is "
                              "sent again"));
    }
    expect_number("parallel::diloco", ".outer_learning_rate", outer_learning_rate, not_negative);
    expect_number("parallel::diloco", ".outer_momentum", outer_momentum, below_one);
    expect_number("parallel::diloco", ".bucket_bytes", bucket_bytes, at_least_one);
    expect_number("parallel::diloco", ".ways", ways, not_negative);
  }

  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr bool local_steps = true;
  static constexpr bool sends_changes = true;
  static constexpr std::string_view name = "diloco";

  template <class Env, class Comm>
  class instance;
};

[[nodiscard]] inline std::string to_string(diloco const& d) {
  return text("parallel::diloco{.period = ", d.period, ", .outer_learning_rate = ", d.outer_learning_rate,
              ", .outer_momentum = ", d.outer_momentum, ", .bucket_bytes = ", d.bucket_bytes,
              d.fragments != 1 ? text(", .fragments = ", d.fragments) : "",
              d.delay != 0 ? text(", .delay = ", d.delay) : "", d.ways != 0 ? text(", .ways = ", d.ways) : "", "}");
}

/// The outer optimizer, applied to the ranks' local changes.
template <class Env, class Comm>
class diloco::instance {
  using space = typename Env::space;
  using master = typename Env::master;
  using view = tensor_view<master, space>;
  using kernels = ops::on<space>;

 public:
  static constexpr strategy_hooks has{.end = true, .follow = true, .state = true, .numbers = true};

  instance(diloco const& what, owned_state<Env, Comm> const& state) : what_(what), state_(state) {
    what.validate();
    auto const& plan = state.own.plan();
    parts_.resize(static_cast<std::size_t>(what.fragments));
    for (int b = 0; b < plan.trained_buckets(); ++b) {
      auto const& bucket = plan.buckets()[static_cast<std::size_t>(b)];
      shape const form{state.own.owned(b).count};
      outer_.emplace_back(form);
      velocity_.emplace_back(form);
      if (what.delay > 0) sent_.emplace_back(form);
      parts_[static_cast<std::size_t>(plan.at(bucket.entries.front()).fragment)].buckets.push_back(b);
    }
    for (std::size_t f = 0; f < parts_.size(); ++f)
      parts_[f].first = static_cast<std::int64_t>(f) * what.period / what.fragments;
  }

  [[nodiscard]] std::int64_t period() const noexcept { return what_.period; }
  [[nodiscard]] std::int64_t settles_after() const noexcept { return 1 + what_.delay; }
  [[nodiscard]] bool end(std::int64_t step) {
    bool written = false;
    for (auto& each : parts_) {
      if (each.begun > 0 && step + 1 >= each.begun + what_.delay) {
        meet(each);
        written = true;
      } else if (each.in_transit) {
        changes().progress(each.buckets);
      }
    }
    for (auto& each : parts_) {
      if ((step + 1) % what_.period != each.first) continue;
      send(each, step);
      if (what_.delay > 0) continue;
      meet(each);
      written = true;
    }
    return written;
  }
  /// Starts from the current values: no rank has changed them yet.
  void follow() {
    for (auto& each : parts_) {
      receive(each);
      each.begun = 0;
    }
    for (auto const* const all : {&velocity_, &sent_}) {
      for (auto const& each : *all) kernels::fill(each.view(), 0.0);
    }
    for (int b = 0; b < static_cast<int>(outer_.size()); ++b) static_cast<void>(changes().open(b));
    for (auto const& each : state_.all) copy(part(outer_, each), each.value);
  }

  /// Waits for the sums in transit: they are state, too.
  template <class F>
  void visit_state(state_scope scope, F&& f) {
    for (auto& each : parts_) receive(each);
    auto const& plan = state_.own.plan();
    constexpr std::int64_t everyones = -1;
    auto const show = [&](char const* what, std::int64_t learner, view all, int b,
                          bucket_plan::tensor_range const& range) {
      auto const& info = plan.at(range.entry).info;
      f(what + info.name, state_location{info, range.in_entry, false, 0, learner}, state_.own.in_slice(all, b, range));
    };
    state_.own.for_each_range_of(scope, plan.trained_buckets(), [&](int b, bucket_plan::tensor_range const& range) {
      auto const of = [b](tensors const& all) { return all[static_cast<std::size_t>(b)].view(); };
      if (scope == state_scope::kept || state_.replicas.rank() == 0) {  // the same for all learners
        show("outer_value/", everyones, of(outer_), b, range);
        show("outer_velocity/", everyones, of(velocity_), b, range);
        if (what_.delay > 0) show("outer_sum/", everyones, changes().of(b), b, range);
      }
      if (what_.delay > 0) show("outer_sent/", state_.replicas.rank(), of(sent_), b, range);
    });
  }
  template <class F>
  void visit_numbers(F&& f) {
    if (what_.delay == 0) return;
    for (std::size_t i = 0; i < parts_.size(); ++i) f(text("diloco/begun.", i), parts_[i].begun);
  }
  void count(exchange_memory& sum) const {
    for (auto const* const all : {&outer_, &velocity_, &sent_}) {
      for (auto const& each : *all) sum.masters += static_cast<std::int64_t>(each.view().bytes());
    }
  }

 private:
  using tensors = std::vector<trireme::tensor<master, space>>;
  /// What is exchanged in one step.
  struct fragment {
    std::vector<int> buckets{};
    std::int64_t first = 0;   // of the steps of a period after which it is sent, counted from 1; 0: the last one
    std::int64_t begun = 0;   // steps that were over when it was sent, and ranks have not met; 0: not sent
    bool in_transit = false;  // nobody has waited for its sum
  };

  // Every rank sends its change since the last meeting, and trains on.
  void send(fragment& at, std::int64_t step) {
    for (int const b : at.buckets) static_cast<void>(changes().open(b));
    for_each_of(at, [&](owned_segment<Env> const& each) {
      auto const moved = change(each);
      copy(moved, each.value);
      if (what_.delay > 0) copy(part(sent_, each), each.value);
      kernels::scale(moved, -1.0);
      kernels::add(moved, constant(part(outer_, each)));
    });
    at.begun = step + 1;
    if (what_.delay > 0) {
      changes().begin(at.buckets, step);
      at.in_transit = true;
    } else {
      changes().sum(at.buckets, step);
    }
  }
  void receive(fragment& at) {
    if (!std::exchange(at.in_transit, false)) return;
    changes().finish(at.buckets);
  }
  // The outer step; what a rank has changed since it sent remains with it, and is part of what it sends next.
  void meet(fragment& at) {
    receive(at);
    at.begun = 0;
    for_each_of(at, [&](owned_segment<Env> const& each) {
      auto const sum = constant(change(each));
      kernels::sgd(part(outer_, each), part(velocity_, each),
                   gradient_terms<master, space>{{&sum, 1}, 1.0 / static_cast<double>(state_.replicas.size())},
                   std::span<tensor_view<typename Env::param, space> const>{}, outer_step(*each.info));
      if (what_.delay > 0) {
        auto const since = part(sent_, each);
        kernels::scale(since, -1.0);
        kernels::add(since, constant(each.value));
        copy(each.value, part(outer_, each));
        kernels::add(each.value, constant(since));
      } else {
        copy(each.value, part(outer_, each));
      }
    });
  }

  // Moving averages become the mean over the ranks.
  [[nodiscard]] ops::sgd_numbers outer_step(parameter_info const& info) const {
    if (info.running > 0) return {.learning_rate = 1};
    return {.learning_rate = what_.outer_learning_rate, .momentum = what_.outer_momentum, .nesterov = true};
  }
  template <class F>
  void for_each_of(fragment const& at, F&& f) const {
    for (auto const& each : state_.all) {
      if (parts_.size() == 1 || std::binary_search(at.buckets.begin(), at.buckets.end(), each.bucket)) f(each);
    }
  }
  [[nodiscard]] view part(tensors const& of, owned_segment<Env> const& at) const {
    return state_.own.in_slice(of[static_cast<std::size_t>(at.bucket)].view(), at.bucket, at.range);
  }
  [[nodiscard]] change_sums<Env>& changes() const { return *state_.changes; }
  [[nodiscard]] view change(owned_segment<Env> const& at) const {
    return state_.own.in_slice(changes().of(at.bucket), at.bucket, at.range);
  }
  static tensor_view<master const, space> constant(view all) { return all; }
  static void copy(view to, view from) { kernels::copy(to, constant(from)); }

  diloco what_;
  owned_state<Env, Comm> state_;
  tensors outer_;     // values after the last outer step
  tensors velocity_;  // of the outer optimizer
  tensors sent_;      // with a delay: this rank's values when it sent; after a meeting what it had changed since
  std::vector<fragment> parts_;
};

}  // namespace trireme::parallel
