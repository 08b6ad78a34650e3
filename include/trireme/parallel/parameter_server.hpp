#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/slot.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/strategy_state.hpp"

namespace trireme::parallel {

/// A parameter server with bounded staleness, sharded over the ranks: each rank owns one slice of the parameters. It
/// sums the gradients that all ranks push, and applies those that were pushed `staleness` steps ago; all ranks pull the
/// new parameters before their next step.
///
/// Why      to compare how a delay changes training. It does not hide time here: every step still waits for the step's
///          vote, and for the slowest rank. (A delay could hide the time of a push between machines; only asynchrony,
///          which this policy does not have, tolerates slow ranks.)
///
/// Method   [Li et al., "Scaling distributed machine learning with the parameter server", 2014], with the delay fixed:
///          gradients are applied exactly `staleness` steps after they were computed, so a run is deterministic, and
///          resumes bit for bit. 0 is synchronous: parallel::zero<1> bit for bit.
/// Bytes    as parallel::zero<1>. Memory: `staleness` + 1 more gradients of the own slice.
/// Numerics the first `staleness` steps change nothing, the last `staleness` gradients of a run are not applied.
///          Clipping uses the norm of the gradients that are applied.
/// Needs    as parallel::zero<1>.
struct parameter_server {
  using policy_category = slot::parallel;
  std::int64_t staleness = 0;  ///< steps between the computation of a gradient and its application
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< gradients exchanged together, in bytes
  int ways = 0;                                        ///< ranks that split samples; 0: the ranks that other axes leave
  friend bool operator==(parameter_server const&, parameter_server const&) = default;

  void validate() const {
    if (staleness < 0 || staleness > 1024) {
      throw config_error(text("trireme::parallel::parameter_server: .staleness = ", staleness,
                              "; set a number of steps from 0 to 1024"));
    }
    expect_number("parallel::parameter_server", ".bucket_bytes", bucket_bytes, at_least_one);
    expect_number("parallel::parameter_server", ".ways", ways, not_negative);
  }

  static constexpr distribution optimizer_state = distribution::shard;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr std::string_view name = "parameter_server";

  template <class Env, class Comm>
  class instance;
};

[[nodiscard]] inline std::string to_string(parameter_server const& p) {
  return text("parallel::parameter_server{.staleness = ", p.staleness, ", .bucket_bytes = ", p.bucket_bytes,
              p.ways != 0 ? text(", .ways = ", p.ways) : "", "}");
}

/// A ring of gradients that are not applied yet. The exchange places state as for zero<1>.
template <class Env, class Comm>
class parameter_server::instance {
  using space = typename Env::space;
  using gradient = typename Env::gradient;
  using kernels = ops::on<space>;

 public:
  static constexpr strategy_hooks has{.settle = true, .start = true, .state = true, .numbers = true};

  instance(parameter_server const& what, owned_state<Env, Comm> const& state) : state_(state) {
    what.validate();
    if (what.staleness == 0) return;
    ring_.resize(static_cast<std::size_t>(what.staleness) + 1);
    for (auto& waiting : ring_) {
      for (int b = 0; b < state.own.plan().trained_buckets(); ++b)
        waiting.slices.emplace_back(shape{state.own.owned(b).count});
    }
    start();
  }

  [[nodiscard]] std::int64_t settles_after() const noexcept { return static_cast<std::int64_t>(ring_.size()) + 1; }
  /// The gradients of this step enter the ring; those of `staleness` steps ago replace them.
  std::optional<gradient_numbers> settle(bool taken, gradient_numbers const& exchanged) {
    if (!taken) return std::nullopt;
    if (ring_.empty()) return exchanged;
    auto& newest = at(pushed_++);
    newest.numbers = exchanged;
    for (auto const& each : state_.all) kernels::copy(part(newest, each.bucket, each.range), constant(each.sum));
    if (pushed_ < static_cast<std::int64_t>(ring_.size())) return std::nullopt;
    auto& oldest = at(pushed_);
    for (auto const& each : state_.all) kernels::copy(each.sum, constant(part(oldest, each.bucket, each.range)));
    return oldest.numbers;
  }
  void start() {
    pushed_ = 0;
    for (auto& waiting : ring_) {
      waiting.numbers = {};
      for (auto const& each : waiting.slices) kernels::fill(each.view(), 0.0);
    }
  }

  template <class F>
  void visit_state(state_scope scope, F&& f) {
    auto const& plan = state_.own.plan();
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      state_.own.for_each_range_of(scope, plan.trained_buckets(), [&](int b, bucket_plan::tensor_range const& range) {
        auto const& info = plan.at(range.entry).info;
        f(text("waiting_gradient.", i, "/", info.name), state_location{info, range.in_entry}, part(ring_[i], b, range));
      });
    }
  }
  template <class F>
  void visit_numbers(F&& f) {
    if (ring_.empty()) return;
    f("parameter_server/pushed", pushed_);
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      f(text("parameter_server/norm.", i), ring_[i].numbers.norm);
      f(text("parameter_server/scale.", i), ring_[i].numbers.scale);
      f(text("parameter_server/measured.", i), ring_[i].numbers.measured);
    }
  }
  void count(exchange_memory& sum) const {
    for (auto const& waiting : ring_) {
      for (auto const& each : waiting.slices) sum.gradients += static_cast<std::int64_t>(each.view().bytes());
    }
  }

 private:
  /// This rank's slices of the gradient sums of one step.
  struct step_gradients {
    std::vector<trireme::tensor<gradient, space>> slices;  // by bucket
    gradient_numbers numbers;
  };
  step_gradients& at(std::int64_t push) {
    return ring_[static_cast<std::size_t>(push % static_cast<std::int64_t>(ring_.size()))];
  }
  [[nodiscard]] tensor_view<gradient, space> part(step_gradients const& of, int bucket,
                                                  bucket_plan::tensor_range const& range) const {
    return state_.own.in_slice(of.slices[static_cast<std::size_t>(bucket)].view(), bucket, range);
  }
  static tensor_view<gradient const, space> constant(tensor_view<gradient, space> all) { return all; }

  owned_state<Env, Comm> state_;
  std::vector<step_gradients> ring_;
  std::int64_t pushed_ = 0;  // gradients of steps that were taken
};

}  // namespace trireme::parallel
