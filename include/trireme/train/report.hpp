#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/dialect.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/read_problem.hpp"

namespace trireme {

/// The result of one step; the same on every rank except `seconds` and `waited`.
struct step_report {
  std::int64_t step = 0;     ///< counted from 0
  double loss = 0;           ///< mean over the step's samples on all ranks; NaN where there were none
  double norm = 0;           ///< global gradient norm before clipping
  double learning_rate = 0;  ///< of this step: schedules count steps, skipped ones included
  std::int64_t samples = 0;  ///< over all ranks; 0: no step was taken, and `step` is the next one's number
  double seconds = 0;
  bool skipped = false;       ///< a gradient or a loss was not finite on some rank: nothing was changed
  double waited = 0;          ///< seconds that this rank waited for the step's samples in fit(), before `seconds` begin
  std::int64_t left_out = 0;  ///< samples left out so far in this call of fit(), over all ranks: see .bad_samples
};

/// The result of one call of fit(); the same on every rank except `seconds`, `waited` and `slowest_read`.
struct fit_report {
  std::int64_t first_step = 0;
  std::int64_t steps = 0;    ///< taken in this call
  std::int64_t samples = 0;  ///< over all ranks
  std::int64_t skipped = 0;
  double first_loss = 0;
  double last_loss = 0;
  double last_norm = 0;
  double seconds = 0;
  bool stopped = false;               ///< some rank requested it
  double waited = 0;                  ///< seconds of `seconds` that this rank waited for samples
  std::int64_t left_out = 0;          ///< samples that could not be read, over all ranks: see fit_options::bad_samples
  data::read_problem slowest_read{};  ///< the read that took the longest on this rank

  /// The share of the time that this rank waited for samples.
  [[nodiscard]] double waiting_share() const noexcept { return seconds > 0 ? waited / seconds : 0; }
  /// If that is over 5 % and over a second, a sentence that says so and what to do; else empty.
  [[nodiscard]] std::string slow_data() const {
    if (!(waiting_share() > 0.05 && waited > 1)) return {};
    return text("steps waited for data ", static_cast<int>(100 * waiting_share() + 0.5), " % of the time (",
                to_string(slowest_read), "); raise .workers, or prepare the samples once, before the training");
  }

  void add(step_report const& done) noexcept {
    if (steps == 0) first_loss = done.loss;
    last_loss = done.loss;
    last_norm = done.norm;
    samples += done.samples;
    skipped += done.skipped ? 1 : 0;
    waited += done.waited;
    left_out = done.left_out;
    ++steps;
  }
};

/// The result of a checkpoint written in the background; the same on every rank except `seconds`.
struct save_report {
  std::int64_t step = 0;  ///< the step whose state it holds
  double seconds = 0;     ///< from the copy of the state until the checkpoint was published or given up
  std::string failure;    ///< the error message; empty if it was published
};

}  // namespace trireme
