#pragma once

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
/// Bytes    2 n (p-1)/p elements of the master type, n parameters, p ranks, once in `period` steps; with a compressor
///          its payloads, as in parallel::data. Memory: two more tensors of the size of the masters, one as a buffer,
///          and the compressor's.
/// Ranks    parameters and moments differ between ranks; only parameters are equal after an outer step: save a model
///          after a multiple of `period` steps. evaluate() is the mean over ranks, each with its own parameters. A
///          checkpoint may be taken at any step, and continues on the same number of ranks.
/// Numerics the norm used for clipping is the root mean square of the ranks' norms. With a period of 1, inner SGD
///          without momentum, outer rate 1 and no outer momentum, a step equals that of parallel::data within rounding;
///          with AdamW it does not, because the mean of AdamW steps is not the AdamW step of the mean gradient.
/// Needs    has_all_reduce of the master type; has_all_gather for compressors whose payloads cannot be summed.
struct diloco {
  using policy_category = slot::parallel;
  std::int64_t period = 100;                           ///< steps from one outer step to the next
  double outer_learning_rate = 0.7;                    ///< learning rate of the outer steps
  double outer_momentum = 0.9;                         ///< Nesterov's
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< parameters averaged together, in bytes of gradients
  int ways = 0;                                        ///< ranks that split samples; 0: the ranks that other axes leave
  friend bool operator==(diloco const&, diloco const&) = default;

  void validate() const {
    if (period < 1) {
      throw config_error(text("trireme::parallel::diloco: .period = ", period,
                              "; set the number of steps between outer steps, at least 1"));
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
              d.ways != 0 ? text(", .ways = ", d.ways) : "", "}");
}

/// The outer optimizer, applied to the ranks' local changes.
template <class Env, class Comm>
class diloco::instance {
  using space = typename Env::space;
  using master = typename Env::master;
  using view = tensor_view<master, space>;
  using kernels = ops::on<space>;

 public:
  static constexpr strategy_hooks has{.end = true, .follow = true, .state = true};

  instance(diloco const& what, owned_state<Env, Comm> const& state) : what_(what), state_(state) {
    what.validate();
    auto const& plan = state.own.plan();
    for (int b = 0; b < plan.trained_buckets(); ++b) {
      shape const form{plan.buckets()[static_cast<std::size_t>(b)].elements};
      outer_.emplace_back(form);
      velocity_.emplace_back(form);
      buckets_.push_back(b);
    }
  }

  [[nodiscard]] std::int64_t period() const noexcept { return what_.period; }
  [[nodiscard]] bool end(std::int64_t step) {
    if ((step + 1) % what_.period != 0) return false;
    for (int const b : buckets_) static_cast<void>(changes().open(b));
    for (auto const& each : state_.all) {
      auto const moved = change(each);
      copy(moved, each.value);
      kernels::scale(moved, -1.0);
      kernels::add(moved, constant(part(outer_, each)));
    }
    changes().sum(buckets_, step);
    for (auto const& each : state_.all) {
      auto const sum = constant(change(each));
      kernels::sgd(part(outer_, each), part(velocity_, each),
                   gradient_terms<master, space>{{&sum, 1}, 1.0 / static_cast<double>(state_.replicas.size())},
                   std::span<tensor_view<typename Env::param, space> const>{}, outer_step(*each.info));
      copy(each.value, part(outer_, each));
    }
    return true;
  }
  /// Starts from the current values: no rank has changed them yet.
  void follow() {
    for (auto const& each : velocity_) kernels::fill(each.view(), 0.0);
    for (auto const& each : state_.all) copy(part(outer_, each), each.value);
  }

  template <class F>
  void visit_state(state_scope scope, F&& f) {
    if (scope == state_scope::owned && state_.replicas.rank() != 0) return;  // the same on all replicas
    auto const& plan = state_.own.plan();
    state_.own.for_each_range_of(scope, plan.trained_buckets(), [&](int b, bucket_plan::tensor_range const& range) {
      auto const& info = plan.at(range.entry).info;
      f("outer_value/" + info.name, state_location{info, range.in_entry}, part(outer_, b, range));
      f("outer_velocity/" + info.name, state_location{info, range.in_entry}, part(velocity_, b, range));
    });
  }
  void count(exchange_memory& sum) const {
    for (auto const& each : outer_) sum.masters += 2 * static_cast<std::int64_t>(each.view().bytes());
  }

 private:
  using tensors = std::vector<trireme::tensor<master, space>>;

  // Moving averages become the mean over the ranks.
  [[nodiscard]] ops::sgd_numbers outer_step(parameter_info const& info) const {
    if (info.running > 0) return {.learning_rate = 1};
    return {.learning_rate = what_.outer_learning_rate, .momentum = what_.outer_momentum, .nesterov = true};
  }
  static view part(tensors const& of, int bucket, bucket_plan::tensor_range const& range) {
    return of[static_cast<std::size_t>(bucket)].view().flat(range.in_bucket, range.count);
  }
  static view part(tensors const& of, owned_segment<Env> const& at) { return part(of, at.bucket, at.range); }
  [[nodiscard]] change_sums<Env>& changes() const { return *state_.changes; }
  [[nodiscard]] view change(owned_segment<Env> const& at) const {
    return changes().of(at.bucket).flat(at.range.in_bucket, at.range.count);
  }
  static tensor_view<master const, space> constant(view all) { return all; }
  static void copy(view to, view from) { kernels::copy(to, constant(from)); }

  diloco what_;
  owned_state<Env, Comm> state_;
  tensors outer_;     // values after the last outer step
  tensors velocity_;  // of the outer optimizer
  std::vector<int> buckets_;
};

}  // namespace trireme::parallel
