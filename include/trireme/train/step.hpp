#pragma once

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/precision_state.hpp"
#include "trireme/core/error.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/parallel/vote.hpp"
#include "trireme/train/detail/together.hpp"
#include "trireme/train/optimizer_state.hpp"
#include "trireme/train/placed_model.hpp"
#include "trireme/train/report.hpp"

namespace trireme {

/// The progress of a run; the same on every rank.
struct run_clock {
  std::uint64_t seed = 0;
  std::int64_t step = 0;     ///< steps taken, skipped ones included
  std::int64_t updates = 0;  ///< of these, the steps that changed parameters
  std::int64_t skips = 0;    ///< in a row, up to now
  data::loader_position position;
  /// The ranks' shares of a batch if they are not equal; see data::shares.
  std::vector<std::int64_t> shares{};
  std::string data{};  ///< the dataset of the current epoch; empty: not known
};

/// The state that a run changes from step to step: each slot's run state, and the clock. Both a trainer and a plan have
/// one and take the same steps.
template <class Env, class Model, class Optimizer, class Comm, class Parallel, class Compression>
struct run_state {
  using precision_policy = typename Env::precision;

  template <class GivenModel>
  run_state(GivenModel&& given, Comm& world, Parallel const& strategy, precision_policy const& numbers,
            Compression const& compression, Optimizer const& optimizer)
      : model(std::forward<GivenModel>(given), world, strategy, compression, bucket_requirements_of(optimizer)),
        moments(model.exchange(), optimizer),
        precision(numbers) {
    if constexpr (staged_model<Model>) model.engine().follow(precision);
  }
  run_state(run_state const&) = delete;
  run_state& operator=(run_state const&) = delete;

  placed_model<Env, Model, Comm, Parallel, Compression> model;
  optimizer_state<Env, Optimizer> moments;
  precision_state<precision_policy> precision;
  parallel::vote vote;
  run_clock clock;
};

namespace detail {

using step_clock = std::chrono::steady_clock;
[[nodiscard]] inline double seconds_since(step_clock::time_point start) {
  return std::chrono::duration<double>(step_clock::now() - start).count();
}

template <class Body>
auto timed(observe::timeline* timeline, std::string_view phase, Body&& body) {
  if (timeline == nullptr) return body();
  observe::timeline::span const span(*timeline, phase, "step");
  return body();
}

/// Collective, for precisions that have maxima(). The bits of numbers that are not negative are in the order of the
/// numbers.
template <class Precision, class Comm>
void agree_on_maxima([[maybe_unused]] Precision& precision, [[maybe_unused]] Comm& everyone) {
  if constexpr (requires { precision.maxima(); }) {
    std::span<double> const own = precision.maxima();
    std::vector<std::int64_t> bits(own.size());
    for (std::size_t i = 0; i < own.size(); ++i) bits[i] = std::bit_cast<std::int64_t>(own[i]);
    everyone.all_reduce(tensor_view<std::int64_t>(bits), reduction::max{});
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = std::bit_cast<double>(bits[i]);
  }
}

/// The factor for gradients when they are applied: removes the loss scale, and clips.
template <class Optimizer>
[[nodiscard]] double factor_of(Optimizer const& optimizer, gradient_numbers const& gradients) {
  double const limit = optimizer.clip;
  double const clipped = limit > 0 && gradients.norm > limit ? limit / (gradients.norm + 1e-6) : 1.0;
  return clipped / gradients.scale;
}

/// For the gradients on this rank after the exchange: sums over ranks, and its own ones.
template <class Exchange>
std::string first_bad_gradient(Exchange const& exchange) {
  for (auto const& entry : exchange.plan().entries()) {
    if (!exchange.has_finite_gradient(entry)) return text(" (here first in \"", entry.info.name, "\")");
  }
  return {};
}

}  // namespace detail

/// The counts of a run before a step.
struct run_count {
  std::int64_t steps = 0;    ///< taken, skipped ones included: schedules use it
  std::int64_t updates = 0;  ///< of these, the steps that changed parameters: means that begin with zero use it
};

/// The result of the second half of a step.
struct step_end {
  exchange_result counted;
  double scale = 1;      ///< gradients are those of the mean loss times this
  bool taken = false;    ///< false: skipped, on every rank
  bool updated = false;  ///< whether parameters have changed
};

/// Collective. The second half of a step, when gradients are being exchanged: the ranks vote, and if the step is taken
/// each rank updates what it owns.
///
/// Gradients are those of the mean loss over the rows that count in it, on all ranks and in all micro-batches together.
/// Backward does not know their number and weighs each as one of all rows; the vote corrects this.
///
/// @param losses   of this rank: read when its gradients are summed, since the host waits then anyway.
/// @param scale    factor on the gradients.
/// @param decide   (exchange_result const&, std::exception_ptr) -> whether the step is taken; the same on every rank.
///                 Gets the error of this rank's losses, if reading them failed; then the votes of all ranks have
///                 step_input::gives_up.
/// @param before   the numbers of steps and updates before this one.
template <class Exchange, class Moments, class Optimizer, class Losses, class Decide>
step_end end_step(Exchange& exchange, Moments& moments, Optimizer const& optimizer, parallel::vote& vote,
                  Losses const& losses, double scale, Decide&& decide, run_count before,
                  observe::timeline* timeline = nullptr) {
  using detail::timed;
  std::exception_ptr refused;
  timed(timeline, "finish", [&] {
    exchange.finish(vote);
    try {
      vote.add(losses.read());
    } catch (config_error const&) {  // of a target; the other ranks are about to vote, and have to know
      refused = std::current_exception();
      vote.wish(step_input::gives_up);
    }
  });
  step_end out{.counted = timed(timeline, "vote", [&] { return exchange.count(vote); })};
  out.taken = decide(out.counted, refused);
  out.scale = scale * out.counted.counted;
  auto const gradients = exchange.settle(out.taken, {out.counted.norm / out.scale, out.scale, scale});
  if (!gradients) return out;
  double const factor = detail::factor_of(optimizer, *gradients);
  timed(timeline, "update",
        [&] { moments.update(exchange, optimizer, before.steps, factor, 1 / gradients->measured, before.updates); });
  timed(timeline, "publish", [&] { exchange.publish(); });
  out.updated = true;
  return out;
}

/// Collective. One step. The vote is the only exchange for which all ranks wait; before its result is known, no state
/// of the run is changed.
///
/// @param requirements  a number of this rank's own (a request to stop, say); out: its sum over the ranks.
/// @param input  if it reports a failed rank, the step is given up on all of them.
/// Errors   that failure; numeric_error after more consecutive steps without a finite loss and gradients than the
///          precision allows. Then, and with any other exception, the state is that before the step.
template <class Run, class Optimizer>
step_report take_step(Run& run, Optimizer const& optimizer, step_input const& input, std::int64_t& requirements,
                      observe::timeline* timeline = nullptr) {
  auto const start = detail::step_clock::now();
  auto& model = run.model;
  auto& precision = run.precision;
  auto& clock = run.clock;
  auto& vote = run.vote;
  auto& exchange = model.exchange();
  double const scale = precision.scale();

  vote.clear(requirements + (input.failure ? step_input::gives_up : 0));
  random_key const key{clock.seed, static_cast<std::uint64_t>(clock.step)};
  auto const losses = detail::timed(timeline, "forward, backward", [&] { return model.train(input, scale, key); });
  auto const [counted, multiplied, taken, updated] = end_step(
      exchange, run.moments, optimizer, vote, losses, scale,
      [&](exchange_result const& step, std::exception_ptr const& refused) {
        if (step.votes >= step_input::gives_up)
          detail::throw_together(exchange.everyone(), input.failure ? input.failure : refused);
        detail::agree_on_maxima(precision, exchange.everyone());
        bool const takes = precision.decide(step.finite) && step.finite_loss;
        clock.skips = takes ? 0 : clock.skips + 1;
        if (takes || clock.skips != precision.normal_skips()) return takes;
        throw numeric_error(
            text("trireme::trainer: no finite ", step.finite ? "loss" : "gradients", " in ", clock.skips,
                 " steps, up to step ", clock.step, step.finite ? "" : detail::first_bad_gradient(exchange),
                 "; lower the learning rate or check the data"),
            {exchange.everyone().rank(), "step"});
      },
      {clock.step, clock.updates}, timeline);
  requirements = counted.votes;
  if (updated) ++clock.updates;
  step_report const report{.step = clock.step,
                           .loss = counted.loss,
                           .norm = counted.norm / multiplied,
                           .learning_rate = optimizer.rate_at(clock.step),
                           .samples = input.total,
                           .seconds = detail::seconds_since(start),
                           .skipped = !taken};
  ++clock.step;
  return report;
}

}  // namespace trireme
